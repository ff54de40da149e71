"""What the Hopper kernels share: layouts of wgmma, and mask words in shared memory.

wgmma takes its first operand from registers. A thread then holds weights of a few outputs and
inputs, and needs one or two bits of a word: words are made by all threads, one Philox call each,
put into shared memory, and read in the layout of the weights.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from bayes_dc.rng.device import mask_words


@gluon.constexpr_function
def doublings(first, end):
    """first, 2 · first, … below ``end``."""
    values = []
    while first < end:
        values.append(first)
        first *= 2
    return values


@gluon.constexpr_function
def spread_layout(BM, BC, WARPS, SIZE, TRANSPOSED):
    """Layout of wgmma's first operand [BM, BC] with the axis of outputs split into words.

    Each basis is where the next bit of the register, lane or warp number moves (m, c).
    """
    if SIZE == 16:
        registers, lanes, width = [(0, 1), (8, 0), (0, 8)], [(0, 2), (0, 4)], 16
    else:
        registers, lanes, width = [(8, 0), (0, 4)], [(0, 1), (0, 2)], 8
    registers += [(0, c) for c in doublings(width, BC)]
    registers += [(m, 0) for m in doublings(16 * WARPS, BM)]
    lanes += [(m, 0) for m in (1, 2, 4)]
    warps = [(m, 0) for m in doublings(16, 16 * WARPS)]
    if TRANSPOSED:
        bases = [[[m, c // 32, c % 32] for m, c in axis] for axis in (registers, lanes, warps)]
        return gl.DistributedLinearLayout(*bases, [], [BM, BC // 32, 32])
    bases = [[[m // 32, m % 32, c] for m, c in axis] for axis in (registers, lanes, warps)]
    return gl.DistributedLinearLayout(*bases, [], [BM // 32, 32, BC])


@gluon.constexpr_function
def product_layout(BN, BK, WARPS):
    """The same for a result [BN, BK], which wgmma lays out like a first operand of 16 bits."""
    return spread_layout(BN, BK, WARPS, 16, False)


@gluon.constexpr_function
def call_layout(WORDS, QUADS, WARPS):
    """One Philox call per thread over [steps, WORDS, QUADS]."""
    quads = min(32, QUADS)
    words = min(32 // quads, WORDS)
    warp_quads = min(WARPS, QUADS // quads)
    warp_words = min(WARPS // warp_quads, WORDS // words)
    return gl.BlockedLayout(
        [1, 1, 1],
        [32 // (quads * words), words, quads],
        [WARPS // (warp_quads * warp_words), warp_words, warp_quads],
        [2, 1, 0],
    )


@gluon.constexpr_function
def steps_per_chunk(WORDS, QUADS, WARPS):
    """Steps whose words keep every thread busy with one call."""
    return max(1, 32 * WARPS // (WORDS * QUADS))


@gluon.jit
def make_words(
    words, first_n32, first_k4, k0, k1, sample, step,
    NEXT_N32: gl.constexpr, NEXT_K4: gl.constexpr, KEEP: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """Write the words of ``words`` [steps, outputs / 32, inputs]; NEXT_…: from step to step."""
    STEPS: gl.constexpr = words.shape[0]
    WORDS: gl.constexpr = words.shape[1]
    QUADS: gl.constexpr = words.shape[2] // 4
    L: gl.constexpr = call_layout(WORDS, QUADS, gl.num_warps())
    at = gl.arange(0, STEPS, gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    word = gl.arange(0, WORDS, gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :, None]
    quad = gl.arange(0, QUADS, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    n32 = (first_n32 + word + at * NEXT_N32 + quad * 0).to(gl.uint32)
    k4 = (first_k4 + quad + at * NEXT_K4 + word * 0).to(gl.uint32)
    d0, d1, d2, d3 = mask_words(k0, k1, k4, n32, sample + n32 * 0, step, KEEP, BITS)
    # join appends a dimension: [..., i, j] of the outer and inner one is word 2 i + j.
    every = gl.join(gl.join(d0, d2), gl.join(d1, d3))
    words.store(gl.reshape(every, [STEPS, WORDS, 4 * QUADS]))


@gluon.jit
def select(w, word, byte):
    """w where the top bit of byte ``byte`` of ``word`` is set, else 0.

    PRMT copies the sign of a byte over the bytes of an element; two 16-bit neighbours make one
    register. An AND rather than a product: a dropped inf or NaN leaves no trace. Float32 is rounded
    to TensorFloat-32; wgmma would cut it off, here as in its other operand.
    """
    if w.dtype.primitive_bitwidth == 16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 t; prmt.b32 t, $2, $3, $4; and.b32 $0, $1, t; }",
            "=r,r,r,r,r,r",
            [w, word, 0xCC88 + 0x1111 * byte],
            dtype=w.dtype,
            is_pure=True,
            pack=2,
        )
    else:
        return gl.inline_asm_elementwise(
            """{ .reg .b32 t, f; cvt.rna.tf32.f32 f, $1;
            prmt.b32 t, $2, $2, $3; and.b32 $0, f, t; }""",
            "=r,f,r,r",
            [w, word, 0x8888 + 0x1111 * byte],
            dtype=gl.int32,
            is_pure=True,
            pack=1,
        ).to(gl.float32, bitcast=True)


@gluon.constexpr_function
def shape_of(layout):
    """Shape of the tensors that a linear layout describes."""
    return layout.shape


@gluon.jit
def masked_weights(
    tiles, ready, words, shift, byte, at, steps,
    A: gl.constexpr, SPREAD: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The weights of step ``at`` as wgmma's first operand; anything from ``steps`` on."""
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.wait(ready.index(at % STAGES), at // STAGES & 1, pred=at < steps)
    word = words.index(at % words.shape[0])
    if TRANSPOSED:
        w = tiles.index(at % STAGES).permute((1, 0)).load(A)
        word = word.permute((1, 0)).load(gl.SliceLayout(2, SPREAD))[:, :, None]
    else:
        w = tiles.index(at % STAGES).load(A)
        word = word.load(gl.SliceLayout(1, SPREAD))[:, None, :]
    word, _ = gl.broadcast(word, gl.zeros(shape_of(SPREAD), gl.uint32, SPREAD))
    word = gl.convert_layout(gl.reshape(word, w.shape), A, assert_trivial=True) << shift
    return select(w, word, byte + (word * 0).to(gl.int32))
