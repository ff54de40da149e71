"""Every refusal of predict_with_uncertainty: the argument, what it got, what to do."""

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectLinear, convert, predict_with_uncertainty
from bayes_dc.models import mlp

B, K = 5, 12


@pytest.fixture
def model():
    network = mlp(K, 3, hidden=(8,))
    convert(network)
    return network


@pytest.fixture
def x():
    return torch.ones(B, K)


def refusal(error, *arguments, **options):
    with pytest.raises(error) as caught:
        predict_with_uncertainty(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["T", "chunk"])
@pytest.mark.parametrize("value", [0, -1, 2.5, 1.0, "3", True, torch.tensor(2.5)], ids=repr)
def test_counts(name, value, model, x):
    text = refusal(ValueError, model, x, **{name: value})
    assert text == f"{name} must be an integer of at least 1; got {value!r}."


def test_more_passes_than_pass_ids(model, x):
    text = refusal(ValueError, model, x, T=2**32 + 1)
    assert text == "T must be at most 2**32, the number of pass ids; got 4294967297."


def test_passes_must_be_given_as_a_number(model, x):
    assert refusal(ValueError, model, x, T=None) == "T must be an integer of at least 1; got None."


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, None, True])
def test_seed(seed, model, x):
    text = refusal(ValueError, model, x, T=2, seed=seed)
    assert text == f"seed must be an integer in 0 … 2**64 − 1; got {seed!r}."


@pytest.mark.parametrize(
    ("value", "got"),
    [([[1.0]], "list"), (None, "NoneType"), (torch.tensor(1.0), "a scalar")],
    ids=["list", "none", "scalar"],
)
def test_input(value, got, model):
    text = refusal(TypeError, model, value, T=2)
    assert text == f"x must be a tensor with the inputs along its first dimension; got {got}."


@pytest.mark.parametrize(
    ("ids", "got"),
    [
        (torch.arange(4), "torch.int64 [4]"),
        (torch.arange(5).view(5, 1), "torch.int64 [5, 1]"),
        (torch.ones(5), "torch.float32 [5]"),
        (torch.arange(5, dtype=torch.int32), "torch.int32 [5]"),
        ([0, 1, 2, 3, 4], "list"),
    ],
    ids=["length", "shape", "float", "int32", "list"],
)
def test_sample_ids(ids, got, model, x):
    text = refusal(ValueError, model, x, T=2, sample_ids=ids)
    assert text == (
        "sample_ids must be an int64 tensor of shape [5], one id per row of x [5, 12]; "
        f"got {got}.\n"
        "For rows 0…4 of a data set pass torch.arange(5), or leave it out.\n"
    )


@pytest.mark.parametrize("value", [None, 0.5, "off", 1])
def test_dropout(value, model, x):
    text = refusal(ValueError, model, x, T=2, dropout=value)
    assert text == (
        f"dropout must be True (nn.Dropout draws masks too) or False (it is off); got {value!r}."
    )


def test_link(model, x):
    text = refusal(ValueError, model, x, T=2, link="sigmoid")
    assert text == "link must be one of ('softmax', 'identity'); got 'sigmoid'."


@pytest.mark.parametrize(
    ("network", "options", "why"),
    [
        (nn.Linear(K, 3), {}, " and no dropout with p > 0 that draws in its forward"),
        (nn.Sequential(nn.Linear(K, 3), nn.Dropout(0.0)), {}, " and no dropout with p > 0 that"),
        (nn.Sequential(nn.Dropout(0.5)), {"dropout": False}, " and dropout is off (dropout=False)"),
    ],
    ids=["plain", "p=0", "off"],
)
def test_a_model_without_masks(network, options, why, x):
    text = refusal(ValueError, network, x, T=2, **options)
    assert f"The model has no DropConnect layer{why}" in text
    assert ", so every pass would be equal." in text
    guarded = "so what it guards with self.training is off; use nn.Dropout or F.dropout"
    assert (guarded in text) == ("forward" in why or "that" in why)
    assert "bayes_dc.convert(model, p=0.5)" in text
    assert "bayes_dc.DropConnectLinear" in text


@pytest.mark.parametrize("model", [None, nn.Linear, len], ids=["None", "class", "function"])
def test_what_is_no_model(model, x):
    text = refusal(TypeError, model, x, T=2)
    assert text == f"model must be a torch.nn.Module; got {model!r}."


class Output(nn.Module):
    """Hands on what ``change`` makes of the output."""

    def __init__(self, model, change):
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x):
        return self.change(self.model(x))


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda y: (y, y), "tuple"),
        (lambda y: {"logits": y}, "dict"),
        (lambda y: y.unsqueeze(1), "[10, 1, 3] torch.float32"),
        (lambda y: y[:, 0], "[10] torch.float32"),
        (lambda y: y[:4], "[4, 3] torch.float32"),
        (lambda y: y.mean(dim=0, keepdim=True), "[1, 3] torch.float32"),
        (lambda y: y[:, :0], "[10, 0] torch.float32"),
        (lambda y: y.long(), "[10, 3] torch.int64"),
        (lambda y: y.to(torch.complex64), "[10, 3] torch.complex64"),
    ],
    ids=["tuple", "dict", "3-d", "1-d", "rows", "mean", "no-class", "votes", "complex"],
)
def test_output(change, got, model, x):
    text = refusal(ValueError, Output(model, change), x, T=2)
    assert text == (
        "The model must return one floating point tensor [rows, classes] with a row for each "
        "input; for\n"
        f"10 rows (2 passes × 5 inputs) it returned {got}. Wrap a model that returns more in\n"
        "a module that picks the class scores; if the model mixes or counts rows by hand, pass "
        "chunk=1.\n"
    )


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        (lambda y: y * 0 + 0.5, "1.5 … 1.5 with a smallest entry of 0.5"),
        (lambda y: y * 0 + torch.tensor([1.5, -0.5, 0.0]), "1 … 1 with a smallest entry of -0.5"),
    ],
    ids=["sum", "negative"],
)
def test_identity_with_what_are_no_probabilities(change, numbers, model, x):
    text = refusal(ValueError, Output(model, change), x, T=2, link="identity")
    assert text == (
        "link='identity' needs a model that returns class probabilities; its rows sum to "
        f"{numbers}. Use link='softmax' for logits."
    )


def test_a_refused_argument_changes_nothing(model, x):
    """Refusals come before the model is touched: no layer has a number yet."""
    fresh = mlp(K, 3, hidden=())
    convert(fresh)
    fresh[1].mask_layer = None
    refusal(ValueError, fresh, x, T=0)
    refusal(ValueError, fresh, x, T=2, sample_ids=torch.arange(3))
    refusal(ValueError, fresh, x, T=2, seed=-1)
    assert fresh[1].mask_layer is None


def test_one_input_without_its_dimension():
    """A vector where rows are expected: the remedy for that, beside the one for counted rows."""
    model = DropConnectLinear(K, 3)
    text = refusal(ValueError, model, torch.ones(K), T=3)
    assert text.rstrip().endswith("If x is one input, give it a first dimension: x[None].")
