"""What Hopper's tensor cores are fed by: copies of operands and normals, on warps of their own.

A producer waits until its place in shared memory is free (``empty``, ``free``) and says when it is
filled (``ready``, ``full``); phases of the barriers alternate.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from bayes_dc.ops._hopper import block_barrier
from bayes_dc.rng.device import normals4

NOISE_ROWS = gl.constexpr(8)
"""Rows whose normals are made together."""


@gluon.jit
def load_tiles(x_desc, w_desc, squares_desc, xs, ws, ws2, ready, empty, tiles_n, tiles, steps):
    """Producer: copy the operands of every step of every tile, ``STAGES`` ahead."""
    STAGES: gl.constexpr = xs.shape[0]
    BM: gl.constexpr = xs.shape[1]
    BK: gl.constexpr = xs.shape[2]
    BN: gl.constexpr = ws.shape[1]
    BYTES: gl.constexpr = (
        x_desc.block_type.nbytes + w_desc.block_type.nbytes + squares_desc.block_type.nbytes
    )
    at = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m = tile // tiles_n * BM
        n = tile % tiles_n * BN
        for step in range(steps):
            stage = at % STAGES
            mbarrier.wait(empty.index(stage), (at // STAGES & 1) ^ 1)
            barrier = ready.index(stage)
            mbarrier.expect(barrier, BYTES)
            k = step * BK
            tma.async_copy_global_to_shared(x_desc, [m, k], barrier, xs.index(stage))
            tma.async_copy_global_to_shared(w_desc, [n, k], barrier, ws.index(stage))
            tma.async_copy_global_to_shared(squares_desc, [n, k], barrier, ws2.index(stage))
            at += 1


@gluon.jit
def make_normals(
    zs, ids, full, free, key_ptr, sample_ptr, pass_ptr, stride_sample, stride_pass, S, R, M,
    tiles_n, tiles,
):  # fmt: skip
    """Producer: the normals of every tile, one ahead; zs [BM, BN], ids [3 · BM / 8, 8]."""
    BM: gl.constexpr = zs.shape[0]
    BN: gl.constexpr = zs.shape[1]
    GROUPS: gl.constexpr = BM // NOISE_ROWS
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    L: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])
    k0 = gl.load(key_ptr).to(gl.uint32)
    k1 = gl.load(key_ptr + 1).to(gl.uint32)
    flat = ids._reinterpret(gl.uint32, [3, BM], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    groups = zs._reinterpret(
        gl.float32, [GROUPS, NOISE_ROWS, BN], gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    )
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m = gl.minimum(tile // tiles_n * BM + gl.arange(0, BM, FLAT), M - 1)
        g = m // R
        p = g // S
        tile_samples = gl.load(sample_ptr + (g - p * S).to(gl.int64) * stride_sample)
        tile_steps = gl.load(pass_ptr + p.to(gl.int64) * stride_pass)
        block_barrier()  # the ids of the last tile have been read
        flat.index(0).store((m - g * R).to(gl.uint32))
        flat.index(1).store(tile_samples.to(gl.uint32))
        flat.index(2).store(tile_steps.to(gl.uint32))
        block_barrier()
        quad = tile % tiles_n * (BN // 4) + gl.arange(0, BN // 4, gl.SliceLayout(0, L))
        turn = tile // gl.num_programs(0)
        mbarrier.wait(free, (turn & 1) ^ 1)
        for i in range(GROUPS):
            row = ids.index(i).load(gl.SliceLayout(1, L))[:, None]
            sample = ids.index(GROUPS + i).load(gl.SliceLayout(1, L))[:, None]
            step = ids.index(2 * GROUPS + i).load(gl.SliceLayout(1, L))[:, None]
            z0, z1, z2, z3 = normals4(k0, k1, row, quad.to(gl.uint32)[None, :], sample, step)
            # join appends a dimension: [..., i, j] of the outer and inner one is normal 2 i + j.
            z = gl.join(gl.join(z0, z2), gl.join(z1, z3))
            groups.index(i).store(gl.reshape(z, [NOISE_ROWS, BN]))
        block_barrier()
        mbarrier.arrive(full, count=1)
