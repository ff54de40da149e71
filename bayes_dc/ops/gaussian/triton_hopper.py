"""The fused draws on Hopper: loads, products and normals on warps of their own.

Shapes      x [M, K] (rows of [P, S, R, K] at one distance), w [N, K], squares [N, K] = w² in
            bfloat16, all by TMA: unit stride along k, 16-byte aligned; b [N] or null; out [M, N],
            unit stride along n
Normals     rng/SPEC.md v1, float32. Four warps make them while eight multiply, and hand them over
            in shared memory: mixed into one instruction stream, they would keep the tensor cores
            waiting.
Tile        [128, 128]: x as wgmma's first operand from shared memory for the mean, its squares from
            registers for the variance; those of step i + 1 are made while step i is multiplied
Grid        one program per SM; each takes tiles pid, pid + programs, …, n fastest
Precision   as ``triton_moments``
Order       k ascends inside one program: no atomics, no split; a row's bits do not depend on others
Cost        2·M·N·K multiply-adds and about 45 instructions for each normal, at the same time
Limits      compute capability 9.0; N < 2**26, M < 2**31 − 128
"""

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from bayes_dc.ops import _device, _launch
from bayes_dc.ops._hopper import block_barrier, by_tma, describe, rows_of
from bayes_dc.ops.gaussian.factors import moment_factors
from bayes_dc.ops.gaussian.triton_producers import NOISE_ROWS, load_tiles, make_normals

ROWS, OUTPUTS = 128, 128
"""Tile of one program."""
WARPS, NOISE_WARPS = 8, 4
NOISE_REGISTERS, LOAD_REGISTERS = 80, 24
STAGES = 3
STEP_BYTES = 128
"""Bytes of a row of x in one step: the width of the swizzle."""


@gluon.jit
def squares_of(x, A: gl.constexpr):
    """x² of a tile in shared memory, as wgmma's first operand."""
    v = x.load(A).to(gl.float32)
    return (v * v).to(gl.bfloat16)


@gluon.jit
def add_products(x, xs2, w, ws2, mean, var):
    """Start adding one step to both sums."""
    mean = warpgroup_mma(x, w.permute((1, 0)), mean, is_async=True)
    var = warpgroup_mma(xs2, ws2.permute((1, 0)), var, is_async=True)
    return mean, var


@gluon.jit
def multiply_and_draw(
    xs, ws, ws2, zs, ready, empty, full, free, b_ptr, out_ptr, M, N, stride_b, stride_o,
    tiles_n, tiles, steps,
    MEAN_SCALE: gl.constexpr, VAR_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    """Consumer: sums of every tile, then its draws."""
    STAGES: gl.constexpr = xs.shape[0]
    BM: gl.constexpr = xs.shape[1]
    BN: gl.constexpr = ws.shape[1]
    WARPS: gl.constexpr = gl.num_warps()
    SIZE: gl.constexpr = xs.dtype.primitive_bitwidth
    MEAN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BN, 256 // SIZE])
    VAR: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BN, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, VAR, 2)
    VECTOR: gl.constexpr = 128 // SIZE
    LANES: gl.constexpr = BN // VECTOR
    L: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    at = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        mean = gl.zeros([BM, BN], gl.float32, MEAN)
        var = gl.zeros([BM, BN], gl.float32, VAR)
        stage = at % STAGES
        mbarrier.wait(ready.index(stage), at // STAGES & 1)
        now = squares_of(xs.index(stage), A)
        for _ in range(steps - 1):
            mean, var = add_products(
                xs.index(stage), now, ws.index(stage), ws2.index(stage), mean, var
            )
            at += 1
            following = at % STAGES
            mbarrier.wait(ready.index(following), at // STAGES & 1)
            later = squares_of(xs.index(following), A)
            mean, var, now = warpgroup_mma_wait(0, deps=[mean, var, now])
            block_barrier()  # every warp has done with the stage
            mbarrier.arrive(empty.index(stage), count=1)
            now = later
            stage = following
        mean, var = add_products(xs.index(stage), now, ws.index(stage), ws2.index(stage), mean, var)
        at += 1
        mean, var, now = warpgroup_mma_wait(0, deps=[mean, var, now])
        block_barrier()
        mbarrier.arrive(empty.index(stage), count=1)

        m0 = tile // tiles_n * BM
        n0 = tile % tiles_n * BN
        mbarrier.wait(full, tile // gl.num_programs(0) & 1)
        sigma = gl.sqrt(gl.convert_layout(var, MEAN, assert_trivial=True) * VAR_SCALE)
        y = mean * MEAN_SCALE + sigma * zs.load(MEAN)
        if HAS_BIAS:
            n = n0 + gl.arange(0, BN, gl.SliceLayout(0, MEAN))
            b = gl.load(b_ptr + n.to(gl.int64) * stride_b, mask=n < N, other=0)
            y += b.to(gl.float32)[None, :]
        # Through the memory of the normals into rows that a warp writes in one piece.
        block_barrier()
        zs.store(y)
        block_barrier()
        y = zs.load(L).to(xs.dtype)
        block_barrier()
        mbarrier.arrive(free, count=1)
        m = m0 + gl.arange(0, BM, gl.SliceLayout(1, L))[:, None]
        n = n0 + gl.arange(0, BN, gl.SliceLayout(0, L))[None, :]
        gl.store(out_ptr + m.to(gl.int64) * stride_o + n, y, mask=(m < M) & (n < N))


@gluon.jit(do_not_specialize=["S", "R", "M", "K", "stride_b", "stride_sample", "stride_pass"])
def gaussian_hopper_kernel(
    x_desc,
    w_desc,
    squares_desc,
    b_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    M,
    N,
    K,
    stride_b,
    stride_sample,
    stride_pass,
    stride_o,
    MEAN_SCALE: gl.constexpr,
    VAR_SCALE: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    STAGES: gl.constexpr,
    NOISE_WARPS: gl.constexpr,
    NOISE_REGISTERS: gl.constexpr,
    LOAD_REGISTERS: gl.constexpr,
):
    """Draws [M, N]; the shapes of the blocks are those of the tile."""
    BM: gl.constexpr = x_desc.block_type.shape[0]
    BK: gl.constexpr = x_desc.block_type.shape[1]
    BN: gl.constexpr = w_desc.block_type.shape[0]
    ROWS: gl.constexpr = NOISE_ROWS
    xs = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BM, BK], x_desc.layout)
    ws = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BN, BK], w_desc.layout)
    ws2 = gl.allocate_shared_memory(squares_desc.dtype, [STAGES, BN, BK], squares_desc.layout)
    zs = gl.allocate_shared_memory(gl.float32, [BM, BN], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
    ids = gl.allocate_shared_memory(
        gl.uint32, [3 * BM // ROWS, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    noise = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    for side in gl.static_range(2):
        mbarrier.init(noise.index(side), count=1)
    fence_async_shared()
    block_barrier()
    full = noise.index(0)
    free = noise.index(1)
    tiles_n = gl.cdiv(N, BN)
    tiles = tiles_n * gl.cdiv(M, BM)
    steps = gl.cdiv(K, BK)
    gl.warp_specialize(
        [
            (
                multiply_and_draw,
                (
                    xs, ws, ws2, zs, ready, empty, full, free, b_ptr, out_ptr, M, N, stride_b,
                    stride_o, tiles_n, tiles, steps, MEAN_SCALE, VAR_SCALE, HAS_BIAS,
                ),
            ),
            (
                make_normals,
                (
                    zs, ids, full, free, key_ptr, sample_ptr, pass_ptr, stride_sample,
                    stride_pass, S, R, M, tiles_n, tiles,
                ),
            ),
            (
                load_tiles,
                (
                    x_desc, w_desc, squares_desc, xs, ws, ws2, ready, empty, tiles_n, tiles, steps,
                ),
            ),
        ],
        [NOISE_WARPS, 1],
        [NOISE_REGISTERS, LOAD_REGISTERS],
    )  # fmt: skip


def suits_hopper(x: Tensor, w: Tensor, squares: Tensor, out: Tensor) -> bool:
    """Whether the kernel can read and write these tensors in place, and has enough tiles."""
    rows = rows_of(x)
    tiles = triton.cdiv(out.shape[:3].numel(), ROWS) * triton.cdiv(out.shape[3], OUTPUTS)
    return (
        _device.on_hopper(x.device)
        and rows is not None
        and 2 * tiles > _device.gpu(x.device).processors
        and 2 * out.shape[3] > OUTPUTS
        and x.shape[3] > 0
        and out.is_contiguous()
        and all(by_tma(t) for t in (rows, w, squares))
    )


def launch_hopper(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    squares: Tensor,
) -> None:
    """Write draws into ``out``; ``suits_hopper`` must hold."""
    _, S, R, K = x.shape
    N = out.shape[3]
    M = out.shape[:3].numel()
    inputs = STEP_BYTES // x.element_size()
    tiles = triton.cdiv(M, ROWS) * triton.cdiv(N, OUTPUTS)
    programs = min(tiles, _device.gpu(x.device).processors)
    rows = rows_of(x)
    assert rows is not None
    mean_scale, var_scale = moment_factors(keep, bits, scale)
    with _launch.on_device_of(x):
        gaussian_hopper_kernel[(programs,)](
            describe(rows, ROWS, inputs),
            describe(w, OUTPUTS, inputs),
            describe(squares, OUTPUTS, inputs),
            bias if bias is not None else w,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            M,
            N,
            K,
            bias.stride(0) if bias is not None else 0,
            sample_ids.stride(0),
            pass_ids.stride(0),
            N,
            MEAN_SCALE=mean_scale,
            VAR_SCALE=var_scale,
            HAS_BIAS=bias is not None,
            STAGES=STAGES,
            NOISE_WARPS=NOISE_WARPS,
            NOISE_REGISTERS=NOISE_REGISTERS,
            LOAD_REGISTERS=LOAD_REGISTERS,
            num_warps=WARPS,
        )
