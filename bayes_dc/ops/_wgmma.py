"""What the Hopper kernels of every op share: layouts of wgmma, and mask words in shared memory.

wgmma takes its first operand from registers. A thread then holds weights of a few outputs and
inputs, and needs one or two bits of a word: words are made by all threads, one Philox call each,
put into shared memory, and read in the layout of the weights.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
def _row_bases(BM, WARPS, TRANSPOSED):
    """Bases of the outputs' axis that are not those of a fragment of 16: registers, warps.

    The two fragments of a thread in a first operand lie in one word where they can: the word is
    shifted once for both.
    """
    warps = doublings(16, 16 * WARPS)
    others = doublings(16 * WARPS, BM)
    if others and not TRANSPOSED:
        return [16, *others[1:]], [2 * m for m in warps]
    return others, warps


@gluon.constexpr_function
def rows_layout(BM, BC, WARPS, SIZE, TRANSPOSED):
    """Layout [BM, BC] of weights that ``as_operand`` makes wgmma's first operand for free."""
    return gl.DistributedLinearLayout(*_bases(BM, BC, WARPS, SIZE, TRANSPOSED), [BM, BC])


@gluon.constexpr_function
def _bases(BM, BC, WARPS, SIZE, TRANSPOSED):
    """Where the next bit of the register, lane and warp number moves (m, c)."""
    if SIZE == 16:
        registers, lanes, width = [[0, 1], [8, 0], [0, 8]], [[0, 2], [0, 4]], 16
    else:
        registers, lanes, width = [[8, 0], [0, 4]], [[0, 1], [0, 2]], 8
    others, warps = _row_bases(BM, WARPS, TRANSPOSED)
    registers += [[0, c] for c in doublings(width, BC)]
    registers += [[m, 0] for m in others]
    lanes += [[m, 0] for m in (1, 2, 4)]
    return registers, lanes, [[m, 0] for m in warps], []


@gluon.constexpr_function
def spread_rows_layout(BM, BC, WARPS, SIZE, TRANSPOSED):
    """``rows_layout`` with the axis of outputs split into words."""
    bases = _bases(BM, BC, WARPS, SIZE, TRANSPOSED)
    if TRANSPOSED:
        split = [[[m, c // 32, c % 32] for m, c in axis] for axis in bases]
        return gl.DistributedLinearLayout(*split, [BM, BC // 32, 32])
    split = [[[m // 32, m % 32, c] for m, c in axis] for axis in bases]
    return gl.DistributedLinearLayout(*split, [BM // 32, 32, BC])


@gluon.constexpr_function
def _interleaved(BM, WARPS, TRANSPOSED):
    return BM >= 32 * WARPS and not TRANSPOSED


@gluon.jit
def as_operand(w, A: gl.constexpr, TRANSPOSED: gl.constexpr):
    """The weights in ``rows_layout`` as wgmma's first operand, rows in the order of its warps."""
    BM: gl.constexpr = w.shape[0]
    BC: gl.constexpr = w.shape[1]
    WARPS: gl.constexpr = gl.num_warps()
    if _interleaved(BM, WARPS, TRANSPOSED):
        w = gl.reshape(w, [BM // (32 * WARPS), WARPS, 2, 16, BC])
        w = gl.reshape(gl.permute(w, (0, 2, 1, 3, 4)), [BM, BC])
    return gl.convert_layout(w, A, assert_trivial=True)


@gluon.jit
def in_order(acc, TRANSPOSED: gl.constexpr):
    """The rows of a product of ``as_operand``'s weights in the order of the outputs."""
    BM: gl.constexpr = acc.shape[0]
    BR: gl.constexpr = acc.shape[1]
    WARPS: gl.constexpr = gl.num_warps()
    if _interleaved(BM, WARPS, TRANSPOSED):
        acc = gl.reshape(acc, [BM // (32 * WARPS), 2, WARPS, 16, BR])
        acc = gl.reshape(gl.permute(acc, (0, 2, 1, 3, 4)), [BM, BR])
    return acc


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
    n32 = first_n32 + word + at * NEXT_N32 + quad * 0
    k4 = first_k4 + quad + at * NEXT_K4 + word * 0
    store_words(words, n32, k4, k0, k1, sample, step, KEEP, BITS)


@gluon.jit
def store_words(
    words, n32, k4, k0, k1, sample, step, KEEP: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """Write the words at ``n32``, ``k4``, ``sample`` [entries, outputs / 32, inputs / 4]."""
    n32 = n32.to(gl.uint32)
    nil = (n32 * 0).to(gl.int32)
    d0, d1, d2, d3 = mask_words(
        k0, k1, k4.to(gl.uint32), n32, sample + n32 * 0, step, KEEP, BITS, nil, True
    )
    # join appends a dimension: [..., i, j] of the outer and inner one is word 2 i + j.
    every = gl.join(gl.join(d0, d2), gl.join(d1, d3))
    words.store(gl.reshape(every, words.shape))


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


@gluon.jit
def select_rounded(w, word, byte):
    """``select`` of weights that ``round_tile`` has rounded: once, for several masks."""
    if w.dtype.primitive_bitwidth == 16:
        return select(w, word, byte)
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 t; prmt.b32 t, $2, $2, $3; and.b32 $0, $1, t; }",
            "=r,r,r,r",
            [w, word, 0x8888 + 0x1111 * byte],
            dtype=gl.float32,
            is_pure=True,
            pack=1,
        )


@gluon.jit
def round_tile(w):
    """``w``, float32 rounded to TensorFloat-32, as ``select`` does."""
    if w.dtype.primitive_bitwidth == 16:
        return w
    else:
        return gl.inline_asm_elementwise(
            "cvt.rna.tf32.f32 $0, $1;", "=r,f", [w], dtype=gl.int32, is_pure=True, pack=1
        ).to(gl.float32, bitcast=True)


@gluon.constexpr_function
def shape_of(layout):
    """Shape of the tensors that a linear layout describes."""
    return layout.shape


@gluon.jit
def spread_words(words, L: gl.constexpr, SPREAD: gl.constexpr, TRANSPOSED: gl.constexpr):
    """The words in shared memory of weights in layout ``L``, which SPREAD describes: one each."""
    if TRANSPOSED:
        word = words.permute((1, 0)).load(gl.SliceLayout(2, SPREAD))[:, :, None]
    else:
        word = words.load(gl.SliceLayout(1, SPREAD))[:, None, :]
    word, _ = gl.broadcast(word, gl.zeros(shape_of(SPREAD), gl.uint32, SPREAD))
    if TRANSPOSED:
        word = gl.reshape(word, [word.shape[0], word.shape[1] * 32])
    else:
        word = gl.reshape(word, [word.shape[0] * 32, word.shape[2]])
    return gl.convert_layout(word, L, assert_trivial=True)


@gluon.jit
def mask_by(w, word, shift, byte, ROUNDED: gl.constexpr = False):
    """``w`` where its bit of ``word``, of ``spread_words``, is set; ROUNDED: by ``round_tile``."""
    word = shifted(word, (word * 0 + 1) << shift)
    byte = byte + (word * 0).to(gl.int32)
    if ROUNDED:
        return select_rounded(w, word, byte)
    else:
        return select(w, word, byte)


@gluon.jit
def mask_tile(
    w, word, shift, byte, SPREAD: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """w, in the layout SPREAD describes, where the bits of ``word`` in shared memory are set."""
    L: gl.constexpr = w.type.layout
    word = spread_words(word, L, SPREAD, TRANSPOSED)
    return mask_by(w, word, shift, byte)


@gluon.jit
def shifted(word, power):
    """Shift ``word`` left by the logarithm of ``power``, beside the pipe that selections fill."""
    return gl.inline_asm_elementwise(
        "mul.lo.u32 $0, $1, $2;", "=r,r,r", [word, power], dtype=gl.uint32, is_pure=True, pack=1
    )


@gluon.jit
def finish_rows(y, factors_ptr, summands_ptr, m, M, EPILOGUE: gl.constexpr):
    """``y`` [m, …] after the epilogue of its outputs ``m``; see ``_epilogue.py``."""
    if EPILOGUE & 1:
        factors = gl.load(factors_ptr + m, mask=m < M, other=0)
        y *= factors.to(gl.float32)[:, None]
    if EPILOGUE & 2:
        summands = gl.load(summands_ptr + m, mask=m < M, other=0)
        y += summands.to(gl.float32)[:, None]
    if EPILOGUE & 4:
        # Not a maximum: a NaN stays one.
        y = gl.where(y < 0, 0.0, y)
    return y
