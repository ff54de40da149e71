"""Mask words on the CPU (SPEC.md v1), sixteen and more at a time.

A Philox call keeps its four words in the low halves of 64-bit lanes: a 32 × 32 → 64 bit product is
then one instruction, and nothing reads the high halves. One block is 8 calls of 4 groups, so that
four independent chains hide the latency of the rounds. Addresses are plain integers: the callers
own aligned scratch memory, and one compiled version serves every layout.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from bayes_dc.rng.numba_jit import inlined, primitive
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
_State = tuple[ir.Value, ir.Value, ir.Value, ir.Value]


def _const(value: int) -> ir.Constant:
    """A 64-bit constant."""
    return ir.Constant(_I64, value)


def _splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """The scalar in all eight lanes."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, ir.Constant(_I32, 0))
    lanes = ir.Constant(ir.VectorType(_I32, CALLS), [0] * CALLS)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), lanes)


def _vector(values: list[int]) -> ir.Constant:
    """A constant of eight 64-bit lanes."""
    return ir.Constant(_VECTOR, [_const(v) for v in values])


def _low(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """The low 32 bits."""
    return builder.and_(scalar, _const(0xFFFFFFFF))


def _product(builder: ir.IRBuilder, words: ir.Value, which: int) -> tuple[ir.Value, ir.Value]:
    """High words, and 64-bit products whose low halves are the low words."""
    low_halves = builder.and_(words, _vector([0xFFFFFFFF] * CALLS))  # costs nothing
    product = builder.mul(low_halves, _vector([MULTIPLIERS[which]] * CALLS))
    return builder.lshr(product, _vector([32] * CALLS)), product


def _calls(
    builder: ir.IRBuilder,
    keys: list[tuple[ir.Value, ir.Value]],
    counters: tuple[ir.Value, ir.Value],
    groups: list[tuple[ir.Value, ir.Value]],
) -> list[_State]:
    """Ten rounds of eight calls for every group; the groups take turns."""
    k4, c1 = counters
    first, second = (_splat(builder, key) for key in keys[0])
    first = builder.xor(first, _splat(builder, c1))
    high0, low0 = _product(builder, k4, 0)  # the same for all groups
    states = []
    for sample, step in groups:
        high1, low1 = _product(builder, _splat(builder, sample), 1)
        c2 = builder.xor(high0, builder.xor(_splat(builder, step), second))
        states.append((builder.xor(high1, first), low1, c2, low0))
    for key in keys[1:]:
        first, second = (_splat(builder, word) for word in key)
        states = [_round(builder, state, first, second) for state in states]
    return states


def _round(builder: ir.IRBuilder, state: _State, key0: ir.Value, key1: ir.Value) -> _State:
    """One round of Philox on the low halves."""
    c0, c1, c2, c3 = state
    high0, low0 = _product(builder, c0, 0)
    high1, low1 = _product(builder, c2, 1)
    return (
        builder.xor(builder.xor(high1, c1), key0),
        low1,
        builder.xor(builder.xor(high0, c3), key1),
        low0,
    )


def _in_order(builder: ir.IRBuilder, words: _State) -> list[ir.Value]:
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


@primitive
def _load(typingctx: Any, address: Any) -> Any:
    """An int64 of memory."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()))

    return types.int64(types.int64), codegen


# fmt: off
@primitive
def _block(
    typingctx: Any, dst: Any, step: Any, key0: Any, key1: Any, k4: Any, c1: Any, samples: Any,
    passes: Any, keep_bit: Any, first: Any,
) -> Any:
    # fmt: on
    """Fold a digit into the words of 4 groups × 32 inputs; ``first``: there are none yet."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        dst, step, key0, key1, k4, c1, samples, passes, keep_bit, first = args
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
        # Complements throughout: LLVM turns a test for zero, not one for a set bit, and the masked
        # multiply-add it guards into two instructions.
        other = _splat(builder, builder.sub(keep_bit, _const(1)))
        results = []
        for g, words in enumerate(states):
            address = builder.add(dst, builder.mul(step, _const(g)))
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


@inlined
def fill_dropped(
    dst: int,
    group_step: int,
    word_step: int,
    batches: int,
    words: int,
    blocks: int,
    key: int,
    k4: int,
    n32: int,
    samples: int,
    passes: int,
    keep: int,
    bits: int,
) -> None:
    """Words of dropped weights: the complements of the mask words, a set bit drops its weight.

    For 4 · batches groups, ``words`` words along n and 32 · blocks inputs. Horner's rule runs from
    the last digit on, the words staying in ``dst`` between digits.

    Args:
        dst: Address of the first word (uint32, 64-byte aligned); later k lie behind.
        group_step: Bytes from one group to the next, a multiple of 64.
        word_step: Bytes from one n // 32 to the next, a multiple of 64.
        batches: Groups divided by 4.
        words: Number of words along n.
        blocks: Inputs divided by 32.
        key: Address of the two words of the layer key (int64).
        k4: Number of the first call, k // 4.
        n32: Number of the first word along n, n // 32.
        samples: Address of the groups' sample ids (int64, taken modulo 2**32).
        passes: Address of the groups' pass ids (int64, taken modulo 2**32).
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of binary digits, at least 1.
    """
    key0, key1 = _load(key), _load(key + 8)
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
    words_of_key = np.array(key, np.int64)
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
        words_of_key.ctypes.data,
        0,
        0,
        ids[0].ctypes.data,
        ids[1].ctypes.data,
        digits.keep,
        digits.bits,
    )
    return np.invert(words[:, :count, :K]).transpose(1, 2, 0).astype(np.uint64)
