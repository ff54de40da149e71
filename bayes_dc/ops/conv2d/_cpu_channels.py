"""Images with channels first into memory with channels last, for depthwise convolutions.

Task        the channels of one image, a row of pixels and 8 channels at a time
Scratch     8 addresses
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, next_task, store
from bayes_dc.ops._cpu_interleave import ROWS, interleave
from bayes_dc.rng.numba_jit import compiled


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    return ROWS * 8


@compiled
def run(
    scratch: int,
    counter: int,
    images: int,
    B: int,
    H: int,
    W: int,
    C: int,
    t: int,
    t_p: int,
    t_b: int,
    t_h: int,
    t_c: int,
    out: int,
    out_p: int,
    out_b: int,
    out_h: int,
    out_w: int,
    tag: Any,
) -> None:
    """Take and do tasks until none is left; up to 8 channels beyond the last repeat it."""
    size = bytes_of(tag)
    while True:
        task = next_task(counter)
        if task >= images:
            break
        p, b = task // B, task % B
        for h in range(H):
            source = t + (p * t_p + b * t_b + h * t_h) * size
            target = out + (p * out_p + b * out_b + h * out_h) * size
            for c in range(0, C, ROWS):
                for i in range(ROWS):
                    store(scratch, i, source + min(c + i, C - 1) * t_c * size)
                interleave(target + c * size, out_w, scratch, W, tag)
