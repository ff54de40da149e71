"""Parts of the convolution's CPU kernels: tables of rows and ids, words of terms, masked weights.

Addresses and ``tag`` as in ``ops/_cpu_emit.py``.
"""

from typing import Any

from numba import int32

from bayes_dc.ops._cpu_emit import bytes_of, load, store
from bayes_dc.ops.conv2d._cpu_ir import WIDTH, drop_inputs
from bayes_dc.rng.numba_jit import inlined
from bayes_dc.rng.numba_rng import CALLS, GROUPS, INPUTS, fill_dropped
from bayes_dc.rng.spec import WORDS_PER_CALL

DEPTH = 128
"""Terms of one chain of sums."""

BLOCK_BYTES = INPUTS * 4
"""Words of 32 inputs."""
IDS_BYTES = 2 * GROUPS * 8
"""Sample ids and pass ids of 4 masks."""
WORDS_BYTES = 2 * GROUPS * (DEPTH * 4 + BLOCK_BYTES)
"""Two words of every term for 4 masks, and the blocks they are taken from."""


@inlined
def table_ids(ids: int, first: int, count: int, S: int, sample_ids: int, pass_ids: int) -> None:
    """Ids of the masks from ``first`` on; there are ``count`` masks in all, the last repeats."""
    for u in range(GROUPS):
        mask = min(first + u, count - 1)
        store(ids, u, load(sample_ids, mask % S, 0))
        store(ids, GROUPS + u, load(pass_ids, mask // S, 0))


@inlined
def table_rows(
    table: int,
    first: int,
    count: int,
    size: int,
    base: int,
    I: int,
    J: int,
    step_b: int,
    step_i: int,
    step_j: int,
) -> None:
    """Addresses of the positions (b · I + i) · J + j from ``first`` on; up to 8, the last repeats.

    Steps are in elements of ``size`` bytes.
    """
    j = first % J
    i = first // J % I
    b = first // J // I
    r = 0
    while r < count:
        address = base + (b * step_b + i * step_i + j * step_j) * size
        run = min(J - j, count - r)
        for v in range(run):
            store(table, r + v, address + v * step_j * size)
        r += run
        j, i = 0, i + 1
        if i == I:
            i, b = 0, b + 1
    for r in range(count, (count + 7) // 8 * 8):
        store(table, r, load(table, count - 1, 0))


@inlined
def table_windows(table: int, count: int, size: int, step_i: int, step_j: int) -> None:
    """In place of the addresses of windows those of their four positions; ``count`` of them.

    Steps from one position to the next; up to 8, the last repeats.
    """
    for window in range(count // 4 - 1, -1, -1):  # backwards: four lie behind their first
        address = load(table, window, 0)
        for corner in range(4):
            at = address + (corner // 2 * step_i + corner % 2 * step_j) * size
            store(table, 4 * window + corner, at)
    for r in range(count, (count + 7) // 8 * 8):
        store(table, r, load(table, count - 1, 0))


@inlined
def table_words(
    words: int,
    places: int,
    first: int,
    count: int,
    masks: int,
    key: int,
    n32: int,
    both: int,
    ids: int,
    keep: int,
    bits: int,
) -> None:
    """Words ``n32`` and, for ``both``, n32 + 1 of the terms from ``first`` on, whose k rises.

    ``words`` is [2, 4, 128] and room for two blocks; ``places`` holds k of every term.
    """
    room = words + 2 * GROUPS * DEPTH * 4
    current = -1
    for q in range(count):
        k = load(places, first + q, 0)
        block = k // INPUTS
        if block != current:
            current = block
            for word in range(1 + both):
                fill_dropped(
                    room + word * GROUPS * BLOCK_BYTES,
                    BLOCK_BYTES,
                    0,
                    1,
                    1,
                    1,
                    key,
                    block * CALLS,
                    n32 + word,
                    ids,
                    ids + GROUPS * 8,
                    keep,
                    bits,
                )
        inside = k - block * INPUTS
        for word in range(1 + both):
            for u in range(masks):
                source = room + (word * GROUPS + u) * BLOCK_BYTES
                value = load(source, inside, int32(0))
                store(words + (word * GROUPS + u) * DEPTH * 4, q, value)


@inlined
def mask_inputs(
    masked: int,
    weights: int,
    words: int,
    places: int,
    first: int,
    count: int,
    masks: int,
    lane: int,
    n0: int,
    N: int,
    key: int,
    ids: int,
    keep: int,
    bits: int,
    tag: Any,
) -> None:
    """Mask weights [terms, 32 inputs]: bits of one word along terms, words along lanes.

    Term q is output n0 + q % N of a tap whose weights begin at ``places[q]``.
    """
    size = bytes_of(tag)
    q = 0
    while q < count:
        n = n0 + (first + q) % N
        run = min(min(count - q, n0 + N - n), 32 - n % 32)
        k = load(places, first + q, 0) + lane
        fill_dropped(
            words,
            2 * BLOCK_BYTES,
            0,
            1,
            1,
            1 if k % WORDS_PER_CALL == 0 else 2,
            key,
            k // WORDS_PER_CALL,
            n // 32,
            ids,
            ids + GROUPS * 8,
            keep,
            bits,
        )
        for u in range(masks):
            drop_inputs(
                masked + (u * DEPTH + q) * WIDTH * size,
                weights + (first + q) * WIDTH * size,
                words + u * 2 * BLOCK_BYTES + k % WORDS_PER_CALL * 4,
                n % 32,
                run,
                tag,
            )
        q += run
