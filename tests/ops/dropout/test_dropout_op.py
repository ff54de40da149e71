"""keyed_dropout as users and torch see it: values, gradients, compilation, arguments."""

import pytest
import torch
from torch import nn

from bayes_dc.ops.dropout import keyed_dropout, reference
from bayes_dc.ops.dropout.api import ALPHA
from bayes_dc.rng import dropout_key, keep_digits
from bayes_dc.types import MaskKey

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
KEY = MaskKey(seed=4, layer=2)


def images(device="cpu", dtype=torch.float32, rows=4):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 6, 5, 3, generator=generator, dtype=torch.float64).to(device, dtype)


def ids(device="cpu", S=4, P=3):
    return {"sample_ids": torch.arange(S).to(device), "pass_ids": torch.arange(P).to(device)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [False, True])
def test_passes_share_rows_or_have_their_own(channels, device):
    x = images(device)
    shared = keyed_dropout(x, p=0.3, key=KEY, channels=channels, **ids(device))
    own = keyed_dropout(x.repeat(3, 1, 1, 1), p=0.3, key=KEY, channels=channels, **ids(device))
    assert torch.equal(shared, own)
    digits = keep_digits(0.3)
    at = (torch.arange(4), torch.arange(3), 6 if channels else 90, digits)
    mask = reference.explicit_masks(dropout_key(*KEY), *at)
    want = reference.forward(x.cpu().view(1, 4, 6, 15).expand(3, -1, -1, -1), mask, 1.0)
    assert torch.equal(shared.cpu() != 0, want.view(12, 6, 5, 3) != 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [False, True])
def test_memory_formats_keep_values_and_format(channels, device):
    x = images(device)
    want = keyed_dropout(x, key=KEY, channels=channels, **ids(device))
    for last in (
        x.contiguous(memory_format=torch.channels_last),
        x.permute(0, 2, 3, 1).contiguous(),
    ):
        given = last if last.shape == x.shape else last.permute(0, 3, 1, 2)
        got = keyed_dropout(given, key=KEY, channels=channels, **ids(device))
        assert torch.equal(got, want)
        assert got.is_contiguous(memory_format=torch.channels_last)
    volume = torch.randn(4, 6, 2, 2, 3, device=device)
    got = keyed_dropout(volume.to(memory_format=torch.channels_last_3d), key=KEY, channels=channels)
    assert torch.equal(got, keyed_dropout(volume, key=KEY, channels=channels))
    assert got.is_contiguous(memory_format=torch.channels_last_3d)


def test_a_sample_has_its_mask_whatever_its_batch():
    x = images()
    want = keyed_dropout(x, key=KEY)
    got = keyed_dropout(x[2:], key=KEY, sample_ids=torch.tensor([2, 3]))
    assert torch.equal(got, want[2:])


@pytest.mark.parametrize("channels", [False, True])
def test_alpha_dropout_keeps_mean_and_variance(channels):
    """Of standard normal inputs, to four standard errors; dropped elements become one number."""
    x = torch.randn(400, 250, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = keyed_dropout(x, p=0.25, key=KEY, alpha=True, channels=channels)
    n = x.numel()
    assert y.mean().abs() < 4 / n**0.5
    fourth = (y - y.mean()).pow(4).mean() - y.var() ** 2
    assert (y.var() - 1).abs() < 4 * (fourth / n) ** 0.5
    for value in (0.0, 1.5):  # keep = 3/4 in both
        row = torch.full((40, 50), value, dtype=torch.float64)
        ours = keyed_dropout(row, p=0.25, key=KEY, alpha=True, channels=channels).unique()
        torch.testing.assert_close(ours, nn.AlphaDropout(0.25)(row).unique())
    assert pytest.approx(1.0507009873554805 * 1.6732632423543772) == ALPHA


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"channels": True}, {"alpha": True}], ids=str)
def test_gradients_and_second_gradients(options, device):
    x = images(device, torch.float64, rows=2).requires_grad_()

    def function(x):
        return keyed_dropout(x, p=0.3, key=KEY, **options, **ids(device, S=2, P=2)) * x.sum()

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    at = (torch.tensor([1, 2], device=device), *ids(device).values())
    x = images(device).view(1, 4, 6, 15).expand(3, -1, -1, -1)
    last = x[:1].transpose(2, 3).contiguous().transpose(2, 3).expand(3, -1, -1, -1)
    for given, by_channel in ((x, False), (x, True), (last, False), (last, True)):
        arguments = (given, *at, 1, 1, 2.0, by_channel)
        torch.library.opcheck(torch.ops.bayes_dc.keyed_dropout, arguments)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"channels": True, "alpha": True}], ids=str)
def test_compiled_equals_eager(options, device):
    """One graph, with and without gradients; the bits do not come from torch's generator."""
    x = images(device).requires_grad_()

    def loss(x):
        return keyed_dropout(x, p=0.3, key=KEY, **options, **ids(device)).square().sum()

    compiled = torch.compile(loss, fullgraph=True)
    (want,) = torch.autograd.grad(loss(x), x)
    (got,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(got, want)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), loss(x))


def test_vmap_and_grad():
    x = images()

    def loss(row):
        return keyed_dropout(row[None], key=KEY, sample_ids=torch.tensor([1])).square().sum()

    got = torch.func.vmap(torch.func.grad(loss))(x)
    want = torch.stack([torch.func.grad(loss)(row) for row in x])
    assert torch.equal(got, want)


@pytest.mark.parametrize("p", [0, 0.0, 1, 1.0])
@pytest.mark.parametrize("alpha", [False, True])
def test_ends_of_p(p, alpha):
    x = images()
    got = keyed_dropout(x, p=p, key=KEY, alpha=alpha, **ids())
    assert torch.equal(got, x.repeat(3, 1, 1, 1) * (1 - p))
    assert torch.equal(keyed_dropout(x, p=p, key=KEY), x * (1 - p))


def test_rows_of_a_vector():
    assert keyed_dropout(torch.ones(6), key=KEY).shape == (6,)


@pytest.mark.parametrize(
    ("x", "options", "error", "text"),
    [
        ([1.0], {}, TypeError, "x must be a torch.Tensor; got list."),
        (
            torch.ones(2, 3).long(),
            {},
            TypeError,
            "x must be a floating point tensor; got torch.int64",
        ),
        (
            torch.ones(2, 3).to(torch.float8_e5m2),
            {},
            TypeError,
            "got torch.float8_e5m2. Convert it to float32",
        ),
        (torch.ones(2, 3).to_sparse(), {}, TypeError, "got layout torch.sparse_coo. Convert it"),
        (torch.ones(1, 3), {"pass_ids": torch.arange(3)}, ValueError, "no multiple of 3"),
        (torch.tensor(1.0), {}, ValueError, "x must have shape [rows, …]; got a scalar."),
        (
            torch.ones(3),
            {"channels": True},
            ValueError,
            "needs x of shape [rows, channels, …]; got [3]",
        ),
        (
            torch.ones(2, 3),
            {"p": 1.5},
            ValueError,
            "p must be a dropout probability in [0, 1]; got 1.5.",
        ),
        *(
            (
                torch.ones(2, 3),
                {"p": p},
                TypeError,
                "p must be a real number in [0, 1], the share of elements dropped; "
                f"got {p!r} ({type(p).__name__}).",
            )
            for p in ("x", True, None, [0.5])
        ),
        (torch.ones(2, 3), {"p": -0.5}, ValueError, "in [0, 1]; got -0.5."),
        (torch.ones(2, 3), {"p": 1e-9}, ValueError, "p = 1e-09 is too close to 0"),
        (
            torch.ones(2, 3),
            {"key": 5},
            ValueError,
            "key must be a MaskKey(seed, layer) or an int64",
        ),
        (
            torch.ones(2, 3),
            {"pass_ids": torch.ones(2)},
            ValueError,
            "pass_ids must be an int64 tensor",
        ),
        (torch.ones(5, 3), ids(), ValueError, "(pass, sample), 3 × 4 = 12, pass after pass"),
        (
            torch.ones(1, 1).expand(1, 2**31),
            {},
            ValueError,
            "fewer than 2**31 units; x [1, 2147483648]",
        ),
    ],
    ids=[
        "list",
        "int",
        "float8",
        "sparse",
        "passes",
        "scalar",
        "channels",
        "p",
        "p-string",
        "p-bool",
        "p-none",
        "p-list",
        "p-negative",
        "p-tiny",
        "key",
        "ids",
        "rows",
        "units",
    ],
)
def test_arguments(x, options, error, text):
    with pytest.raises(error) as caught:
        keyed_dropout(x, **{"key": KEY} | options)
    assert text in str(caught.value)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("options", [{}, {"alpha": True}, {"channels": True}], ids=str)
def test_everything_dropped_has_a_gradient_of_0(options, passes):
    """As F.dropout(x, 1.0): the graph stays, and a dropped infinite element is 0."""
    x = torch.full((2, 4, 3), torch.inf).requires_grad_()
    ids = {"pass_ids": torch.arange(passes), "sample_ids": torch.arange(2)}
    y = keyed_dropout(x, p=1, key=KEY, **ids, **options)
    assert torch.equal(y, torch.zeros(2 * passes, 4, 3))
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
