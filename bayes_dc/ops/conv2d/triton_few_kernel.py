"""DropConnect convolution with few channels: products of one warp, weights kept in registers.

Where an output has few weights and there are few outputs (the first layers of a network), tiles of
the portable kernel are mostly padding, and reading patches takes all the time. Here a program masks
its weights once, keeps them as second operands of `mma.sync`, and passes positions by; patches go
from global memory into the registers of the first operand.

Shapes      x [P, B, H, W, C], channels contiguous, other strides any (0 over P shares the images);
            W [N, KH, KW, C] contiguous; bias [N] or null; out [P, B, OH, OW, N] contiguous,
            with POOL [P, B, OH / 2, OW / 2, N].
Mask        words of rng/SPEC.md v1 at (sample_ids[s], pass_ids[p]), k = (kh, kw, c), one word for
            every k, on weights by selection; none at BITS = 0.
Grid        chunks of ``tiles`` tiles of positions (fastest) · S · passes by PASSES.
Tile        BM positions. DENSE: a row of a patch, KW · C numbers, is contiguous, so that all but a
            few addresses differ from a position's by constants. PASSES > 1, for shared images: a
            patch is read once and multiplied with the weights of all of them.
Pool        POOL: the largest of 2 × 2 results is written. A window's positions are the rows of a
            tile that one thread holds.
Precision   float32 as TensorFloat-32, rounded; bfloat16, float16; sums in float32. s, bias and
            epilogue (_epilogue.py) applied once, at the end.
Order       k ascends inside one program: no atomics, no split; `out` repeats bit for bit.
Cost        2 · P·B·OH·OW · N · K operations, a load of a warp for 32 elements of a patch.
Limits      N ≤ 32; weights fill registers: K · N · PASSES ≤ 3072 in float32, 6144 in 16 bits, with
            K rounded up to whole 16 and N to a power of two from 8 on.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from bayes_dc.ops._wgmma import call_layout, round_tile, select, store_words
from bayes_dc.ops.conv2d.triton_patches import offset_of


@gluon.constexpr_function
def power_of_two(n):
    """The least power of two from ``n`` on."""
    return 1 << max(0, n - 1).bit_length()


@gluon.jit
def find_kernel_row(first, RUN: gl.constexpr, BK: gl.constexpr, L: gl.constexpr):
    """Row of the kernel of weights ``first`` … first + BK − 1, of which RUN make a row."""
    k = first + gl.arange(0, BK, L)
    kh = gl.full([BK], first // RUN, gl.int32, L)
    for row in gl.static_range(first // RUN + 1, (first + BK - 1) // RUN + 1):
        kh += gl.where(k >= row * RUN, 1, 0)
    return kh


@gluon.jit
def make_pass_words(
    words, p0, P, pass_ptr, stride_pass, k0, k1, sample, KEEP: gl.constexpr, BITS: gl.constexpr
):
    """Write the words of ``words`` [passes, 1, inputs] of passes ``p0`` …."""
    PASSES: gl.constexpr = words.shape[0]
    QUADS: gl.constexpr = words.shape[2] // 4
    L: gl.constexpr = call_layout(1, QUADS, gl.num_warps())
    at = gl.arange(0, PASSES, gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    quad = gl.arange(0, QUADS, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    step = gl.load(pass_ptr + gl.where(p0 + at < P, p0 + at, P - 1).to(gl.int64) * stride_pass)
    step = step.to(gl.uint32) + (quad * 0).to(gl.uint32)
    store_words(words, at * 0 + quad * 0, quad + at * 0, k0, k1, sample, step, KEEP, BITS)


@gluon.jit
def load_weights(
    w_ptr, first, K: gl.constexpr, N: gl.constexpr, BK: gl.constexpr, BN: gl.constexpr,
    B: gl.constexpr,
):  # fmt: skip
    """Weights ``first`` … of BN outputs, [BK, BN]."""
    n = gl.arange(0, BN, gl.SliceLayout(0, B))[None, :]
    k = first + gl.arange(0, BK, gl.SliceLayout(1, B))[:, None]
    return gl.load(w_ptr + (n * K + k), mask=(k < K) & (n < N), other=0)


@gluon.jit
def keep_weights(w, word):
    """Weights [BK, BN] whose bits of ``word`` [1, BK] in shared memory are set."""
    B: gl.constexpr = w.type.layout
    n = gl.arange(0, w.shape[1], gl.SliceLayout(0, B))[None, :]
    k = gl.arange(0, w.shape[0], gl.SliceLayout(1, B))[:, None]
    kept = word.permute((1, 0)).load(B) << (7 - n % 8).to(gl.uint32)
    return select(w, kept, n // 8 + k * 0)


@gluon.jit
def load_patches(
    x, down, right, stride_h, stride_w, first, SIZE: gl.constexpr, KH: gl.constexpr,
    KW: gl.constexpr, DH: gl.constexpr, DW: gl.constexpr, BK: gl.constexpr,
    PADDED: gl.constexpr, DENSE: gl.constexpr, WIDE: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Elements ``first`` … of the patches at ``x`` [positions], [positions, BK].

    ``down`` and ``right``: row and column where a patch begins; SIZE: those of an image, channels.
    """
    H: gl.constexpr = SIZE[0]
    W: gl.constexpr = SIZE[1]
    C: gl.constexpr = SIZE[2]
    RUN: gl.constexpr = KW * C
    END: gl.constexpr = W * C if DENSE else W
    L: gl.constexpr = gl.SliceLayout(0, A)
    k = first + gl.arange(0, BK, L)
    kh = find_kernel_row(first, RUN, BK, L)
    if DENSE:
        # A row of a patch is contiguous, and columns need not be told from channels.
        offset = k + kh * (DH * W * C - RUN)
        e = (right * C)[:, None] + (k - kh * RUN)[None, :]
    else:
        kw = (k - kh * RUN) // C
        offset = offset_of(kh * DH, kw * DW, stride_h, stride_w, WIDE) + (k - kh * RUN - kw * C)
        e = right[:, None] + (kw * DW)[None, :]
    source = x[:, None] + offset[None, :]
    if PADDED:
        y = down[:, None] + (kh * DH)[None, :]
        seen = (y >= 0) & (y < H) & (e >= 0) & (e < END) & (k < KH * RUN)[None, :]
        return gl.load(source, mask=seen, other=0)
    elif first + BK > KH * RUN:
        return gl.load(source, mask=(k < KH * RUN)[None, :] & (down >= 0)[:, None], other=0)
    else:
        return gl.load(source)


@gluon.jit
def larger(a, b):
    """The larger of two numbers; NaN if one is."""
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def largest_of_window(y):
    """[4 · U, N] → [U, N] of windows whose results lie as those of ``POOL``'s tiles."""
    WARPS: gl.constexpr = gl.num_warps()
    BN: gl.constexpr = y.shape[1]
    y = gl.reshape(y, [2, WARPS, 2, 8, BN])
    y = gl.reduce(gl.reduce(y, 0, larger), 1, larger)
    return gl.reshape(y, [WARPS * 8, BN])


_RUNTIME = (
    *("P", "S", "images", "chunks", "tiles", "stride_xp", "stride_xb", "stride_xh", "stride_xw"),
    *("stride_b", "stride_sample", "stride_pass"),
)


@gluon.jit(do_not_specialize=_RUNTIME)
def few_channels_kernel(
    x_ptr, w_ptr, b_ptr, key_ptr, sample_ptr, pass_ptr, out_ptr,
    P, S, images, chunks, tiles, stride_xp, stride_xb, stride_xh, stride_xw, stride_b,
    stride_sample, stride_pass,
    H: gl.constexpr, W: gl.constexpr, C: gl.constexpr, OH: gl.constexpr, OW: gl.constexpr,
    N: gl.constexpr, KH: gl.constexpr, KW: gl.constexpr, SH: gl.constexpr, SW: gl.constexpr,
    PH: gl.constexpr, PW: gl.constexpr, DH: gl.constexpr, DW: gl.constexpr,
    KEEP: gl.constexpr, BITS: gl.constexpr, SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    ONE: gl.constexpr, POOL: gl.constexpr, PASSES: gl.constexpr, DENSE: gl.constexpr,
    WIDE: gl.constexpr, ALIGN: gl.constexpr, WIDTH: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr,
    factors_ptr=None, summands_ptr=None, EPILOGUE: gl.constexpr = 0,
):  # fmt: skip
    """``tiles`` · BM positions of one sample in PASSES passes.

    ONE: ``images`` is 1; DENSE: an image is contiguous, and DW is 1; WIDE: its offsets take 64
    bits; ``stride_xp`` and ``stride_xb`` count ALIGN elements.
    """
    WARPS: gl.constexpr = gl.num_warps()
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, WIDTH)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, WIDTH)
    K: gl.constexpr = KH * KW * C
    BK: gl.constexpr = 16
    STEPS: gl.constexpr = (K + BK - 1) // BK
    PADDED: gl.constexpr = PH > 0 or PW > 0
    UH: gl.constexpr = OH // 2 if POOL else OH
    UW: gl.constexpr = OW // 2 if POOL else OW
    UNITS: gl.constexpr = BM // 4 if POOL else BM
    pid = gl.program_id(0)
    chunk = pid % chunks
    s = pid // chunks % S
    p0 = pid // chunks // S * PASSES

    if BITS > 0:
        k0 = gl.load(key_ptr).to(gl.uint32)
        k1 = gl.load(key_ptr + 1).to(gl.uint32)
        sample = gl.load(sample_ptr + s.to(gl.int64) * stride_sample).to(gl.uint32)
        PARTS: gl.constexpr = power_of_two(STEPS)
        words = gl.allocate_shared_memory(
            gl.uint32, [PASSES, 1, PARTS * BK], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
        )
        make_pass_words(words, p0, P, pass_ptr, stride_pass, k0, k1, sample, KEEP, BITS)
        words = words._reinterpret(
            gl.uint32, [PASSES * PARTS, 1, BK], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        )
    weights = ()
    for part in gl.static_range(PASSES):
        for step in gl.static_range(STEPS):
            w = load_weights(w_ptr, step * BK, K, N, BK, BN, B)
            if BITS > 0:
                w = keep_weights(w, words.index(part * PARTS + step))
            else:
                w = round_tile(w)
            weights = weights + (w,)

    # Finishing with a scale above 0 is monotone: the largest results are those of the largest sums.
    POOLED: gl.constexpr = POOL and EPILOGUE & 1 == 0
    sums = gl.zeros([BM, BN], gl.float32, MMA)
    if POOLED:
        sums = largest_of_window(sums)
    m = gl.arange(0, BN, gl.SliceLayout(0, sums.type.layout))
    if HAS_BIAS:
        bias = gl.load(b_ptr + m.to(gl.int64) * stride_b, mask=m < N, other=0)
        bias = bias.to(gl.float32)[None, :]
    if EPILOGUE & 1:
        factors = gl.load(factors_ptr + m, mask=m < N, other=0).to(gl.float32)[None, :]
    if EPILOGUE & 2:
        summands = gl.load(summands_ptr + m, mask=m < N, other=0).to(gl.float32)[None, :]

    r = gl.arange(0, BM, gl.SliceLayout(1, A))
    count = images * (UH * UW)
    source = x_ptr + (p0.to(gl.int64) * stride_xp + s.to(gl.int64) * images * stride_xb) * ALIGN
    for tile in range(chunk * tiles, gl.minimum(chunk * tiles + tiles, gl.cdiv(count, UNITS))):
        if POOL:
            unit = tile * UNITS + r // 16 % WARPS * 8 + r % 8
        else:
            unit = tile * UNITS + r
        unit = gl.where(unit < count, unit, count - 1).to(gl.uint32)
        line = unit // UW
        j = (unit - line * UW).to(gl.int32)
        x = source
        if ONE:
            i = line.to(gl.int32)
        else:
            image = line // UH
            i = (line - image * UH).to(gl.int32)
            x += image.to(gl.int64) * stride_xb * ALIGN
        if POOL:
            i = 2 * i + r // (16 * WARPS)
            j = 2 * j + r // 8 % 2
        down = i * SH - PH
        right = j * SW - PW
        if DENSE:
            x += down * (W * C) + right * C
        else:
            x += offset_of(down, right, stride_xh, stride_xw, WIDE)
        accs = ()
        for _part in gl.static_range(PASSES):
            accs = accs + (gl.zeros([BM, BN], gl.float32, MMA),)
        for step in gl.static_range(STEPS):
            a = load_patches(
                x, down, right, stride_xh, stride_xw, step * BK, (H, W, C), KH, KW, DH, DW, BK,
                PADDED, DENSE, WIDE, A,
            )  # fmt: skip
            a = round_tile(a)
            new = ()
            for part in gl.static_range(PASSES):
                new = new + (mma_v2(a, weights[part * STEPS + step], accs[part]),)
            accs = new
        for part in gl.static_range(PASSES):
            done = largest_of_window(accs[part]) if POOLED else accs[part]
            done = done * SCALE
            if HAS_BIAS:
                done += bias
            if EPILOGUE & 1:
                done *= factors
            if EPILOGUE & 2:
                done += summands
            if EPILOGUE & 4:
                done = larger(done, 0.0)
            if POOL and not POOLED:
                done = largest_of_window(done)
            u = gl.arange(0, UNITS, gl.SliceLayout(1, done.type.layout))[:, None]
            c = gl.arange(0, BN, gl.SliceLayout(0, done.type.layout))[None, :]
            group = (p0 + part).to(gl.int64) * S + s
            target = out_ptr + (group * count + tile * UNITS) * N
            seen = (u < count - tile * UNITS) & (c < N) & (p0 + part < P)
            gl.store(target + (u * N + c), done.to(out_ptr.dtype.element_ty), mask=seen)
