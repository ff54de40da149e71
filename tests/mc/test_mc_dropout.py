"""Monte Carlo dropout: which layers draw, and which masks."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from fold_models import Apply, B, C, K, T
from torch import nn

from bayes_dc import DropConnectLinear, convert, predict_with_uncertainty
from bayes_dc.nn import MaskKeys
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.rng import dropout_key
from bayes_dc.rng.spec import FUNCTIONAL_DROPOUT


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


def network(dropout, *more):
    """Integer weights and inputs small enough for exact sums."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(K, 16), nn.ReLU(), dropout, *more, nn.Linear(16, C))
    return rounded(model)


def rounded(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4).round_()
    return model


def by_hand(model, x, T=T, seed=0):
    """Probabilities of T single passes; function calls have to be keyed by the caller."""
    keys = MaskKeys(seed)
    outputs = []
    with keys.attached(model), torch.no_grad():
        for step in range(T):
            keys.set(pass_ids=step, sample_ids=torch.arange(len(x)))
            outputs.append(model(x).double().softmax(dim=1))
    return torch.stack(outputs)


def mask(number, call, step, shape, p=0.5):
    key = torch.tensor(dropout_key(0, number, call))
    return keyed_dropout(torch.ones(shape), p=p, key=key, pass_ids=torch.tensor([step]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("options", [{}, {"inplace": True}], ids=["new", "in-place"])
def test_a_dropout_model_needs_nothing_else(options, chunk, training, x):
    """In whichever mode it is; bit for bit the passes made one by one, whatever the chunk."""
    model, x = network(nn.Dropout(0.5, **options)).train(training), x.round()
    state = torch.get_rng_state()
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(torch.get_rng_state(), state)
    model.eval()
    assert torch.equal(got.samples, by_hand(model, x))
    assert got.dropout == {"2": 0.5}
    assert got.p_effective == {}
    assert (got.variance.sum(dim=1) > 0).all()


def test_an_input_has_one_result_whatever_its_batch(x):
    model = network(nn.Dropout(0.3))
    want = predict_with_uncertainty(model, x.round(), T=T)
    ids = torch.tensor([2, 4])
    got = predict_with_uncertainty(model, x.round()[ids], T=T, sample_ids=ids)
    assert torch.equal(got.mean, want.mean[ids])
    assert not torch.equal(predict_with_uncertainty(model, x.round(), T=T, seed=1).mean, want.mean)


@pytest.mark.parametrize("chunk", [None, 3])
def test_together_with_dropconnect(chunk, x):
    """Numbers of one kind do not depend on the other."""
    model = network(nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.25))
    convert(model, p=0.5)
    got = predict_with_uncertainty(model, x.round(), T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, by_hand(model.eval(), x.round()))
    assert got.dropout == {"2": 0.5, "5": 0.25}
    assert set(got.p_effective) == {"0", "3", "6"}
    off = predict_with_uncertainty(model, x.round(), T=T, dropout=False)
    model[2].p = model[5].p = 0.0
    assert torch.equal(predict_with_uncertainty(model, x.round(), T=T).mean, off.mean)
    assert off.dropout == {}


KINDS = [
    (nn.Dropout1d(0.5), (B, 6, 5)),
    (nn.Dropout2d(0.5), (B, 6, 3, 2)),
    (nn.Dropout3d(0.5), (B, 6, 3, 2, 2)),
    (nn.AlphaDropout(0.5), (B, 6)),
    (nn.FeatureAlphaDropout(0.5), (B, 6, 3, 2)),
]


@pytest.mark.parametrize(("layer", "shape"), KINDS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("chunk", [None, 3])
def test_every_kind_of_module(layer, shape, chunk):
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(C))
    inputs = torch.randn(shape)
    model(inputs)
    model.eval()
    got = predict_with_uncertainty(model, inputs, T=T, chunk=chunk, return_samples=True)
    torch.testing.assert_close(got.samples, by_hand(model, inputs))
    assert got.dropout == {"0": 0.5}


FUNCTIONS = [
    (lambda x: F.dropout(x, 0.5, training=False), (B, 6), {}),
    (lambda x: F.dropout(x), (B, 6), {}),
    (lambda x: F.dropout(input=x, p=0.5, training=False, inplace=True), (B, 6), {}),
    (lambda x: F.dropout1d(x, 0.5, False), (B, 6, 3), {"channels": True}),
    (lambda x: F.dropout2d(x, 0.5, False), (B, 6, 3, 2), {"channels": True}),
    (lambda x: F.dropout3d(x, 0.5, False), (B, 6, 3, 2, 2), {"channels": True}),
    (lambda x: F.alpha_dropout(x, 0.5), (B, 6), {"alpha": True}),
    (lambda x: F.feature_alpha_dropout(x), (B, 6, 3), {"alpha": True, "channels": True}),
    (lambda x: torch.dropout(x, 0.5, False), (B, 6), {}),
    (lambda x: torch.dropout_(x, 0.5, train=False), (B, 6), {}),
    (lambda x: torch.feature_dropout(x, 0.5, False), (B, 6, 3), {"channels": True}),
    (lambda x: torch.alpha_dropout(x, 0.5, False), (B, 6), {"alpha": True}),
]
NAMES = ["training", "default", "named", "1d", "2d", "3d", "alpha", "feature-alpha"]
NAMES += ["torch", "torch-in-place", "torch-feature", "torch-alpha"]


@pytest.mark.parametrize(("function", "shape", "options"), FUNCTIONS, ids=NAMES)
def test_every_dropout_function(function, shape, options):
    """Keyed by the order of calls, whatever their training argument says."""
    model = nn.Sequential(Apply(function), nn.Flatten(), Apply(lambda x: x[:, :C]))
    inputs = torch.randn(shape)
    got = predict_with_uncertainty(model, inputs.clone(), T=2, return_samples=True)
    ids = {"pass_ids": torch.arange(2), "sample_ids": torch.arange(B)}
    key = torch.tensor(dropout_key(0, FUNCTIONAL_DROPOUT))
    want = keyed_dropout(inputs, p=0.5, key=key, **ids, **options).flatten(1)[:, :C]
    assert torch.equal(got.samples, want.double().softmax(dim=1).view(2, B, C))
    assert got.dropout == {"F.dropout call 0": 0.5}


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_calls_are_counted_in_each_forward(chunk, x):
    """Two functions, and one module that is called twice."""

    def forward(x, dropout):
        x = F.dropout(dropout(x), 0.25, training=False)
        return F.dropout(dropout(x), 0.5, training=False)[:, :C]

    got = predict_with_uncertainty(Apply(forward, nn.Dropout(0.5)), x, T=T, chunk=chunk)
    want = []
    for step in range(T):
        y = x * mask(0, 0, step, x.shape) * mask(FUNCTIONAL_DROPOUT, 0, step, x.shape, 0.25)
        y = y * mask(0, 1, step, x.shape) * mask(FUNCTIONAL_DROPOUT, 1, step, x.shape)
        want.append(y[:, :C].double().softmax(dim=1))
    torch.testing.assert_close(got.mean, torch.stack(want).mean(dim=0))
    assert got.dropout == {"parts.0": 0.5, "F.dropout call 0": 0.25, "F.dropout call 1": 0.5}


@pytest.mark.parametrize("place", ["before", "after"])
def test_what_comes_before_the_first_mask_runs_once(place, x):
    rows = []

    def count(y):
        rows.append(len(y))
        return y

    parts = {"before": (Apply(count), nn.Dropout(0.5)), "after": (nn.Dropout(0.5), Apply(count))}
    model = nn.Sequential(nn.Tanh(), *parts[place], nn.Linear(K, C))
    predict_with_uncertainty(model, x, T=T)
    assert rows == [B if place == "before" else B * T]


def test_in_place_before_the_first_draw_keeps_the_prefix(x):
    """MobileNet's head: the record of what came before survives the write."""
    import bayes_dc.mc.fold as fold

    seen = []

    class Watched(fold.FoldedPasses):
        def __exit__(self, *args):
            seen.append(self.record is not None and not self.record.is_dropped)
            super().__exit__(*args)

    model = network(nn.Dropout(0.5, inplace=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayes_dc.mc.folded.FoldedPasses", Watched)
        got = predict_with_uncertainty(model, x.round(), T=6, chunk=2, return_samples=True)
    assert seen == [True] * 3
    assert torch.equal(got.samples, by_hand(model.eval(), x.round(), T=6))


def test_a_result_that_is_not_used_in_place(x):
    """The written tensor is read again, by its name and through a view: that is refused."""

    def named(x, head):
        h = x.sin()
        F.dropout(h, 0.5, training=False, inplace=True)
        return head(h)

    def viewed(x, head):
        h = x.sin()
        flat = h.view(-1)
        F.dropout(h, 0.5, training=False, inplace=True)
        return head(flat.view(-1, K))

    head = nn.Linear(K, C)
    got = predict_with_uncertainty(Apply(named, head), x, T=3, return_samples=True)
    steps = [head(x.sin() * mask(FUNCTIONAL_DROPOUT, 0, t, x.shape)) for t in range(3)]
    torch.testing.assert_close(got.samples, torch.stack(steps).double().softmax(dim=2))
    with pytest.raises(ValueError, match="is read again through another view"):
        predict_with_uncertainty(Apply(viewed, head), x, T=3)


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_result_of_a_module_that_is_not_used_in_place(chunk, x):
    def forward(x, dropout, head):
        h = x.sin()
        dropout(h)
        return head(h)

    head = nn.Linear(K, C)
    model = Apply(forward, nn.Dropout(0.5, inplace=True), head)
    got = predict_with_uncertainty(model, x, T=3, chunk=chunk, return_samples=True)
    steps = [head(x.sin() * mask(0, 0, t, x.shape)) for t in range(3)]
    torch.testing.assert_close(got.samples, torch.stack(steps).double().softmax(dim=2))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_ends_of_p(p, x):
    """p = 0 draws nothing; p = 1 drops everything, in every pass."""
    model = nn.Sequential(nn.Linear(K, 16), nn.Dropout(p), DropConnectLinear(16, C))
    if p == 0:
        got = predict_with_uncertainty(model, x, T=T)
        want = predict_with_uncertainty(nn.Sequential(model[0], model[2]), x, T=T)
        assert torch.equal(got.mean, want.mean)
        assert got.dropout == {}
        return
    with pytest.warns(UserWarning, match="All 7 passes gave the same probabilities"):
        got = predict_with_uncertainty(model, x, T=T)
    assert got.dropout == {"1": 1.0}
    bias = model[2].bias.detach().double().softmax(dim=0)
    torch.testing.assert_close(got.mean, bias.expand(B, C))


def test_layers_that_are_not_called_are_said(x):
    """timm's attention hands the p of such a layer to torch, which is off in evaluation mode."""
    model = Apply(lambda x, used, unused: used(x)[:, :C], nn.Dropout(0.5), nn.Dropout(0.1))
    with pytest.warns(UserWarning, match=r"Dropout layers parts\.1 were not called") as told:
        got = predict_with_uncertainty(model, x, T=T)
    assert "so they add nothing to the uncertainty (fused attention" in str(told[0].message)
    assert got.dropout == {"parts.0": 0.5}


class Functional(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, K))])
@pytest.mark.parametrize("inner", [nn.Dropout(0.5), Functional()], ids=["module", "function"])
def test_torchscript_is_refused(inner, make, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = make(nn.Sequential(nn.Linear(K, K), inner).eval())
        other = make(nn.Sequential(nn.Linear(K, K), nn.ReLU()).eval())
    model = nn.Sequential(other, part, DropConnectLinear(K, C))
    with pytest.raises(ValueError, match=r"Dropout inside TorchScript \('1'\) cannot draw") as e:
        predict_with_uncertainty(model, x, T=T)
    assert str(e.value).endswith("or pass dropout=False, which leaves dropout off.")
    assert predict_with_uncertainty(model, x, T=T, dropout=False).dropout == {}


def test_modules_are_as_before_after_an_error(x):
    model = network(nn.Dropout(0.5), Apply(lambda h: 1 / 0)).train()
    with pytest.raises(ZeroDivisionError):
        predict_with_uncertainty(model, x, T=T)
    assert "forward" not in model[2].__dict__
    assert model[2].training


def test_dropout_of_a_parameter_is_refused(x):
    """Its rows are no inputs: masks keyed by sample have no meaning there."""
    model = Apply(lambda x, dropout: x[:, :C] + dropout(model.bias), nn.Dropout(0.5))
    model.bias = nn.Parameter(torch.ones(B, C))
    with pytest.raises(ValueError, match="met passes folded into") as error:
        predict_with_uncertainty(model, x, T=T)
    text = str(error.value)
    assert "masks cannot be keyed on a weight, whose rows are not the inputs." in text
    assert "Apply it to what is computed from the inputs; masks on a weight are those of" in text
    assert "chunk=1" not in text


def test_tokens_first_is_refused_with_the_remedy(tokens):
    model = nn.Sequential(Apply(lambda x: x.transpose(0, 1)), nn.Dropout(0.5))
    with pytest.raises(ValueError, match="A tensor of 4 rows met passes folded into") as error:
        predict_with_uncertainty(model, tokens, T=T)
    assert str(error.value).endswith(
        "dropout layer '1', which draws a mask for every input: masks cannot be keyed on a tensor "
        "whose rows are not the inputs. Keep the inputs along the first dimension, e.g. [B, L, K] "
        "rather than [L, B, K] or [B · L, K] for L tokens (batch_first=True), or do without these "
        "masks: p = 0 for that dropout, or dropout=False of predict_with_uncertainty for all "
        "dropout; bayes_dc.convert can leave a layer out.\n"
    )


def test_always_on_calls_are_off_with_dropout_false(x):
    """F.dropout's training defaults to True: it would draw from torch's generator."""
    model = nn.Sequential(Apply(lambda x: F.dropout(x)), DropConnectLinear(K, C))
    state = torch.get_rng_state()
    got = predict_with_uncertainty(model, x, T=T, dropout=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(got.mean, predict_with_uncertainty(model[1], x, T=T).mean)
