"""The kernel that keeps its weights on a GPU: the cases of its model, all types, bits, errors."""

from dataclasses import replace

import pytest
import torch
from conv_few import CASES, SAME, check
from conv_harness import Shape, assert_same, conv_id, make_case
from harness import relative_error
from test_conv_kernels import in_tf32

from bayes_dc.ops import _device

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def rounded(monkeypatch):
    """Float32 as TensorFloat-32, whatever torch's switch."""
    monkeypatch.setattr(_device, "convolution_tensor_float32", lambda: True)


@pytest.fixture
def launch():
    from bayes_dc.ops.conv2d import triton_few

    return triton_few.launch


@pytest.mark.parametrize("dtype", DTYPES, ids=conv_id)
@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize("name", CASES)
def test_integers_are_exact(launch, name, shared, dtype):
    check(launch, *CASES[name], shared=shared, dtype=dtype, device="cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=conv_id)
@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize("finish", [False, True], ids=["", "epilogue"])
def test_pooled(launch, finish, shared, dtype):
    """Default tiles; several programs."""
    shape = Shape(9, 5, 16, 15, 6, 16, 5, 5)
    options = {"shared": shared, "dtype": dtype, "pool": True, "finish": finish, "device": "cuda"}
    check(launch, shape, SAME, None, **options)
    check(launch, shape, SAME, None, **options, repeated=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=conv_id)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
def test_pixels_apart_in_memory(launch, p, dtype):
    for name in ("first layer", "strides and dilated rows", "dilated columns"):
        check(launch, *CASES[name], p=p, dtype=dtype, apart=True, device="cuda")


@pytest.mark.parametrize("C", [1, 6])
@pytest.mark.parametrize("dtype", DTYPES, ids=conv_id)
def test_error_is_within_twice_the_eager_error(dtype, C):
    """The eager error of float32 is that of rounded inputs, as in ``test_conv_kernels``."""
    case = make_case(Shape(3, 20, 14, 14, C, 16, 5, 5), SAME, 0.25, dtype, scale=1 / 0.75)
    got, want = case.run("cuda", only="y")["y"], case.expected()["y"]
    if dtype == torch.float32:
        eager = in_tf32(case).expected()["y"]
    else:
        eager = case.expected(dtype, "cuda")["y"]
    assert relative_error(got, want) <= 2 * relative_error(eager, want)


@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize("dtype", DTYPES, ids=conv_id)
def test_bits_depend_on_no_neighbour_and_no_memory_format(dtype, shared):
    """Real inputs: fewer images or passes, other strides, passes that share their images or not."""
    case = make_case(Shape(9, 7, 14, 13, 6, 9, 5, 4), SAME, dtype=dtype, shared=shared)
    case.x = case.x[:1].expand(case.x.shape)
    whole = case.run("cuda", only="y")
    for chosen in ([0], [5, 2]):
        ids = case.sample_ids if shared else case.sample_ids[chosen]
        part = replace(case, x=case.x[:, chosen], gy=case.gy[:, chosen], sample_ids=ids)
        assert_same(part.run("cuda", only="y"), {"y": whole["y"][:, chosen]})
    passes = replace(case, x=case.x[2:5], gy=case.gy[2:5], pass_ids=case.pass_ids[2:5])
    assert_same(passes.run("cuda", only="y"), {"y": whole["y"][2:5]})
    turned = case.x.transpose(2, 3).contiguous().transpose(2, 3)
    for x in (case.x.contiguous(), turned, case.x.repeat(1, 1, 1, 1, 2)[..., :6]):
        assert_same(replace(case, x=x).run("cuda", only="y"), whole)


def test_nan_and_infinity_stay_where_they_are(launch):
    """In a pooled window NaN is the largest; no other patch sees it."""
    case = make_case(Shape(1, 1, 10, 10, 2, 5, 3, 3), integers=True)
    device = torch.device("cuda")
    x, w, b, samples, passes = (
        t.to(device) for t in (case.x, case.w, case.b, case.sample_ids, case.pass_ids)
    )
    options = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "scale": 1.0}
    out = [torch.empty(1, 1, 4, 4, 5, device=device) for _ in range(2)]
    for pooled, bad in zip(out, (0.0, float("nan")), strict=True):
        x[0, 0, 4, 4] += bad
        key = torch.tensor([1, 2], device=device)
        launch(x, w, b, key, samples, passes, pooled, **options, keep=1, bits=0, pool=True)
    changed = out[1].isnan().any(-1)[0, 0]
    assert changed[1:3, 1:3].all()
    assert changed.sum() == 4
    assert torch.equal(out[0][0, 0][~changed], out[1][0, 0][~changed])
