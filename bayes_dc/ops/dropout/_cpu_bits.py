"""Dropout on the CPU, 128 units of a row from each call of the generator.

Task        up to 8192 units of one row
Scratch     11 KB per thread
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types

from bayes_dc.ops._cpu_emit import bytes_of, load, next_task, store
from bayes_dc.rng.numba_jit import compiled, inlined, primitive
from bayes_dc.rng.spec import DIGIT_SHIFT, MULTIPLIERS, ROUNDS, WEYL

CALLS = 64
"""Most calls made together: loops of this length become vectors."""

UNITS = 128 * CALLS
"""Units of one block, which is one row's."""

_M0, _M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_W0, _W1 = np.uint64(WEYL[0]), np.uint64(WEYL[1])
_LOW, _HALF, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(DIGIT_SHIFT)
_ONE = np.uint32(1)
_VECTOR = 8

_HELD_AT = 4 * CALLS * 8
_BYTES_AT = _HELD_AT + 4 * CALLS * 4


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread."""
    return _BYTES_AT + UNITS


@primitive
def _pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@inlined
def _words(words: Any, key: int, n32: int, digit: int, sample: int, step: int, calls: int) -> None:
    """The four words of calls from n32 on, in uint64: words [4, CALLS]."""
    k0, k1 = np.uint64(load(key, 0, 0)) & _LOW, np.uint64(load(key, 1, 0)) & _LOW
    third, fourth = np.uint64(sample) & _LOW, np.uint64(step) & _LOW
    tag = np.uint64(digit) << _SHIFT
    for j in range(calls):
        words[0, j] = np.uint64(0)
        words[1, j] = np.uint64(n32 + j) | tag
        words[2, j] = third
        words[3, j] = fourth
    for _ in range(ROUNDS):
        for j in range(calls):
            p0 = _M0 * words[0, j]
            p1 = _M1 * words[2, j]
            words[0, j] = (p1 >> _HALF) ^ words[1, j] ^ k0
            words[2, j] = (p0 >> _HALF) ^ words[3, j] ^ k1
            words[1, j] = p1 & _LOW
            words[3, j] = p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW


@inlined
def _fill_dropped(
    scratch: int, key: int, unit: int, count: int, sample: int, step: int, keep: int, bits: int
) -> None:
    """Bytes of ``count`` units from ``unit`` on, a multiple of 128; 1 drops a unit."""
    words = carray(_pointer(scratch), (4, CALLS), np.uint64)
    held = carray(_pointer(scratch + _HELD_AT), (4, CALLS), np.uint32)
    dropped = carray(_pointer(scratch + _BYTES_AT), UNITS, np.uint8)
    needed = (count + 127) // 128
    calls = (needed + _VECTOR - 1) // _VECTOR * _VECTOR
    for w in range(4):
        for j in range(calls):
            held[w, j] = 0
    for i in range(bits):  # Horner's rule, from the last digit on
        _words(words, key, unit // 128, bits - 1 - i, sample, step, calls)
        if (keep >> i) & 1:
            for w in range(4):
                for j in range(calls):
                    held[w, j] |= np.uint32(words[w, j])
        else:
            for w in range(4):
                for j in range(calls):
                    held[w, j] &= np.uint32(words[w, j])
    for j in range(needed):
        a, b, c, d = ~held[0, j], ~held[1, j], ~held[2, j], ~held[3, j]
        for n in range(32):
            at, bit = 128 * j + 4 * n, np.uint32(n)
            dropped[at] = (a >> bit) & _ONE
            dropped[at + 1] = (b >> bit) & _ONE
            dropped[at + 2] = (c >> bit) & _ONE
            dropped[at + 3] = (d >> bit) & _ONE


@inlined
def _drop_line(
    out: int, x: int, dropped: int, count: int, out_step: int, x_step: int, step: int, scale: Any
) -> None:
    """``count`` elements; bytes ``step`` apart, 0 for one byte of all."""
    zero = scale - scale
    if out_step == 1 and x_step == 1 and step == 1:
        for i in range(count):
            value = load(x, i, scale) * scale
            store(out, i, zero if load(dropped, i, np.uint8(0)) else value)
    elif out_step == 1 and x_step == 1 and step == 0:
        if load(dropped, 0, np.uint8(0)):
            for i in range(count):
                store(out, i, zero)
        else:
            for i in range(count):
                store(out, i, load(x, i, scale) * scale)
    else:
        for i in range(count):
            value = load(x, i * x_step, scale) * scale
            store(out, i * out_step, zero if load(dropped, i * step, np.uint8(0)) else value)


@compiled
def run(
    scratch: int,
    counter: int,
    P: int,
    S: int,
    U: int,
    V: int,
    by_channel: int,
    x: int,
    x_p: int,
    x_s: int,
    x_u: int,
    x_v: int,
    out: int,
    out_p: int,
    out_s: int,
    out_u: int,
    out_v: int,
    key: int,
    samples: int,
    passes: int,
    keep: int,
    bits: int,
    scale: Any,
) -> None:
    """Take and do tasks until none is left; addresses, strides in elements."""
    size = bytes_of(scale)
    units = U if by_channel else U * V
    blocks = (units + UNITS - 1) // UNITS
    dropped = scratch + _BYTES_AT
    while True:
        task = next_task(counter)
        if task >= P * S * blocks:
            break
        row, first = task // blocks, task % blocks * UNITS
        p, s = row // S, row % S
        count = min(UNITS, units - first)
        sample, step = load(samples, s, 0), load(passes, p, 0)
        _fill_dropped(scratch, key, first, count, sample, step, keep, bits)
        source = x + (p * x_p + s * x_s) * size
        target = out + (p * out_p + s * out_s) * size
        if by_channel:
            source += first * x_u * size
            target += first * out_u * size
            if x_u == 1 and out_u == 1:
                for v in range(V):
                    at, to = source + v * x_v * size, target + v * out_v * size
                    _drop_line(to, at, dropped, count, 1, 1, 1, scale)
            else:
                for u in range(count):
                    at, to = source + u * x_u * size, target + u * out_u * size
                    _drop_line(to, at, dropped + u, V, out_v, x_v, 0, scale)
        elif x_v == 1 and out_v == 1 and x_u == V and out_u == V:
            at, to = source + first * size, target + first * size
            _drop_line(to, at, dropped, count, 1, 1, 1, scale)
        else:
            done = 0
            while done < count:
                u, v = (first + done) // V, (first + done) % V
                run_length = min(V - v, count - done)
                at = source + (u * x_u + v * x_v) * size
                to = target + (u * out_u + v * out_v) * size
                _drop_line(to, at, dropped + done, run_length, out_v, x_v, 1, scale)
                done += run_length
