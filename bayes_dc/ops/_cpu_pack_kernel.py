"""Weights packed for the CPU kernels: those of 32 outputs side by side.

Shapes      w [groups · N, KH, KW, C], any strides; out [groups, cdiv(N, 32), KH · KW · C, 32]
Task        32 outputs; lanes beyond the last output are 0
Order       as the weights of an output lie in memory, so that both sides are read in lines

Addresses and ``tag`` as in ``_cpu_emit.py``.
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, load, next_task, store
from bayes_dc.ops._cpu_interleave import ROWS, interleave
from bayes_dc.rng.numba_jit import compiled

WIDTH = 32
"""Outputs of a tile."""


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    return ROWS * 8


@compiled
def run(
    scratch: int,
    counter: int,
    w: int,
    w_n: int,
    w_h: int,
    w_v: int,
    w_c: int,
    out: int,
    groups: int,
    N: int,
    KH: int,
    KW: int,
    C: int,
    tag: Any,
) -> None:
    """Take and do tasks until none is left; addresses, strides in elements."""
    size = bytes_of(tag)
    tiles = (N + WIDTH - 1) // WIDTH
    while True:
        task = next_task(counter)
        if task >= groups * tiles:
            break
        group, tile = task // tiles, task % tiles
        lanes = min(WIDTH, N - tile * WIDTH)
        source = w + (group * N + tile * WIDTH) * w_n * size
        target = out + task * KH * KW * C * WIDTH * size
        whole = lanes // ROWS * ROWS if w_c == 1 else 0
        for n0 in range(0, whole, ROWS):
            for h in range(KH):
                for v in range(KW):
                    for i in range(ROWS):
                        store(scratch, i, source + ((n0 + i) * w_n + h * w_h + v * w_v) * size)
                    place = target + ((h * KW + v) * C * WIDTH + n0) * size
                    interleave(place, WIDTH, scratch, C, tag)
        for c in range(C):
            for h in range(KH):
                for v in range(KW):
                    at = h * w_h + v * w_v + c * w_c
                    place = target + ((h * KW + v) * C + c) * WIDTH * size
                    for n in range(whole, lanes):
                        store(place, n, load(source, n * w_n + at, tag))
                    for n in range(lanes, WIDTH):
                        store(place, n, tag - tag)
