"""Mask words on the CPU (SPEC.md v1), sixteen and more at a time.

A Philox call keeps its four words in the low halves of 64-bit lanes: a 32 × 32 → 64 bit product is
then one instruction, and nothing reads the high halves. One block is 8 calls of 4 groups, so that
four independent chains hide the latency of the rounds. Addresses are plain integers: the callers own
aligned scratch memory, and one compiled version serves every layout.

Numba's cache of a compiled function looks at the file of that function only: after an edit here, delete the
``__pycache__`` folders of the callers (``make clean``).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from bayes_dc.rng.spec import (
    DIGIT_SHIFT,
    MULTIPLIERS,
    ROUNDS,
    WEYL,
    WORDS_PER_CALL,
    KeepDigits,
)

GROUPS = 4
"""Groups of one block."""
CALLS = 8
"""Philox calls of one group in one block."""
INPUTS = CALLS * WORDS_PER_CALL
"""Inputs k of one block."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_I64, CALLS)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter lock, cached on disk where a folder can be written.

    Args:
        function: Function for Numba's nopython mode.

    Returns:
        Numba's dispatcher. It compiles at the first call.

    Raises:
        RuntimeError: If Numba cannot make the dispatcher for another reason than the cache folder.
    """
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator" not in str(error):
            raise
        return njit(**options)(function)


def _const(value: int) -> ir.Constant:
    """A 64-bit constant."""
    return ir.Constant(_I64, value)


def _splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """The scalar in all eight lanes."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, ir.Constant(_I32, 0))
    lanes = ir.Constant(ir.VectorType(_I32, CALLS), [0] * CALLS)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), lanes)


def _low(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The low 32 bits of a scalar or of each lane; free in front of a product."""
    mask = _const(0xFFFFFFFF)
    return builder.and_(value, mask if value.type == _I64 else _vector([0xFFFFFFFF] * CALLS))


def _vector(values: list[int]) -> ir.Constant:
    """A constant of eight 64-bit lanes."""
    return ir.Constant(_VECTOR, [_const(v) for v in values])


def _product(builder: ir.IRBuilder, value: ir.Value, which: int) -> tuple[ir.Value, ir.Value]:
    """(high word, 64-bit product whose low half is the low word) of a word and a multiplier."""
    factor = MULTIPLIERS[which]
    scalar = value.type == _I64
    product = builder.mul(
        _low(builder, value), _const(factor) if scalar else _vector([factor] * CALLS)
    )
    return builder.lshr(product, _const(32) if scalar else _vector([32] * CALLS)), product


def _calls(
    builder: ir.IRBuilder,
    keys: list[tuple[ir.Value, ir.Value]],
    counters: tuple[ir.Value, ir.Value],
    groups: list[tuple[ir.Value, ir.Value]],
) -> list[tuple[ir.Value, ir.Value, ir.Value, ir.Value]]:
    """Ten rounds for every group; only counter word 0 differs between lanes.

    The first two rounds use that: what does not depend on the lane is done once, on scalars, and the
    first product of counter word 0 is shared by the groups.
    """
    k4, c1 = counters
    high0, low0 = _product(builder, k4, 0)
    states = []
    key0, key1 = _splat(builder, builder.xor(c1, keys[0][0])), _splat(builder, keys[0][1])
    for sample, step in groups:
        high1, low1 = _product(builder, _splat(builder, sample), 1)
        c0 = builder.xor(high1, key0)
        c2 = builder.xor(high0, builder.xor(_splat(builder, step), key1))
        states.append((c0, low1, c2, low0))
    for a, b in keys[1:]:
        key0, key1 = _splat(builder, a), _splat(builder, b)
        following = []
        for c0, c1_, c2, c3 in states:
            high_0, low_0 = _product(builder, c0, 0)
            high_1, low_1 = _product(builder, c2, 1)
            following.append((
                builder.xor(builder.xor(high_1, c1_), key0),
                low_1,
                builder.xor(builder.xor(high_0, c3), key1),
                low_0,
            ))
        states = following
    return states


def _in_order(
    builder: ir.IRBuilder, words: tuple[ir.Value, ir.Value, ir.Value, ir.Value]
) -> list[ir.Value]:
    """The low halves of four vectors in order of k = 4 · lane + word: 16 words, then 16 more."""
    wide = ir.VectorType(_I32, 2 * CALLS)
    pairs = []
    for even, odd in (words[:2], words[2:]):
        lanes = [lane + 2 * CALLS * word for lane in range(0, 2 * CALLS, 2) for word in (0, 1)]
        both = builder.shuffle_vector(
            builder.bitcast(even, wide), builder.bitcast(odd, wide), ir.Constant(wide, lanes)
        )
        pairs.append(builder.bitcast(both, _VECTOR))
    halves = []
    for half in range(2):
        lanes = [lane + CALLS * pair for lane in range(4 * half, 4 * half + 4) for pair in (0, 1)]
        order = ir.Constant(ir.VectorType(_I32, CALLS), lanes)
        halves.append(builder.shuffle_vector(*pairs, order))
    return halves


@intrinsic
def _block(  # type: ignore[no-untyped-def]
    typingctx, dst, stride, key0, key1, k4, c1, samples, passes, keep_bit, first
):
    """Words of one digit for 4 groups × 32 inputs, combined with what ``dst`` holds."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        dst, stride, key0, key1, k4, c1, samples, passes, keep_bit, first = args
        keys = [
            (
                _low(builder, builder.add(key0, _const(r * WEYL[0]))),
                _low(builder, builder.add(key1, _const(r * WEYL[1]))),
            )
            for r in range(ROUNDS)
        ]
        ids = []
        for base in (samples, passes):
            pointer = builder.inttoptr(base, _I64.as_pointer())
            ids.append([
                _low(builder, builder.load(builder.gep(pointer, [_const(g)])))
                for g in range(GROUPS)
            ])
        lanes = builder.add(_splat(builder, k4), _vector(list(range(CALLS))))
        states = _calls(builder, keys, (lanes, c1), list(zip(*ids, strict=True)))
        # Complements throughout: a test for zero keeps a weight, which LLVM turns into one instruction.
        other = _splat(builder, builder.sub(keep_bit, _const(1)))
        results = []
        for g, words in enumerate(states):
            address = builder.add(dst, builder.mul(stride, _const(g)))
            for half, word in enumerate(_in_order(builder, words)):
                place = builder.add(address, _const(64 * half))
                pointer = builder.inttoptr(place, _VECTOR.as_pointer())
                results.append((pointer, builder.not_(word)))
        fresh = builder.icmp_unsigned("!=", first, _const(0))
        with builder.if_else(fresh) as (start, further):
            with start:
                for pointer, word in results:
                    builder.store(builder.or_(word, other), pointer, align=64)
            with further:
                for pointer, word in results:
                    held = builder.load(pointer, align=64)
                    either = builder.and_(builder.or_(held, word), other)
                    both = builder.and_(held, word)
                    builder.store(builder.or_(either, both), pointer, align=64)
        return context.get_dummy_value()

    return types.void(*([types.int64] * 10)), codegen


@compiled
def fill_dropped(
    dst: int,
    group_step: int,
    word_step: int,
    batches: int,
    words: int,
    blocks: int,
    key0: int,
    key1: int,
    k4: int,
    n32: int,
    samples: int,
    passes: int,
    keep: int,
    bits: int,
) -> None:
    """Mask words of 4 · batches groups, ``words`` words along n and 32 · blocks inputs.

    Horner's rule from the last digit on: with a digit q, (held or word) if q else (held and word).

    Args:
        dst: Address of the first word (uint32, 64-byte aligned); later k lie behind.
        group_step: Bytes from one group to the next, a multiple of 64.
        word_step: Bytes from one n // 32 to the next, a multiple of 64.
        batches: Groups divided by 4.
        words: Number of words along n.
        blocks: Inputs divided by 32.
        key0: First word of the layer key.
        key1: Second word of the layer key.
        k4: Number of the first call, k // 4.
        n32: Number of the first word along n, n // 32.
        samples: Address of the groups' sample ids (int64, taken modulo 2**32).
        passes: Address of the groups' pass ids (int64, taken modulo 2**32).
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of binary digits, at least 1.
    """
    for batch in range(batches):
        ids = batch * GROUPS * 8
        for word in range(words):
            target = dst + batch * GROUPS * group_step + word * word_step
            for i in range(bits):
                c1 = (n32 + word) | (bits - 1 - i) << DIGIT_SHIFT
                digit = (keep >> i) & 1
                first = 1 if i == 0 else 0
                for block in range(blocks):
                    _block(
                        target + block * INPUTS * 4,
                        group_step,
                        key0,
                        key1,
                        k4 + block * CALLS,
                        c1,
                        samples + ids,
                        passes + ids,
                        digit,
                        first,
                    )


def mask_words(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    passes: NDArray[np.int64],
    n_words: int,
    K: int,
    digits: KeepDigits,
) -> NDArray[np.uint64]:
    """Mask words as the CPU kernels make them; see ``bayes_dc.rng.mask_words``.

    Args:
        key: Layer key.
        samples: Sample id of each group, ``[G]``.
        passes: Pass id of each group, ``[G]``.
        n_words: Words along n, ceil(N / 32).
        K: Number of inputs.
        digits: Binary digits of the keep probability; ``bits`` ≥ 1.

    Returns:
        32-bit words, ``[G, K, n_words]``.
    """
    count = len(samples)
    groups, blocks = -(-count // GROUPS) * GROUPS, -(-K // INPUTS)
    ids = np.zeros((2, groups), np.int64)
    ids[0, :count], ids[1, :count] = samples, passes
    memory = np.empty(n_words * groups * blocks * INPUTS + 16, np.uint32)
    skip = -memory.ctypes.data % 64 // 4
    words = memory[skip : memory.size - 16 + skip].reshape(n_words, groups, blocks * INPUTS)
    fill_dropped(
        words.ctypes.data,
        blocks * INPUTS * 4,
        groups * blocks * INPUTS * 4,
        groups // GROUPS,
        n_words,
        blocks,
        *key,
        0,
        0,
        ids[0].ctypes.data,
        ids[1].ctypes.data,
        digits.keep,
        digits.bits,
    )
    return np.invert(words[:, :count, :K]).transpose(1, 2, 0).astype(np.uint64)
