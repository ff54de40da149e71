"""NaN and infinities in one input: no bit of the others changes, in results and gradients."""

import pytest
import torch
from limit_cases import T, assert_same, every_layer, folded, inputs, network, planned

from bayes_dc import predict_with_uncertainty
from bayes_dc.acquire import choose, joint_samples
from bayes_dc.mc.statistics import Summary
from bayes_dc.nn import MaskKeys

ROWS, BAD = 7, (3, 5)
OTHERS = [row for row in range(ROWS) if row not in BAD]
VALUES = (torch.nan, torch.inf, -torch.inf)


@pytest.fixture(scope="module")
def model():
    return every_layer().eval()


@pytest.fixture(scope="module")
def engine(model):
    return planned(model, ROWS)


def spoiled(value):
    """One number of one input, and another input as a whole."""
    x = inputs(ROWS)
    x[3, 2] = value
    x[5] = value
    return x


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("path", ["folded", "in chunks", "engine"])
def test_predictions_of_the_others(path, value, model, engine):
    def predict(x):
        if path == "engine":
            return engine(x, return_samples=True)
        return folded(model, x, chunk=2 if path == "in chunks" else None)

    want = predict(inputs(ROWS))
    if path == "engine":
        got = predict(spoiled(value))
    else:
        with pytest.warns(UserWarning, match=f"2 of {ROWS} inputs hold NaN or infinite values"):
            got = predict(spoiled(value))
    for name in Summary._fields:
        field = getattr(got, name)
        assert torch.equal(field[OTHERS], getattr(want, name)[OTHERS]), name
        assert field[5].isnan().all(), name
    assert torch.equal(got.samples[:, OTHERS], want.samples[:, OTHERS])
    assert_same(predict(inputs(ROWS)), want)  # nor does anything stay for the next call


@pytest.mark.parametrize("value", VALUES)
def test_outputs_and_gradients_of_the_others_in_training(value, model):
    def step(x):
        x = x.requires_grad_()
        keys = MaskKeys(0)
        with keys.attached(model.train()):
            keys.set(pass_ids=0, sample_ids=torch.arange(ROWS))
            y = model(x)
            (gx,) = torch.autograd.grad(y[OTHERS].square().sum(), x)
        return y.detach(), gx

    want, got = step(inputs(ROWS)), step(spoiled(value))
    model.eval()
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one[OTHERS], other[OTHERS])
    assert got[0][5].isnan().all()


def test_passes_until_a_standard_error_do_not_wait_for_nan():
    """An input that can never be known does not keep the others at T_max."""
    model, x = network(), inputs(ROWS)
    options = {"T": "auto", "standard_error": 0.05, "T_max": 2000}
    want = predict_with_uncertainty(model, x[OTHERS], sample_ids=torch.tensor(OTHERS), **options)
    with pytest.warns(UserWarning, match="inputs hold NaN or infinite values"):
        got = predict_with_uncertainty(model, spoiled(torch.nan), **options)
    assert got.T == want.T < 2000
    assert torch.equal(got.mean[OTHERS], want.mean)


def test_joint_samples_and_what_to_label_next():
    """Joint samples keep NaN to its input; a choice among inputs refuses it."""
    model = network()
    samples = joint_samples(model, inputs(ROWS), T)
    with pytest.warns(UserWarning, match="inputs hold NaN or infinite values"):
        bad = joint_samples(model, spoiled(torch.nan), T)
    assert torch.equal(bad[:, OTHERS], samples[:, OTHERS])
    with pytest.raises(ValueError, match="NaN"):
        choose(bad, 2, "bald")
