"""The Hopper kernels in a NumPy model of a thread block: indices, phases and bits, no GPU."""

import numpy as np
import pytest
import torch
from block_model import Pointer, TensorMap, run
from harness import KEY, Shape, assert_bitwise_equal, make_case, shape_id

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
pytestmark = pytest.mark.compiler

DTYPES = [torch.bfloat16, torch.float32]


def pointers(case, *rest):
    ids = torch.tensor(KEY), case.sample_ids, case.pass_ids
    return [Pointer(t.numpy().reshape(-1)) for t in (*ids, *rest)]


def shared_rows(rows):
    """1 for each of passes and samples that has rows of its own."""
    return [int(rows.stride(d) > 0) for d in (0, 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize(
    "tile", [(16, 64, 4, 2), (32, 128, 4, 3), (16, 128, 8, 4), (16, 256, 8, 3)]
)
@pytest.mark.parametrize("unroll", [2, 4])
@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
def test_forward_and_dx(transposed, unroll, tile, dtype):
    """Two tiles of rows and of columns, several chunks of words, tails everywhere; 3 digits."""
    from bayes_dc.ops.linear.triton_wgmma_gemm import masked_gemm_kernel

    BR, BM, warps, stages = tile
    depth = 128 // dtype.itemsize
    N, K = (9 * depth + 5, BM + 12) if transposed else (BM + 10, 9 * depth + 4)
    case = make_case(Shape(2, 2, BR + 3, N, K), 0.3, dtype, integers=True)
    P, S, R, _, _ = case.shape
    rows = (case.gy if transposed else case.x)[:1].expand(P, -1, -1, -1)
    case.x, case.gy = (case.x, rows) if transposed else (rows, case.gy)
    M, C = (K, N) if transposed else (N, K)
    want = case.expected()["dx" if transposed else "y"]
    out = np.full(want.numel(), np.nan)
    block = [depth, BM] if transposed else [BM, depth]
    key, samples, passes, bias, target = pointers(case, case.b.double(), torch.from_numpy(out))
    run(
        masked_gemm_kernel,
        -(-M // BM) * -(-R // BR) * P * S,
        warps,
        TensorMap(rows, [1, 1, BR, depth]),
        TensorMap(case.w, block),
        *(bias, key, samples, passes, target),
        *(S, R, M, C, *shared_rows(rows), 1, 1, 1, *want.stride()[:3]),
        KEEP=case.digits.keep,
        BITS=case.digits.bits,
        SCALE=1.0,
        HAS_BIAS=not transposed,
        TRANSPOSED=transposed,
        BM=BM,
        STAGES=stages,
        UNROLL=unroll,
    )
    assert_bitwise_equal(torch.from_numpy(out).view(want.shape), want, "out")


@pytest.mark.parametrize("along", [False, True], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("groups", [(1, 1), (2, 2), (1, 5)])
@pytest.mark.parametrize("R", [5, 16, 41])
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_weight_gradient(splits, R, groups, stages, along):
    """Runs of odd, even and no groups, one or several steps in a group, tails everywhere."""
    from bayes_dc.ops.linear.triton_wgmma_dw import grouped_dw_kernel

    P, S = groups
    BN, BK, BR = 64, 128, 16
    dtype = torch.float32 if along else torch.bfloat16
    case = make_case(Shape(P, S, R, 70, 140), 0.5, dtype, integers=True)
    case.x = case.x[:, :1].expand(P, S, -1, -1)
    N, K = case.w.shape
    gy, x = (t.transpose(2, 3) if along else t for t in (case.gy, case.x))
    out = torch.full((splits, N, K), float("nan"), dtype=torch.float64)
    run(
        grouped_dw_kernel,
        -(-N // BN) * -(-K // BK) * splits,
        4,
        TensorMap(gy, [1, 1, BN, BR] if along else [1, 1, BR, BN]),
        TensorMap(x, [1, 1, BK, BR] if along else [1, 1, BR, BK]),
        *pointers(case, out),
        *(
            S,
            R,
            N,
            K,
            P * S,
            -(-P * S // splits),
            *shared_rows(gy),
            *shared_rows(x),
            1,
            1,
            N * K,
            K,
        ),
        KEEP=case.digits.keep,
        BITS=case.digits.bits,
        SCALE=1.0,
        ALONG=along,
        STAGES=stages,
    )
    assert_bitwise_equal(out.sum(dim=0), case.expected()["dw"], "dw")


@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("by_sample", [False, True], ids=["passes", "samples"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("tile", [(16, 64, 7, 4, 4), (16, 128, 3, 8, 3), (32, 128, 2, 4, 2)])
def test_tiles_that_serve_several_groups(tile, shared, by_sample, dtype):
    """Runs of groups with a tail, tiles of rows and outputs with tails; 3 digits."""
    from bayes_dc.ops.linear.triton_wgmma_parts_kernel import masked_parts_kernel

    BR, BM, parts, warps, stages = tile
    depth = 128 // dtype.itemsize
    P, S = (2, parts + 1) if by_sample else (parts + 1, 2)
    case = make_case(Shape(P, S, BR + 3, BM + 10, 2 * depth + 4), 0.3, dtype, integers=True)
    _, _, R, N, K = case.shape
    if shared:
        case.x = (case.x[:, :1] if by_sample else case.x[:1]).expand(P, S, R, K)
    want = case.expected()["y"]
    out = np.full(want.numel(), np.nan)
    box = 1 if shared else 1 << (parts - 1).bit_length()
    key, samples, passes, bias, target = pointers(case, case.b.double(), torch.from_numpy(out))
    run(
        masked_parts_kernel,
        -(-N // BM) * -(-R // BR) * 2 * 2,
        warps,
        TensorMap(case.x, [1, box, BR, depth] if by_sample else [box, 1, BR, depth]),
        TensorMap(case.w, [BM, depth]),
        *(bias, key, samples, passes, target),
        *(P, S, R, N, K, *shared_rows(case.x), 1, 1, 1, *want.stride()[:3]),
        KEEP=case.digits.keep,
        BITS=case.digits.bits,
        SCALE=1.0,
        HAS_BIAS=True,
        BM=BM,
        PARTS=parts,
        BY_SAMPLE=by_sample,
        STAGES=stages,
    )
    assert_bitwise_equal(torch.from_numpy(out).view(want.shape), want, "out")
