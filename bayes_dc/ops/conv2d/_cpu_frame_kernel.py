"""Images into memory of their own with zeros around them.

Shapes      t [P, B, n0, n1, n2], any strides; out [P · B, N0, N1, N2], contiguous
Task        one n0 of one image
Order       n2 are neighbours in ``out``; where n1 are so in t, 8 × 8 elements are transposed at a
            time, and up to 7 of n2 behind the last repeat it: there must be room for them

Addresses and ``tag`` as in ``ops/_cpu_emit.py``.
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, clear, load, next_task, store
from bayes_dc.ops._cpu_interleave import ROWS, interleave
from bayes_dc.ops.conv2d._cpu_ir import WIDTH, copy_row
from bayes_dc.rng.numba_jit import compiled, inlined


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    return ROWS * 8


@inlined
def _copy_line(dst: int, src: int, step: int, count: int, tag: Any) -> None:
    """``count`` elements, ``step`` apart in ``src``."""
    size = bytes_of(tag)
    whole = count // WIDTH * WIDTH if step == 1 else 0
    for k in range(0, whole, WIDTH):
        copy_row(dst + k * size, src + k * size, tag)
    for k in range(whole, count):
        store(dst, k, load(src, k * step, tag))


@compiled
def run(
    scratch: int,
    counter: int,
    P: int,
    B: int,
    t: int,
    t_p: int,
    t_b: int,
    t_0: int,
    t_1: int,
    t_2: int,
    n0: int,
    n1: int,
    n2: int,
    low0: int,
    low1: int,
    low2: int,
    N0: int,
    N1: int,
    N2: int,
    out: int,
    transposed: int,
    tag: Any,
) -> None:
    """Take and do tasks until none is left; addresses, strides in elements."""
    size = bytes_of(tag)
    while True:
        task = next_task(counter)
        if task >= P * B * N0:
            break
        image, i = task // N0, task % N0 - low0
        target = out + task * N1 * N2 * size
        if i < 0 or i >= n0:
            clear(target, N1 * N2, tag)
            continue
        source = t + (image // B * t_p + image % B * t_b + i * t_0) * size
        clear(target, low1 * N2, tag)
        lines = target + low1 * N2 * size
        clear(lines + n1 * N2 * size, (N1 - low1 - n1) * N2, tag)
        if transposed:
            for k in range(0, n2, ROWS):
                for r in range(ROWS):
                    store(scratch, r, source + min(k + r, n2 - 1) * t_2 * size)
                interleave(lines + k * size, N2, scratch, n1, tag)
        else:
            for j in range(n1):
                line = lines + j * N2 * size
                clear(line, low2, tag)
                _copy_line(line + low2 * size, source + j * t_1 * size, t_2, n2, tag)
                clear(line + (low2 + n2) * size, N2 - low2 - n2, tag)
