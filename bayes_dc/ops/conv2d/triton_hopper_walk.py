"""What the Hopper convolution reads: taps in order, copies ahead of their use, words of masks.

A step is 64 channels (128 bytes) of one tap. Where several steps are the taps of a column, their
positions are parts of one box, as many rows higher as the taps reach: it is copied once.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from bayes_dc.ops._wgmma import as_operand, call_layout, mask_tile, round_tile, store_words


@gluon.jit
def tap_at(tap, ah, aw, along, TAPS: gl.constexpr, TRANSPOSED: gl.constexpr):
    """(kh, kw) of the tap with this number; the gradient meets only every STRIDE-th in a phase."""
    STRIDE: gl.constexpr = TAPS[1]
    PH: gl.constexpr = TAPS[2]
    PW: gl.constexpr = TAPS[3]
    w = tap // along
    h = tap - w * along
    if TRANSPOSED and STRIDE > 1:
        h = (ah + PH) % STRIDE + h * STRIDE
        w = (aw + PW) % STRIDE + w * STRIDE
    return h, w


@gluon.jit
def expect_weights(w_desc, ready, at, steps):
    """Say how many bytes the copy of the weights of step ``at`` will bring."""
    STAGES: gl.constexpr = ready.shape[0]
    mbarrier.expect(ready.index(at % STAGES), w_desc.block_type.nbytes, pred=at < steps)


@gluon.jit
def expect_source(
    source_desc, edge_desc, ready, at, steps, IMAGES: gl.constexpr, DOWN: gl.constexpr,
):  # fmt: skip
    """Say how many bytes the copies of the positions of the steps from ``at`` on will bring."""
    SLOTS: gl.constexpr = ready.shape[0]
    EDGE: gl.constexpr = edge_desc.block_type.nbytes if DOWN > 1 else 0
    BOXES: gl.constexpr = IMAGES if DOWN > 1 else 1
    inside = (at < steps) & (at % DOWN == 0)
    BYTES: gl.constexpr = BOXES * (source_desc.block_type.nbytes + EDGE)
    mbarrier.expect(ready.index(at // DOWN % SLOTS), BYTES, pred=inside)


@gluon.jit
def fetch_weights(
    w_desc, tiles, ready, m, walk, at, steps, TAPS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Start the copy of the weights of step ``at``; beyond the ends zeros arrive."""
    ah, aw, along, taps = walk
    KW: gl.constexpr = TAPS[0]
    STAGES: gl.constexpr = tiles.shape[0]
    BC: gl.constexpr = w_desc.block_type.shape[0 if TRANSPOSED else 2]
    inside = at < steps
    barrier = ready.index(at % STAGES)
    chunk = at // taps
    kh, kw = tap_at(at - chunk * taps, ah, aw, along, TAPS, TRANSPOSED)
    if TRANSPOSED:
        block = [chunk * BC, kh * KW + kw, m]
    else:
        block = [m, kh * KW + kw, chunk * BC]
    target = tiles.index(at % STAGES)
    tma.async_copy_global_to_shared(w_desc, block, barrier, target, pred=inside)


@gluon.jit
def fetch_source(
    source_desc, edge_desc, source, ready, corner, C, walk, at, steps,
    IMAGES: gl.constexpr, DOWN: gl.constexpr, TAPS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Start the copies of the positions of the DOWN steps from ``at``, a multiple of DOWN, on.

    Several steps are taps of one column: their boxes are parts of a higher one, ``edge_desc``
    below ``source_desc``.
    """
    image, i, j = corner
    ah, aw, along, taps = walk
    STRIDE: gl.constexpr = TAPS[1]
    PH: gl.constexpr = TAPS[2]
    PW: gl.constexpr = TAPS[3]
    DH: gl.constexpr = TAPS[4]
    DW: gl.constexpr = TAPS[5]
    SHIFT: gl.constexpr = STRIDE // 2
    BOX: gl.constexpr = source_desc.block_type.shape
    BC: gl.constexpr = BOX[4]
    EDGE: gl.constexpr = edge_desc.block_type.shape[1] if DOWN > 1 else 0
    LINES: gl.constexpr = BOX[1] + EDGE
    SLOTS: gl.constexpr = ready.shape[0]
    inside = (at < steps) & (at % DOWN == 0)
    slot = at // DOWN % SLOTS
    barrier = ready.index(slot)
    chunk = at // taps
    c = chunk * BC
    kh, kw = tap_at(at - chunk * taps, ah, aw, along, TAPS, TRANSPOSED)
    if TRANSPOSED:
        # The last of the taps reads the first rows.
        y = (ah + PH - (kh + DOWN - 1) * DH) >> SHIFT
        x = (aw + PW - kw * DW) >> SHIFT
        phase = 0
    else:
        y = kh * DH - PH
        phase = y & SHIFT
        y = y >> SHIFT
        x = kw * DW - PW
        c += (x & SHIFT) * C
        x = x >> SHIFT
    if DOWN == 1:
        here = [image, i + y, phase, j + x, c]
        target = source.index(slot)
        tma.async_copy_global_to_shared(source_desc, here, barrier, target, pred=inside)
    for part in gl.static_range(IMAGES if DOWN > 1 else 0):
        line = (slot * IMAGES + part) * LINES
        here = [image + part, i + y, phase, j + x, c]
        target = source.index(line)._reinterpret(source_desc.dtype, BOX, source_desc.layout)
        tma.async_copy_global_to_shared(source_desc, here, barrier, target, pred=inside)
        here = [image + part, i + y + BOX[1], phase, j + x, c]
        target = source.index(line + BOX[1])._reinterpret(
            source_desc.dtype, edge_desc.block_type.shape, edge_desc.layout
        )
        tma.async_copy_global_to_shared(edge_desc, here, barrier, target, pred=inside)


@gluon.jit
def load_ids(
    key_ptr, sample_ptr, pass_ptr, p, image0, images, stride_sample, stride_pass,
    ENTRIES: gl.constexpr, PARTS: gl.constexpr, WORDS: gl.constexpr, QUADS: gl.constexpr,
    BITS: gl.constexpr,
):  # fmt: skip
    """Key words, ids of the images of a chunk's entries and of pass ``p``, if there are bits."""
    if BITS > 0:
        E: gl.constexpr = gl.SliceLayout(
            1, gl.SliceLayout(2, call_layout(WORDS, QUADS, gl.num_warps()))
        )
        part_image = gl.minimum(image0 + gl.arange(0, ENTRIES, E) % PARTS, images - 1)
        sample = gl.load(sample_ptr + part_image.to(gl.int64) * stride_sample).to(gl.uint32)
        step = gl.load(pass_ptr + p.to(gl.int64) * stride_pass).to(gl.uint32)
        k0 = gl.load(key_ptr).to(gl.uint32)
        k1 = gl.load(key_ptr + 1).to(gl.uint32)
        ids = (k0, k1, sample, step)
    else:
        ids = (0, 0, 0, 0)
    return ids


@gluon.jit
def make_words(
    words, first, m, walk, stride_tap, k0, k1, sample, step,
    PARTS: gl.constexpr, BC: gl.constexpr, TAPS: gl.constexpr, TRANSPOSED: gl.constexpr,
    KEEP: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """Write the words of the steps from ``first`` on.

    ``words`` [steps · PARTS, outputs / 32, inputs]; ``sample`` [steps · PARTS]: the parts' ids.
    """
    ah, aw, along, taps = walk
    KW: gl.constexpr = TAPS[0]
    ENTRIES: gl.constexpr = words.shape[0]
    WORDS: gl.constexpr = words.shape[1]
    QUADS: gl.constexpr = words.shape[2] // 4
    L: gl.constexpr = call_layout(WORDS, QUADS, gl.num_warps())
    entry = gl.arange(0, ENTRIES, gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    word = gl.arange(0, WORDS, gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :, None]
    quad = gl.arange(0, QUADS, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    if ENTRIES == PARTS:
        at = first
    else:
        at = first + entry // PARTS
    chunk = at // taps
    tap = at - chunk * taps
    kh, kw = tap_at(tap, ah, aw, along, TAPS, TRANSPOSED)
    k4 = (kh * KW + kw) * stride_tap
    if TRANSPOSED:
        n32 = chunk * WORDS
        k4 += m // 4
    else:
        n32 = m // 32
        k4 += chunk * QUADS
    zero = entry * 0 + word * 0 + quad * 0
    n32 = n32 + word + zero
    k4 = k4 + quad + zero
    store_words(words, n32, k4, k0, k1, sample[:, None, None], step, KEEP, BITS)


@gluon.jit
def operand(
    right, at, part: gl.constexpr, LINES: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr,
    DOWN: gl.constexpr, BR: gl.constexpr, TAPS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The positions of ``part`` in step ``at``."""
    if DOWN == 1:
        return right.index(at % SLOTS * PARTS + part).permute((1, 0))
    else:
        DH: gl.constexpr = TAPS[4]
        h = at % DOWN
        if TRANSPOSED:
            h = DOWN - 1 - h
        line = at // DOWN % SLOTS * LINES + part * (LINES // PARTS) + h * DH
        BC: gl.constexpr = right.shape[2]
        b = right.index(line)._reinterpret(right.dtype, [BR, BC], right.layout)
        return b.permute((1, 0))


@gluon.jit
def advance(
    at, steps, descriptors, memory, barriers, corner, m, C, walk, stride_tap, ids,
    IMAGES: gl.constexpr, PARTS: gl.constexpr, DOWN: gl.constexpr, CHUNK: gl.constexpr,
    TAPS: gl.constexpr, TRANSPOSED: gl.constexpr, KEEP: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """Make the words of the chunk after that of step ``at``, and start the copies it has room for.

    Every warp must have done with what step ``at`` − 1 read.
    """
    source_desc, edge_desc, w_desc = descriptors
    source, tiles, chunks = memory
    here, ready = barriers
    k0, k1, sample, step = ids
    BC: gl.constexpr = source_desc.block_type.shape[4]
    if BITS > 0:
        c = at // CHUNK + 1
        if at % CHUNK == 0:
            make_words(
                chunks.index(c % 2), c * CHUNK, m, walk, stride_tap, k0, k1, sample, step,
                PARTS, BC, TAPS, TRANSPOSED, KEEP, BITS,
            )  # fmt: skip
    positions = at + (here.shape[0] - 1) * DOWN
    weights = at + ready.shape[0] - 1
    expect_source(source_desc, edge_desc, here, positions, steps, IMAGES, DOWN)
    expect_weights(w_desc, ready, weights, steps)
    fetch_source(
        source_desc, edge_desc, source, here, corner, C, walk, positions, steps,
        IMAGES, DOWN, TAPS, TRANSPOSED,
    )  # fmt: skip
    fetch_weights(w_desc, tiles, ready, m, walk, weights, steps, TAPS, TRANSPOSED)


@gluon.jit
def load_weights(tiles, at, ROWS: gl.constexpr, TRANSPOSED: gl.constexpr):
    """The weights of step ``at``, rows of results."""
    tile = tiles.index(at % tiles.shape[0])
    if TRANSPOSED:
        tile = tile.permute((1, 0))
    return tile.load(ROWS)


@gluon.jit
def next_weights(
    w, tiles, ready, words, shift, byte, at, steps, part: gl.constexpr, PARTS: gl.constexpr,
    A: gl.constexpr, ROWS: gl.constexpr, SPREAD: gl.constexpr, TRANSPOSED: gl.constexpr,
    BITS: gl.constexpr,
):  # fmt: skip
    """The weights of step ``at``, and those of ``part`` as wgmma's first operand.

    Part 2 and those after it take the weights from ``w``. Not part 1: 16-bit values that live
    from one iteration to the next are kept, and moved, one by one.
    """
    STAGES: gl.constexpr = tiles.shape[0]
    if part == 0:
        mbarrier.wait(ready.index(at % STAGES), at // STAGES & 1, pred=at < steps)
    if part <= 1:
        w = load_weights(tiles, at, ROWS, TRANSPOSED)
    if BITS > 0:
        word = words.index((at * PARTS + part) % words.shape[0])
        kept = mask_tile(w, word, shift, byte, SPREAD, TRANSPOSED)
    else:
        kept = round_tile(w)
    return w, as_operand(kept, A, TRANSPOSED)
