"""Prediction on a GPU: the CPU's result to rounding, and the same promises."""

import pytest
import torch

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
