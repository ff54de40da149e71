"""Masked matrix product on Hopper's tensor cores, the weights masked in registers.

    out[g, r, m] = s · Σ_c (D ∘ W)[m, c] · rows[g, r, c] + b[m]             forward: m = n, c = k
    out[g, r, m] = s · Σ_c (D ∘ W)[c, m] · rows[g, r, c]     TRANSPOSED, the gradient: m = k, c = n

Shapes      rows [P, S, R, C], W [N, K], both by TMA: unit stride along the last dimension, 16-byte
            aligned; out [P, S, R, M], unit stride along m.
Mask        words of rng/SPEC.md v1. A chunk of SPC steps' words is made by all threads, one Philox
            call each, and shared; a thread then reads the words of the weights it holds.
Tile        transposed, [BM, BR] += W [BM, BC] · rowsᵀ [BC, BR]: wgmma takes its first operand from
            registers, so masked weights are never written back. The next tile is masked while the
            present one is multiplied.
Grid        cdiv(M, BM) · cdiv(R, BR) · P·S programs, m fastest.
Precision   bfloat16, float16 or TensorFloat-32 products, float32 sums; s, b and the epilogue
            (_epilogue.py) once, at the end.
Order       c ascends inside one program: no atomics, no split; `out` repeats bit for bit.
Cost        for 2·BR operations 1.5 (16 bits) or 2.5 instructions, and 1/128 Philox call.
Limits      compute capability 9.0; N < 2**29, others < 2**31; offsets of out are int64.
"""

from typing import Any

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
from bayes_dc.ops._wgmma import finish_rows, make_words, mask_tile, spread_layout, steps_per_chunk


@gluon.jit
def fetch(
    rows_desc, w_desc, rows, tiles, ready, p, s, r, m, at, steps,
    TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Start the copies of step ``at``, none from ``steps`` on; beyond the ends zeros arrive."""
    STAGES: gl.constexpr = tiles.shape[0]
    BC: gl.constexpr = rows_desc.block_type.shape[3]
    BYTES: gl.constexpr = rows_desc.block_type.nbytes + w_desc.block_type.nbytes
    inside = at < steps
    barrier = ready.index(at % STAGES)
    mbarrier.expect(barrier, BYTES, pred=inside)
    source = [p, s, r, at * BC]
    target = rows.index(at % STAGES)
    tma.async_copy_global_to_shared(rows_desc, source, barrier, target, pred=inside)
    if TRANSPOSED:
        source = [at * BC, m]
    else:
        source = [m, at * BC]
    target = tiles.index(at % STAGES)
    tma.async_copy_global_to_shared(w_desc, source, barrier, target, pred=inside)


@gluon.jit
def masked_weights(
    tiles, ready, words, shift, byte, at, steps,
    A: gl.constexpr, SPREAD: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The weights of step ``at`` as wgmma's first operand; anything from ``steps`` on."""
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.wait(ready.index(at % STAGES), at // STAGES & 1, pred=at < steps)
    if TRANSPOSED:
        w = tiles.index(at % STAGES).permute((1, 0)).load(A)
    else:
        w = tiles.index(at % STAGES).load(A)
    return mask_tile(w, words.index(at % words.shape[0]), shift, byte, SPREAD, TRANSPOSED)


@gluon.jit(do_not_specialize=["S", "one_p", "one_s", "stride_b", "stride_sample", "stride_pass"])
def masked_gemm_kernel(
    rows_desc,
    w_desc,
    b_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    M,
    C,
    one_p,
    one_s,
    stride_b,
    stride_sample,
    stride_pass,
    stride_op,
    stride_os,
    stride_or,
    KEEP: gl.constexpr,
    BITS: gl.constexpr,
    SCALE: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    TRANSPOSED: gl.constexpr,
    BM: gl.constexpr,
    STAGES: gl.constexpr,
    UNROLL: gl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: gl.constexpr = 0,
):
    """BM columns of BR rows of one group; ``one_p``, ``one_s``: 0 where all passes, samples share.

    UNROLL, even: the registers of two masked tiles change roles without being copied.

    Loop invariant: before step i tile i is masked in registers, tiles i … i + STAGES − 2 are here
    or on their way, and the words of the chunk of step i + 1 are shared.
    """
    WARPS: gl.constexpr = gl.num_warps()
    ELEMENT: gl.constexpr = rows_desc.dtype
    SIZE: gl.constexpr = ELEMENT.primitive_bitwidth
    BR: gl.constexpr = rows_desc.block_type.shape[2]
    BC: gl.constexpr = rows_desc.block_type.shape[3]
    WORDS: gl.constexpr = (BC if TRANSPOSED else BM) // 32
    QUADS: gl.constexpr = (BM if TRANSPOSED else BC) // 4
    CHUNK: gl.constexpr = steps_per_chunk(WORDS, QUADS, WARPS)
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BR, 256 // SIZE])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 32 // SIZE)
    SPREAD: gl.constexpr = spread_layout(BM, BC, WARPS, SIZE, TRANSPOSED)
    NEXT_N32: gl.constexpr = WORDS if TRANSPOSED else 0
    NEXT_K4: gl.constexpr = 0 if TRANSPOSED else QUADS

    rows = gl.allocate_shared_memory(ELEMENT, [STAGES, 1, 1, BR, BC], rows_desc.layout)
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BR, BC], ELEMENT)
    right = rows._reinterpret(ELEMENT, [STAGES, BR, BC], B)
    tiles = gl.allocate_shared_memory(
        ELEMENT, [STAGES, BC, BM] if TRANSPOSED else [STAGES, BM, BC], w_desc.layout
    )
    chunks = gl.allocate_shared_memory(
        gl.uint32, [2, CHUNK, WORDS, 4 * QUADS], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    words = chunks._reinterpret(
        gl.uint32, [2 * CHUNK, WORDS, 4 * QUADS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()

    m_tiles = gl.cdiv(M, BM)
    r_tiles = gl.cdiv(R, BR)
    pid = gl.program_id(0)
    m0 = pid % m_tiles * BM
    r0 = pid // m_tiles % r_tiles * BR
    g = pid // m_tiles // r_tiles
    p = g // S
    s = g - p * S
    sample = gl.load(sample_ptr + s.to(gl.int64) * stride_sample).to(gl.uint32)
    step = gl.load(pass_ptr + p.to(gl.int64) * stride_pass).to(gl.uint32)
    k0 = gl.load(key_ptr).to(gl.uint32)
    k1 = gl.load(key_ptr + 1).to(gl.uint32)
    first_n32 = 0 if TRANSPOSED else m0 // 32
    first_k4 = m0 // 4 if TRANSPOSED else 0
    steps = gl.cdiv(C, UNROLL * BC) * UNROLL
    if TRANSPOSED:
        n = gl.arange(0, BC, gl.SliceLayout(0, A))[None, :]
    else:
        n = gl.arange(0, BM, gl.SliceLayout(1, A))[:, None]
    byte = n // 8 % 4
    shift = (7 - n % 8).to(gl.uint32)

    block_barrier()
    for at in gl.static_range(STAGES - 1):
        fetch(
            rows_desc, w_desc, rows, tiles, ready, p * one_p, s * one_s, r0, m0, at, steps,
            TRANSPOSED,
        )  # fmt: skip
    make_words(
        chunks.index(0), first_n32, first_k4, k0, k1, sample, step, NEXT_N32, NEXT_K4, KEEP, BITS
    )
    block_barrier()
    acc = gl.zeros([BM, BR], gl.float32, MMA)
    now = masked_weights(tiles, ready, words, shift, byte, 0, steps, A, SPREAD, TRANSPOSED)
    for first in range(0, steps, UNROLL):
        for part in gl.static_range(UNROLL):
            i = first + part
            acc = warpgroup_mma(now, right.index(i % STAGES).permute((1, 0)), acc, is_async=True)
            if i % CHUNK == 0:
                c = i // CHUNK + 1
                make_words(
                    chunks.index(c % 2),
                    first_n32 + c * CHUNK * NEXT_N32,
                    first_k4 + c * CHUNK * NEXT_K4,
                    k0, k1, sample, step, NEXT_N32, NEXT_K4, KEEP, BITS,
                )  # fmt: skip
            # Every warp has done with stage i − 1, the one to be filled, and with its words.
            block_barrier()
            fetch(
                rows_desc, w_desc, rows, tiles, ready, p * one_p, s * one_s, r0, m0,
                i + STAGES - 1, steps, TRANSPOSED,
            )  # fmt: skip
            later = masked_weights(
                tiles, ready, words, shift, byte, i + 1, steps, A, SPREAD, TRANSPOSED
            )
            acc, now = warpgroup_mma_wait(0, deps=[acc, now])
            now = later

    acc = acc * SCALE
    if HAS_BIAS:
        m = m0 + gl.arange(0, BM, gl.SliceLayout(1, MMA))
        b = gl.load(b_ptr + m.to(gl.int64) * stride_b, mask=m < M, other=0)
        acc += b.to(gl.float32)[:, None]
    if EPILOGUE > 0:
        m = m0 + gl.arange(0, BM, gl.SliceLayout(1, MMA))
        acc = finish_rows(acc, factors_ptr, summands_ptr, m, M, EPILOGUE)
    VECTOR: gl.constexpr = 128 // SIZE
    LANES: gl.constexpr = min(32, BM // VECTOR)
    L: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    y = gl.convert_layout(gl.permute(acc.to(ELEMENT), (1, 0)), L)
    r = r0 + gl.arange(0, BR, gl.SliceLayout(1, L))[:, None]
    m = m0 + gl.arange(0, BM, gl.SliceLayout(0, L))[None, :]
    out = out_ptr + p.to(gl.int64) * stride_op + s.to(gl.int64) * stride_os
    gl.store(out + r.to(gl.int64) * stride_or + m, y, mask=(r < R) & (m < M))


def suits(
    rows: Tensor, w: Tensor, out: Tensor, config: _grouped.GroupedConfig, *, transposed: bool
) -> bool:
    """Whether the kernel can read and write these tensors in place with this configuration."""
    BM, BC = config.outputs, config.inputs
    if transposed:
        BM, BC = BC, BM
    return (
        _device.on_hopper(rows.device)
        and _grouped.suits_wgmma(config.rows, BM, BC, config.warps, config.stages, rows.dtype)
        and by_tma(rows)
        and by_tma(w)
        and rows.shape[3] > 0
        and out.stride(3) == 1
    )


def launch(
    rows: Tensor,
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
    transposed: bool,
    config: _grouped.GroupedConfig,
    ending: dict[str, Any] | None = None,
) -> None:
    """Write the product into ``out``; ``suits`` must hold and no dimension be 0.

    ``ending``: of ``_epilogue.options``.
    """
    P, S, R, C = rows.shape
    M = out.shape[3]
    BR, BM, BC = config.rows, config.outputs, config.inputs
    if transposed:
        BM, BC = BC, BM
    block = (BC, BM) if transposed else (BM, BC)
    grid = (triton.cdiv(M, BM) * triton.cdiv(R, BR) * P * S,)
    with _launch.on_device_of(rows):
        masked_gemm_kernel[grid](
            describe(rows, BR, BC),
            describe(w, *block),
            bias if bias is not None else w,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            M,
            C,
            *(int(rows.stride(d) > 0) for d in (0, 1)),
            bias.stride(0) if bias is not None else 0,
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride()[:3],
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            HAS_BIAS=bias is not None,
            TRANSPOSED=transposed,
            BM=BM,
            STAGES=config.stages,
            UNROLL=4 if rows.element_size() == 2 and -(-C // BC) % 4 == 0 else 2,
            **(ending or {}),
            num_warps=config.warps,
        )
