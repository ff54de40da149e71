"""Prediction on a GPU: the CPU's result to rounding, and the same promises."""

import math
import warnings

import pytest
import torch
from torch import nn

from bayes_dc import convert, predict_with_uncertainty
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys

pytestmark = pytest.mark.gpu

K, C, T = 50, 10, 30


@pytest.fixture
def model():
    torch.manual_seed(0)
    network = mlp(K, C, hidden=(64, 40))
    convert(network)
    return network.cuda()


@pytest.fixture
def x():
    return torch.randn(37, K, generator=torch.Generator().manual_seed(1)).cuda()


def test_equal_to_the_cpu_to_rounding(model, x):
    got = predict_with_uncertainty(model, x, T=T, return_samples=True)
    assert got.mean.is_cuda
    want = predict_with_uncertainty(model.cpu(), x.cpu(), T=T, return_samples=True)
    # Probabilities move by half the error of logits: three float32 sums of up to 64 terms.
    for name in ("samples", "mean", "entropy", "mutual_information"):
        error = getattr(got, name).cpu() - getattr(want, name)
        assert error.abs().max() < 3 * 64 * 2.0**-24, name


def test_an_input_has_one_result_whatever_its_batch_and_chunk(model, x):
    """Bit for bit: a row kernel's row does not see the others, statistics add in one order."""
    ids = torch.arange(37).cuda()
    want = predict_with_uncertainty(model, x, T=T, return_samples=True)
    for rows in (slice(0, 1), slice(5, 12), slice(3, 37)):
        for chunk in (None, 7):
            got = predict_with_uncertainty(
                model, x[rows], T=T, sample_ids=ids[rows], chunk=chunk, return_samples=True
            )
            assert torch.equal(got.samples, want.samples[:, rows])
            for name in ("mean", "variance", "entropy", "expected_entropy", "mutual_information",
                         "mutual_information_corrected", "entropy_se"):  # fmt: skip
                assert torch.equal(getattr(got, name), getattr(want, name)[rows]), (name, rows)


@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_said_and_hurt_no_other(model, x, link, bad):
    if link == "identity":
        model.append(nn.Softmax(dim=1))
    want = predict_with_uncertainty(model, x, T=5, link=link)
    x[2, 3] = bad
    with pytest.warns(UserWarning, match="1 of 37 inputs hold NaN or infinite values") as said:
        got = predict_with_uncertainty(model, x, T=5, link=link)
    assert "(first row: 2)" in str(said[0].message)
    assert said[0].filename == __file__
    rows = [row for row in range(37) if row != 2]
    for name in ("mean", "variance", "entropy", "mutual_information_corrected", "variation_ratio"):
        assert torch.equal(getattr(got, name)[rows], getattr(want, name)[rows]), name
    assert got.mean[2].isnan().all()
    assert got.variation_ratio[2].isnan()


@pytest.mark.parametrize("chunk", [None, 2])
def test_identity_with_what_are_no_probabilities(model, x, chunk):
    class Shares(nn.Module):
        def forward(self, y):
            return y * 0 + 0.5

    model.append(Shares())
    with pytest.raises(ValueError, match="link='identity' needs") as caught:
        predict_with_uncertainty(model, x, T=5, link="identity", chunk=chunk)
    assert "its rows sum to 5 … 5 with a smallest entry of 0.5." in str(caught.value)


def test_passes_without_variance_are_said(x):
    network = mlp(K, C, hidden=())
    convert(network, 0.0)
    equal, folded = "All 3 passes gave the same probabilities", "The passes ran folded: No plan"
    with pytest.warns(UserWarning, match=equal), pytest.warns(UserWarning, match=folded):
        got = predict_with_uncertainty(network.cuda(), x, T=3)
    assert not got.variance.any()
    assert not got.mutual_information.any()


def test_one_wait(model, x, monkeypatch):
    """The host asks the device once, at the end; copies of the layer keys go the other way."""
    predict_with_uncertainty(model, x, T=T)
    asked = []
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "cpu"):
        original = getattr(torch.Tensor, name)

        def asking(tensor, *args, original=original, name=name, **kwargs):
            if tensor.is_cuda:
                asked.append(name)
            return original(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, asking)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict_with_uncertainty(model, x, T=T, chunk=7)
    assert asked == ["tolist"]


def test_an_empty_batch(model, x):
    got = predict_with_uncertainty(model, x[:0], T=5, return_samples=True)
    assert got.mean.shape == (0, C)
    assert got.entropy.shape == (0,)
    assert got.samples.shape == (5, 0, C)


def test_no_global_generator_is_touched(model, x):
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    predict_with_uncertainty(model, x, T=T, sample_ids=torch.arange(37))
    assert torch.equal(torch.cuda.get_rng_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_keys_follow_a_model_that_moves(model, x):
    """Attached on the GPU, moved to the CPU: the key words follow the input."""
    keys = MaskKeys(3)
    with keys.attached(model), torch.no_grad():
        keys.set(pass_ids=1, sample_ids=torch.arange(37))
        on_gpu = model(x).cpu()
        error = (model.cpu()(x.cpu()) - on_gpu).abs().max()
    assert error < 3 * 64 * 2.0**-24 * on_gpu.abs().max()
