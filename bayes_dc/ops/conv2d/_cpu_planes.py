"""DropConnect convolution on the CPU: the forward of few outputs, whose lanes are positions.

    out[r, n] = relu?((s · Σ_q D w[q, n] · source[r, q] + b[n]) · f[n] + t[n])

or the largest of 2 × 2 such: the results of ``_cpu_gather.py``, bit for bit, where a step of one
position is one element in the source and in ``out``. Positions are counted along a plane of the
source, so that those between the end of a line and the next line are computed too, and dropped.

Task        up to 4 masks × some bands of lines of their images, one group of channels
Band        lines that hold up to 1024 positions of a plane, an even number where it pools
Blocking    the masked weights of an output, up to 256, × 32 lanes; 48 positions × 8 outputs of
            sums in registers; the sums of a band, 8 outputs, in a buffer
Mask        on the weights, once for each (task, mask); none if p has no digits
Order       q ascending, 128 to a chain, the chains added up in order; the same for any tasks
Scratch     80 KB per thread
Limits      float32; 32 outputs of a group, 256 weights of an output, stride 1
"""

from typing import Any

from bayes_dc.ops._cpu_emit import LANES, bytes_of, next_task
from bayes_dc.ops.conv2d._cpu_ir import WIDTH, drop_outputs
from bayes_dc.ops.conv2d._cpu_planes_ir import (
    OUTPUTS,
    TILE,
    copy_line,
    finish_line,
    pool_line,
    sum_over_planes_of_2,
    sum_over_planes_of_4,
    sum_over_planes_of_6,
    sum_over_planes_of_8,
)
from bayes_dc.ops.conv2d._cpu_tables import (
    DEPTH,
    IDS_BYTES,
    WORDS_BYTES,
    table_ids,
    table_words,
)
from bayes_dc.rng.numba_jit import compiled, inlined
from bayes_dc.rng.numba_rng import GROUPS

TERMS = 2 * DEPTH
"""Most weights of an output."""
POSITIONS = 1024
"""Most positions of a band."""

_STEP = TILE + POSITIONS + TILE
"""Elements from the sums of an output to those of the next: room before and behind."""


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    words = TERMS // DEPTH * WORDS_BYTES
    return IDS_BYTES + words + (TERMS * WIDTH + OUTPUTS * _STEP) * size


@inlined
def _sum_tile(
    sums: int, outputs: int, weights: int, source: int, offsets: int, terms: int, tag: Any
) -> None:
    """Sums of 48 positions and of 2, 4, 6 or 8 outputs, in chains."""
    step = _STEP * bytes_of(tag)
    for first in range(0, terms, DEPTH):
        count, fresh = min(DEPTH, terms - first), 1 if first == 0 else 0
        w, at = weights + first * WIDTH * bytes_of(tag), offsets + first * 8
        if outputs == 2:
            sum_over_planes_of_2(sums, step, w, source, at, count, fresh, tag)
        elif outputs == 4:
            sum_over_planes_of_4(sums, step, w, source, at, count, fresh, tag)
        elif outputs == 6:
            sum_over_planes_of_6(sums, step, w, source, at, count, fresh, tag)
        else:
            sum_over_planes_of_8(sums, step, w, source, at, count, fresh, tag)


@compiled
def run(
    scratch: int,
    counter: int,
    task_bands: int,
    task_masks: int,
    masks: int,
    S: int,
    images: int,
    band: int,
    I: int,
    J: int,
    source: int,
    source_p: int,
    source_s: int,
    source_b: int,
    source_i: int,
    source_g: int,
    out: int,
    out_p: int,
    out_s: int,
    out_b: int,
    out_i: int,
    out_n: int,
    channels: int,
    groups: int,
    weights: int,
    bias: int,
    factors: int,
    summands: int,
    relu: int,
    pool: int,
    terms: int,
    places: int,
    offsets: int,
    key: int,
    sample_ids: int,
    pass_ids: int,
    keep: int,
    bits: int,
    scale: Any,
) -> None:
    """Take and do tasks until none is left; addresses, strides in elements."""
    size = bytes_of(scale)
    ids = scratch
    words = ids + IDS_BYTES
    masked = words + TERMS // DEPTH * WORDS_BYTES
    sums = masked + (TERMS * WIDTH + TILE) * size
    bands = (I + band - 1) // band
    chunks = (images * bands + task_bands - 1) // task_bands
    tasks = (masks + task_masks - 1) // task_masks * chunks * groups
    affine = 1 if factors != 0 else 0
    two = 2 if pool else 1

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        group = task % groups
        band0 = task // groups % chunks * task_bands
        mask0 = task // groups // chunks * task_masks
        units = min(task_masks, masks - mask0)
        n0 = group * channels
        straddles = 1 if n0 % 32 + channels > 32 else 0
        own = group * WIDTH * size
        all_weights = weights + own * terms
        if bits != 0:
            table_ids(ids, mask0, masks, S, sample_ids, pass_ids)
            for first in range(0, terms, DEPTH):
                table_words(
                    words + first // DEPTH * WORDS_BYTES,
                    places,
                    first,
                    min(DEPTH, terms - first),
                    units,
                    key,
                    n0 // 32,
                    straddles,
                    ids,
                    keep,
                    bits,
                )
        for u in range(units):
            p, s = (mask0 + u) // S, (mask0 + u) % S
            kept = all_weights
            if bits != 0:
                kept = masked
                for first in range(0, terms, DEPTH):
                    low = words + first // DEPTH * WORDS_BYTES + u * DEPTH * 4
                    drop_outputs(
                        masked + first * WIDTH * size,
                        all_weights + first * WIDTH * size,
                        low,
                        low + straddles * GROUPS * DEPTH * 4,
                        n0 % 32,
                        min(DEPTH, terms - first),
                        scale,
                    )
            for item in range(band0, min(band0 + task_bands, images * bands)):
                b, i = item // bands, item % bands * band
                lines = min(band, I - i)
                count = (lines - 1) * source_i + J
                start = p * source_p + s * source_s + b * source_b + i * source_i
                at = source + (start + group * source_g) * size
                start = p * out_p + s * out_s + b * out_b + i // two * out_i
                for part in range(0, channels, OUTPUTS):
                    outputs = min(OUTPUTS, channels - part)
                    even = (outputs + 1) // 2 * 2
                    tile = kept + part * size
                    for r in range(0, count, TILE):
                        # The last tile ends with the band: nothing behind the image is read.
                        r = min(r, count - TILE)
                        _sum_tile(sums + r * size, even, tile, at + r * size, offsets, terms, scale)
                    for n in range(outputs):
                        line = sums + n * _STEP * size
                        number = own + (part + n) * size
                        finish_line(
                            line,
                            (count + LANES - 1) // LANES,
                            bias + number,
                            factors + number if affine else bias + number,
                            summands + number if affine else bias + number,
                            affine,
                            relu,
                            scale,
                        )
                        target = out + (start + (n0 + part + n) * out_n) * size
                        for _ in range(lines // two):
                            if pool:
                                below = line + source_i * size
                                pool_line(line, below, (J // 2 + LANES - 1) // LANES, scale)
                            copy_line(target, line, J // two, scale)
                            line += two * source_i * size
                            target += out_i * size
