"""Weight gradient with masks shared by R rows on Hopper's tensor cores.

    out[n, k] = s · Σ_g D[g, n, k] · Σ_r dy[g, r, n] · x[g, r, k]

Shapes      dy [P, S, R, N], x [P, S, R, K] by TMA: unit stride along the last dimension (16
            bits) or along r (float32: wgmma reads TensorFloat-32 along the contraction only),
            16-byte aligned; out [N, K] or [splits, N, K] float32.
Mask        words of rng/SPEC.md v1, applied to the products of a group as they are added.
Tile        [BN, BK]. Two sets of products: those of one group are masked and added while the next
            group is multiplied.
Grid        cdiv(N, BN) · cdiv(K, BK) · splits programs, k fastest.
Precision   bfloat16, float16 or TensorFloat-32 products, float32 sums; s once, at the end.
Order       a program adds its run of groups in ascending order, r ascending in a group.
Cost        2·R operations, 2 instructions and 1/128 Philox call for each weight and group.
Limits      compute capability 9.0; N < 2**29, others < 2**31; offsets of out are int64.
"""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from bayes_dc.ops import _device, _grouped, _launch
from bayes_dc.ops._hopper import block_barrier, by_tma, describe
from bayes_dc.ops._wgmma import make_words, product_layout, shape_of


@gluon.jit
def fetch_rows(
    gy_desc, x_desc, left, right, ready, first_g, S, gy_p, gy_s, x_p, x_s, n0, k0,
    at, per_group, steps, ALONG: gl.constexpr,
):  # fmt: skip
    """Start the copies of step ``at``, none from ``steps`` on; beyond the ends zeros arrive."""
    STAGES: gl.constexpr = left.shape[0]
    BR: gl.constexpr = gy_desc.block_type.shape[3 if ALONG else 2]
    BYTES: gl.constexpr = gy_desc.block_type.nbytes + x_desc.block_type.nbytes
    g = first_g + at // per_group
    r = at % per_group * BR
    p = g // S
    s = g - p * S
    inside = at < steps
    barrier = ready.index(at % STAGES)
    mbarrier.expect(barrier, BYTES, pred=inside)
    if ALONG:
        source = [p * gy_p, s * gy_s, n0, r]
        source_x = [p * x_p, s * x_s, k0, r]
    else:
        source = [p * gy_p, s * gy_s, r, n0]
        source_x = [p * x_p, s * x_s, r, k0]
    target = left.index(at % STAGES)
    tma.async_copy_global_to_shared(gy_desc, source, barrier, target, pred=inside)
    target = right.index(at % STAGES)
    tma.async_copy_global_to_shared(x_desc, source_x, barrier, target, pred=inside)


@gluon.jit
def multiply(left, right, ready, products, at, steps, FIRST: gl.constexpr, ALONG: gl.constexpr):
    """Start products + leftᵀ · right of step ``at``, without ``products`` if FIRST."""
    STAGES: gl.constexpr = left.shape[0]
    mbarrier.wait(ready.index(at % STAGES), at // STAGES & 1, pred=at < steps)
    a = left.index(at % STAGES)
    b = right.index(at % STAGES)
    if ALONG:
        b = b.permute((1, 0))
    else:
        a = a.permute((1, 0))
    return warpgroup_mma(a, b, products, use_acc=not FIRST, is_async=True)


@gluon.jit
def add_kept(acc, products, words, bit, SPREAD: gl.constexpr):
    """acc + products where the bit of ``words`` [BN / 32, BK] is set."""
    word = words.load(gl.SliceLayout(1, SPREAD))[:, None, :]
    word, _ = gl.broadcast(word, gl.zeros(shape_of(SPREAD), gl.uint32, SPREAD))
    word = gl.convert_layout(gl.reshape(word, acc.shape), acc.type.layout, assert_trivial=True)
    word, bit = gl.broadcast(word, bit)
    return gl.inline_asm_elementwise(
        """{ .reg .pred p; .reg .b32 t; .reg .f32 f; mov.f32 f, $1;
        and.b32 t, $3, $4; setp.ne.s32 p, t, 0; @p add.rn.f32 f, f, $2; mov.f32 $0, f; }""",
        "=f,f,f,r,r",
        [acc, products, word, bit],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit(
    do_not_specialize=[
        *("S", "groups", "chunk", "gy_p", "gy_s", "x_p", "x_s", "stride_sample", "stride_pass"),
    ]
)
def grouped_dw_kernel(
    gy_desc,
    x_desc,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    N,
    K,
    groups,
    chunk,
    gy_p,
    gy_s,
    x_p,
    x_s,
    stride_sample,
    stride_pass,
    stride_oz,
    stride_on,
    KEEP: gl.constexpr,
    BITS: gl.constexpr,
    SCALE: gl.constexpr,
    ALONG: gl.constexpr,
    STAGES: gl.constexpr,
):
    """BN × BK weights over one run of ``chunk`` groups; ALONG: r is the last dimension.

    ``gy_p`` … ``x_s`` are 0 where all passes or samples share. Groups go in pairs; a second one
    beyond the end of the run multiplies what its stage holds, and is not added.
    """
    WARPS: gl.constexpr = gl.num_warps()
    ELEMENT: gl.constexpr = gy_desc.dtype
    BR: gl.constexpr = gy_desc.block_type.shape[3 if ALONG else 2]
    BN: gl.constexpr = gy_desc.block_type.shape[2 if ALONG else 3]
    BK: gl.constexpr = x_desc.block_type.shape[2 if ALONG else 3]
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [WARPS, 1], [16, BK, 256 // ELEMENT.primitive_bitwidth]
    )
    SPREAD: gl.constexpr = product_layout(BN, BK, WARPS)
    LEFT: gl.constexpr = [BN, BR] if ALONG else [BR, BN]
    RIGHT: gl.constexpr = [BK, BR] if ALONG else [BR, BK]
    GY_TILES: gl.constexpr = [STAGES, 1, 1, LEFT[0], LEFT[1]]
    X_TILES: gl.constexpr = [STAGES, 1, 1, RIGHT[0], RIGHT[1]]
    left = gl.allocate_shared_memory(ELEMENT, GY_TILES, gy_desc.layout)
    right = gl.allocate_shared_memory(ELEMENT, X_TILES, x_desc.layout)
    a_tiles = left._reinterpret(
        ELEMENT, [STAGES, LEFT[0], LEFT[1]], gl.NVMMASharedLayout.get_default_for(LEFT, ELEMENT)
    )
    b_tiles = right._reinterpret(
        ELEMENT, [STAGES, RIGHT[0], RIGHT[1]], gl.NVMMASharedLayout.get_default_for(RIGHT, ELEMENT)
    )
    shared = gl.allocate_shared_memory(
        gl.uint32, [2, 1, BN // 32, BK], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    words = shared._reinterpret(
        gl.uint32, [2, BN // 32, BK], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()

    n_tiles = gl.cdiv(N, BN)
    k_tiles = gl.cdiv(K, BK)
    pid = gl.program_id(0)
    k0 = pid % k_tiles * BK
    n0 = pid // k_tiles % n_tiles * BN
    z = pid // k_tiles // n_tiles
    first_g = z * chunk
    count = gl.minimum(chunk, groups - first_g)
    per_group = gl.cdiv(R, BR)
    steps = count * per_group
    key0 = gl.load(key_ptr).to(gl.uint32)
    key1 = gl.load(key_ptr + 1).to(gl.uint32)
    n = gl.arange(0, BN, gl.SliceLayout(1, MMA))[:, None]
    bit = (n * 0 + 1).to(gl.uint32) << (n % 32).to(gl.uint32)

    block_barrier()
    for ahead in gl.static_range(STAGES - 1):
        fetch_rows(
            gy_desc, x_desc, left, right, ready, first_g, S, gy_p, gy_s, x_p, x_s, n0, k0,
            ahead, per_group, steps, ALONG,
        )  # fmt: skip
    acc = gl.zeros([BN, BK], gl.float32, MMA)
    free = gl.zeros([BN, BK], gl.float32, MMA)
    done = gl.zeros([BN, BK], gl.float32, MMA)
    # Nothing is kept of the products before the first group.
    EVERY: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0])
    words.index(1).store(gl.zeros([BN // 32, BK], gl.uint32, EVERY))
    for first in range(0, count, 2):
        for half in gl.static_range(2):
            j = first + half
            now = j * per_group
            products = multiply(a_tiles, b_tiles, ready, free, now, steps, True, ALONG)
            # Every warp has done with the stage of step now − 1 and sees the words of j − 1.
            block_barrier()
            fetch_rows(
                gy_desc, x_desc, left, right, ready, first_g, S, gy_p, gy_s, x_p, x_s, n0, k0,
                now + STAGES - 1, per_group, steps, ALONG,
            )  # fmt: skip
            acc = add_kept(acc, done, words.index(1 - half), bit, SPREAD)
            g = gl.minimum(first_g + j, groups - 1)
            sample = gl.load(sample_ptr + (g % S).to(gl.int64) * stride_sample).to(gl.uint32)
            step = gl.load(pass_ptr + (g // S).to(gl.int64) * stride_pass).to(gl.uint32)
            make_words(
                shared.index(half), n0 // 32, k0 // 4, key0, key1, sample, step, 0, 0, KEEP, BITS
            )
            products = warpgroup_mma_wait(0, deps=[products])
            for at in range(now + 1, now + per_group):
                products = multiply(a_tiles, b_tiles, ready, products, at, steps, False, ALONG)
                products = warpgroup_mma_wait(1, deps=[products])
                block_barrier()
                fetch_rows(
                    gy_desc, x_desc, left, right, ready, first_g, S, gy_p, gy_s, x_p, x_s, n0, k0,
                    at + STAGES - 1, per_group, steps, ALONG,
                )  # fmt: skip
            free = done
            done = warpgroup_mma_wait(0, deps=[products])
    block_barrier()
    last = gl.where(count % 2 == 0, bit, bit ^ bit)
    acc = add_kept(acc, done, words.index(1), last, SPREAD)
    k = k0 + gl.arange(0, BK, gl.SliceLayout(0, MMA))[None, :]
    n += n0
    out = out_ptr + z.to(gl.int64) * stride_oz
    values = (acc * SCALE).to(out_ptr.dtype.element_ty)
    gl.store(out + n.to(gl.int64) * stride_on + k, values, mask=(n < N) & (k < K))


def suits(gy: Tensor, x: Tensor, out: Tensor, config: _grouped.GroupedConfig) -> bool:
    """Whether the kernel can read and write these tensors in place with this configuration."""
    if gy.dtype == torch.float32:
        gy, x = gy.transpose(2, 3), x.transpose(2, 3)
    return (
        _device.on_hopper(gy.device)
        and _grouped.suits_wgmma_dw(config, gy.dtype)
        and by_tma(gy)
        and by_tma(x)
        and out.stride(-1) == 1
    )


def launch(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    config: _grouped.GroupedConfig,
) -> None:
    """Write the weight gradient, or its splits, into ``out`` [splits, N, K]; ``suits`` holds."""
    P, S, R, N = gy.shape
    K = x.shape[3]
    splits = out.shape[0]
    along = gy.dtype == torch.float32
    blocks = (config.rows, config.outputs), (config.rows, config.inputs)
    if along:
        gy, x = gy.transpose(2, 3), x.transpose(2, 3)
        blocks = (config.outputs, config.rows), (config.inputs, config.rows)
    grid = (triton.cdiv(N, config.outputs) * triton.cdiv(K, config.inputs) * splits,)
    with _launch.on_device_of(gy):
        grouped_dw_kernel[grid](
            describe(gy, *blocks[0]),
            describe(x, *blocks[1]),
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            N,
            K,
            P * S,
            triton.cdiv(P * S, splits),
            *(int(t.stride(d) > 0) for t in (gy, x) for d in (0, 1)),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride()[:2],
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            ALONG=along,
            STAGES=config.stages,
            num_warps=config.warps,
        )
