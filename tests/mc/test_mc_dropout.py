"""Monte Carlo dropout: which layers draw, which masks, and what is said where torch draws them."""

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

POSITIONS = 4


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def tokens():
    return torch.randn(B, POSITIONS, K, generator=torch.Generator().manual_seed(1))


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
        patch.setattr("bayes_dc.mc.predict.FoldedPasses", Watched)
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


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        torch.manual_seed(0)
        self.cells = kind(K, 8, **options)
        self.head = nn.Linear(8, C)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


FOREIGN = [
    (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.5, batch_first=True), "LSTM", 0.5),
    (lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.5, batch_first=True), "GRU", 0.5),
    (lambda: Recurrent(nn.RNN, num_layers=2, dropout=0.5, batch_first=True), "RNN", 0.5),
    (lambda: attention(F.scaled_dot_product_attention), "scaled_dot_product_attention", 0.25),
    (lambda: encoder(), "multi-head attention", 0.25),
]


def attention(function):
    torch.manual_seed(0)
    return Apply(
        lambda x, head: head(function(x, x, x, dropout_p=0.25)[:, 0]),
        nn.Linear(K, C),
    )


def encoder(**options):
    torch.manual_seed(0)

    class Attends(nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x, need_weights=False)[0].flatten(1)

    layer = Attends(K, 2, dropout=0.25, batch_first=True, **options)
    return nn.Sequential(layer, nn.Linear(POSITIONS * K, C))


@pytest.mark.parametrize(("make", "name", "p"), FOREIGN, ids=[name for _, name, _ in FOREIGN])
def test_masks_that_torch_draws(make, name, p, tokens):
    """They repeat, they are said to depend on the batch, and no generator is touched."""
    model = make().eval()
    state = torch.get_rng_state()
    results = []
    for _ in range(2):
        with pytest.warns(UserWarning, match=f"Dropout inside {name} is drawn by torch") as told:
            results.append(predict_with_uncertainty(model, tokens, T=T, return_samples=True))
        assert len(told) == 1
    assert str(told[0].message).endswith(
        "it was seeded from the seed and the first pass of each forward, so results repeat, but "
        "they depend on batch and chunk."
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(results[0].samples, results[1].samples)
    assert results[0].dropout == {name: p}
    assert len(results[0].samples.flatten(1).unique(dim=0)) == T
    off = nn.Sequential(model, DropConnectLinear(C, C))
    quiet = predict_with_uncertainty(off, tokens, T=2, dropout=False)
    assert quiet.dropout == {}
    with pytest.warns(UserWarning, match="drawn by torch"):
        other = predict_with_uncertainty(model, tokens, T=T, seed=5)
    assert not torch.equal(other.mean, results[0].mean)


def test_either_interface_of_the_tf32_switch(tokens):
    """torch's own context for cuDNN raises once its parts have been given different switches."""
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        with pytest.warns(UserWarning, match="drawn by torch"):
            predict_with_uncertainty(FOREIGN[0][0](), tokens, T=2)
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    assert torch.backends.cudnn.enabled


def test_torch_draws_for_folded_rows_where_it_can(tokens):
    """After the first mask of ours all passes go through in one call."""
    model = nn.Sequential(nn.Dropout(0.5), *encoder())
    with pytest.warns(UserWarning, match="drawn by torch"):
        got = predict_with_uncertainty(model, tokens, T=T, chunk=T, return_samples=True)
    assert got.dropout == {"0": 0.5, "multi-head attention": 0.25}
    assert len(got.samples.flatten(1).unique(dim=0)) == T


def test_torch_cannot_draw_for_passes_that_are_not_there_yet(tokens):
    with pytest.raises(ValueError, match="multi_head_attention_forward draws its dropout") as error:
        predict_with_uncertainty(encoder(), tokens, T=T, chunk=3)
    assert str(error.value).endswith(
        "it cannot be repeated for 3 folded passes. Pass chunk=1, which runs one pass at a time, "
        "or dropout=False, which leaves dropout off."
    )


@pytest.mark.parametrize("options", [{"num_layers": 1}, {"num_layers": 2, "dropout": 0.0}], ids=str)
def test_recurrent_nets_without_dropout_draw_nothing(options, tokens):
    model = nn.Sequential(Recurrent(nn.LSTM, batch_first=True, **options), DropConnectLinear(C, C))
    assert predict_with_uncertainty(model, tokens, T=2).dropout == {}


def test_packed_sequences(tokens):
    class Packed(Recurrent):
        def forward(self, x):
            lengths = torch.full((len(x),), POSITIONS)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.head(self.cells(packed)[1][0][-1])

    model = nn.Sequential(Packed(nn.LSTM, num_layers=2, dropout=0.5, batch_first=True))
    with pytest.warns(UserWarning, match="Dropout inside LSTM"):
        got = predict_with_uncertainty(model, tokens, T=3)
    assert got.dropout == {"LSTM": 0.5}
    assert (got.variance > 0).all()


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
