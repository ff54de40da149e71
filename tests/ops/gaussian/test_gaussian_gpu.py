"""What only a GPU can show: devices that agree, far offsets, graph replay, many rows."""

import pytest
import torch
from gaussian_case import make_case, normal_bound, tensor_float32
from harness import KEY, Shape, relative_error, shape_id

from bayes_dc import predict_with_uncertainty
from bayes_dc.nn import DropConnectLinear
from bayes_dc.ops import dropconnect_linear
from bayes_dc.ops.gaussian import op, reference
from bayes_dc.types import MaskKey

pytestmark = pytest.mark.gpu


def draws(x, w, b=None, **options):
    return dropconnect_linear(x, w, b, sampler="gaussian", **{"key": MaskKey(5, 1)} | options)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("K", [784, 1024, 2100])
def test_devices_agree_to_float32(K, passes):
    """Without TensorFloat-32: torch's products on both, the same normals."""
    generator = torch.Generator().manual_seed(0)
    N = 256
    x, w = (torch.randn(n, K, generator=generator) for n in (130, N))
    ids = {"sample_ids": torch.arange(130), "pass_ids": torch.arange(passes)}
    z = reference.explicit_normals(KEY, ids["sample_ids"], ids["pass_ids"], 1, N)
    with tensor_float32(False):
        moved = {name: t.cuda() for name, t in ids.items()}
        there = draws(x.cuda(), w.cuda(), **moved).cpu()
        moments = reference.moments(x.cuda()[None, :, None], w.cuda(), None, 0.5, 2.0)
        eager = reference.draw(*moments, z.cuda()).cpu().view_as(there)
    exact = draws(x.double(), w.double(), **ids)
    normals = relative_error(z + normal_bound(z), z)
    for got in (there, draws(x, w, **ids)):
        assert relative_error(got, exact) <= 2 * relative_error(eager, exact) + normals


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 300, 1, 1024, 1024),  # few tiles
        Shape(1, 300, 1, 10, 1024),
        Shape(1, 4000, 1, 1000, 784),  # many, with tails in every dimension
        Shape(3, 1001, 2, 700, 200),
        Shape(1, 9000, 1, 140, 8),
        Shape(1, 4000, 1, 1024, 777),  # rows that no tensor map takes
        Shape(2, 70, 1, 129, 4100),
        Shape(1, 1, 1, 1, 2),
    ],
    ids=shape_id,
)
def test_the_operator_is_within_twice_the_eager_error(shape, shared, dtype):
    """Whichever kernel it takes."""
    case = make_case(shape, 0.25, dtype, shared=shared)
    x, w, b = case.on("cuda")
    with tensor_float32(True):
        eager = case.expected(dtype, "cuda")
        got = op.gaussian_linear(x, w, b, *case.at("cuda"), *case.options.values()).cpu()
    want = case.expected()
    assert relative_error(got, want) <= 2 * relative_error(eager, want)


def test_hopper_takes_what_it_can():
    """Aligned rows at one distance, enough tiles; folded passes that are views of one tensor."""
    from bayes_dc.ops.gaussian.triton_hopper import suits_hopper

    def suits(x, N=1024):
        w = torch.empty(N, x.shape[3], dtype=x.dtype, device="cuda")
        return suits_hopper(x, w, op._squares(w), x.new_empty(*x.shape[:3], N))

    hopper = torch.cuda.get_device_capability() == (9, 0)
    x = torch.empty(4, 1000, 1, 784, device="cuda")
    assert suits(x) == hopper
    assert suits(x.bfloat16()) == hopper
    assert not suits(x[:, :, :, 1:])
    assert not suits(x[:, :999])  # passes are further apart than rows
    assert not suits(x[:1, :100])
    assert not suits(x, N=10)


def test_offsets_beyond_two_to_the_31_elements():
    """x and y of 2.15e9 elements: the last rows are read and written where they lie."""
    size = 8192
    M = 2**31 // size + 40
    x = torch.zeros(M, size, dtype=torch.bfloat16, device="cuda")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-2, 3, (3, size), generator=generator).to(torch.bfloat16)
    w = torch.zeros(size, size, dtype=torch.bfloat16)
    w[:, :16] = torch.randint(-2, 3, (size, 16), generator=generator).to(torch.bfloat16)
    x[-3:] = rows.cuda()
    y = draws(x, w.cuda(), p=0.5)
    moments = reference.moments(rows[None, :, None].double(), w.double(), None, 0.5, 2.0)
    ids = torch.arange(M - 3, M)
    z = reference.explicit_normals(KEY, ids, torch.zeros(1, dtype=torch.int64), 1, size)
    want = reference.draw(*moments, z)[0, :, 0]
    one_rounding = torch.finfo(torch.bfloat16).eps / 2
    assert relative_error(y[-3:].cpu(), want) <= one_rounding
    assert not y[:-3].any()


def test_seventy_thousand_rows():
    """More rows than a grid's second dimension holds."""
    x, w = torch.randn(70_000, 4), torch.randn(4, 4)
    with tensor_float32(True):
        y = draws(x.cuda(), w.cuda())
    assert relative_error(y.cpu(), draws(x, w)) < 2.0**-9


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_captured_graph_follows_new_coordinates(passes, allowed):
    """Key, sample ids and pass ids are read when the graph is replayed."""
    x, w = torch.randn(40, 64, device="cuda"), torch.randn(48, 64, device="cuda")
    key = torch.tensor(KEY, device="cuda")
    sample_ids = torch.arange(40, device="cuda")
    pass_ids = torch.arange(passes, device="cuda")

    def call():
        return draws(x, w, key=key, sample_ids=sample_ids, pass_ids=pass_ids)

    with tensor_float32(allowed):
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()
        for step in range(3):
            key.fill_(11 + step)
            pass_ids.add_(step)
            sample_ids.add_(7)
            graph.replay()
            replayed = out.clone()
            assert torch.equal(replayed, call())


def test_repeats_bit_for_bit_and_does_not_know_the_batch():
    x = torch.randn(3000, 784, device="cuda")
    w = torch.randn(1024, 784, device="cuda")
    ids = torch.arange(3000, device="cuda")
    with tensor_float32(True):
        first = draws(x, w, sample_ids=ids)
        assert torch.equal(draws(x, w, sample_ids=ids), first)
        part = slice(777, 2900)  # other tiles, the same configuration
        assert torch.equal(draws(x[part], w, sample_ids=ids[part]), first[part])


def test_prediction_is_near_that_of_the_cpu():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        DropConnectLinear(20, 64, sampler="gaussian"),
        torch.nn.ReLU(),
        DropConnectLinear(64, 5, sampler="gaussian"),
    )
    x = torch.randn(7, 20)
    here = predict_with_uncertainty(model, x, T=50, return_samples=True).samples
    with tensor_float32(False):
        there = predict_with_uncertainty(model.cuda(), x.cuda(), T=50, return_samples=True).samples
    model = model.cpu().double()
    exact = predict_with_uncertainty(model, x.double(), T=50, return_samples=True).samples
    z = torch.ones(64, dtype=torch.float64)
    normals = 2 * relative_error(z + normal_bound(z), z)  # of two layers
    assert relative_error(there.cpu(), exact) <= 2 * relative_error(here, exact) + normals
