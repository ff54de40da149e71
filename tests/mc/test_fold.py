"""T passes in one forward: what runs once, what is repeated, and what cannot be folded."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from fold_models import Apply, B, C, K, T, by_hand, layers
from torch import nn

import bayes_dc.mc.predict as predict_module
from bayes_dc import DropConnectLinear, predict_with_uncertainty

calls = []


@torch.library.custom_op("bayes_dc_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """A deterministic part of a model, which notes the rows of every call."""
    calls.append(x.shape[0])
    return x * 0.5


@pytest.fixture(autouse=True)
def fresh_calls():
    calls.clear()


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_what_comes_before_the_first_draw_runs_once(chunk, x):
    """Once on B rows, in one chunk and in many; what comes after sees the passes."""
    first, second = layers((K, 8), (8, C))
    model = nn.Sequential(Apply(counted), nn.Tanh(), first, Apply(counted), second)
    predict_with_uncertainty(model, x, T=T, chunk=chunk)
    sizes = {None: [7], 1: [1] * 7, 3: [3, 3, 1]}[chunk]
    assert calls == [B, *(B * size for size in sizes)]


@pytest.mark.parametrize(
    "join",
    [
        lambda x, layer: layer(x) + x,
        lambda x, layer: torch.cat([x.sin(), layer(x)], dim=1),
        lambda x, layer: torch.where(x > 0, layer(x), x),
        lambda x, layer: x.mul(layer(x)).sub_(x[:, :1]),
        lambda x, layer: layer(layer(x)) + x.mean(dim=1, keepdim=True),
        lambda x, layer: torch.stack([x, layer(x)]).sum(dim=0),
        lambda x, layer: torch.clamp(layer(x), min=x.abs().neg()),
        lambda x, layer: layer(x) * (x.ndim + x.size(1)) + x.sin().to(x.device, x.dtype),
    ],
    ids=["add", "cat", "where", "in-place", "broadcast", "list", "keyword", "attributes"],
)
@pytest.mark.parametrize("chunk", [None, 2])
def test_skips_around_the_first_layer(join, chunk, x):
    """A tensor that no mask has touched meets the passes: it is repeated for each."""
    first, _ = layers((K, K), (K, C))
    head = DropConnectLinear(2 * K if join(x, first).shape[1] > K else K, C)
    model = nn.Sequential(nn.Tanh(), Apply(join, first), nn.ReLU(), head)
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_writing_in_place_before_the_first_draw(chunk, x):
    """The model may write into its input: every chunk starts from the same x, the user's."""
    first, second = layers((K, 8), (8, C))
    model = nn.Sequential(Apply(lambda x: x.mul_(2)), nn.ReLU(inplace=True), first, second)
    before = x.clone()
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(x, before)
    doubled = nn.Sequential(Apply(lambda x: 2 * x), nn.ReLU(), first, second)
    assert torch.equal(got.samples, by_hand(doubled, x))


class Halved(torch.autograd.Function):
    """A function torch's function modes see as one call or not at all."""

    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # deprecated, and still in use
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(nn.Hardtanh(-2.0, 2.0), torch.zeros(1, 1))


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("part", [lambda: Apply(Halved.apply), scripted], ids=["Function", "jit"])
def test_parts_that_a_function_mode_may_not_see(part, place, chunk, x):
    """Before, between and after the layers: known by their rows."""
    first, second = layers((K, 8), (8, C))
    parts = [nn.Tanh(), first, second]
    parts.insert(place, part())
    model = nn.Sequential(*parts)
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))


def test_a_layer_called_twice_meets_the_same_mask_twice(x):
    (layer,) = layers((K, K))
    model = nn.Sequential(layer, layer)
    got = predict_with_uncertainty(model, x, T=T, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
    assert got.p_effective == {"0": 0.5}


@pytest.mark.parametrize("scope", ["row", "sample", "pass"])
def test_scopes_and_positions(scope):
    """Tokens [B, L, K]: folded or one by one, the masks are those of the scope."""
    torch.manual_seed(0)
    x = torch.randn(B, 4, K)
    layer = DropConnectLinear(K, C, scope=scope)
    model = nn.Sequential(nn.Tanh(), layer, Apply(lambda x: x.mean(dim=1)))
    got = predict_with_uncertainty(model, x, T=T, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
    same = predict_with_uncertainty(model, x[:1].expand(B, 4, K), T=T)
    assert len(same.mean.unique(dim=0)) == (1 if scope == "pass" else B)


def test_a_batch_size_counted_by_hand_is_refused_with_the_remedy(x):
    """Folding changes the number of rows; chunk=1 does not."""
    first, second = layers((K, 8), (8, C))
    model = nn.Sequential(first, Apply(lambda h: h.reshape(B, 8, -1).mean(dim=2)), second)
    with pytest.raises(ValueError, match="A tensor of 5 rows met passes folded into 35") as error:
        predict_with_uncertainty(model, x, T=T)
    text = str(error.value)
    assert "35 rows (7 passes × 5 inputs) in\ndropconnect_linear: the model uses the batch" in text
    assert "Pass chunk=1, which runs one pass at a time" in text
    got = predict_with_uncertainty(model, x, T=T, chunk=1, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))


def test_an_error_of_the_model_says_that_passes_were_folded(x):
    (first,) = layers((K, C))
    model = nn.Sequential(first, Apply(lambda h: h.view(B, C)))
    with pytest.raises(RuntimeError, match="shape") as error:
        predict_with_uncertainty(model, x, T=T)
    assert error.value.__notes__ == [
        "(raised while 7 passes were folded into one forward of 35 rows; if it does not happen\n"
        "with model.eval()(x), the model fixes its batch size by hand: pass chunk=1)"
    ]
    with pytest.raises(RuntimeError, match="shape") as error:
        predict_with_uncertainty(model, x[:4], T=T, chunk=1)
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize("chunk", [None, 1])
def test_tokens_in_the_first_dimension_are_refused_with_the_remedy(chunk):
    model = nn.Sequential(Apply(lambda x: x.flatten(0, 1)), DropConnectLinear(K, C))
    with pytest.raises(ValueError, match=r"A tensor of 20 rows met passes folded into") as error:
        predict_with_uncertainty(model, torch.ones(B, 4, K), T=T, chunk=chunk)
    text = str(error.value)
    assert "dropconnect_linear, which draws a mask for every input: masks cannot be keyed" in text
    assert "Keep the inputs along the first dimension, e.g. [B, L, K] rather than" in text
    assert text.endswith("bayes_dc.convert can leave a layer out.\n")
    assert "chunk=1" not in text


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("classes", [B, C])
def test_prototypes_are_not_taken_for_inputs(classes, chunk, x):
    """With as many classes as inputs their rows would pass for those of the batch."""
    (layer,) = layers((K, 4))
    model = Apply(lambda x, layer: x[:, :4] @ layer(model.prototypes).t(), layer)
    model.prototypes = nn.Parameter(torch.ones(classes, K))
    with pytest.raises(ValueError, match=rf"A tensor of {classes} rows met passes folded into"):
        predict_with_uncertainty(model, x, T=T, chunk=chunk)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (["tanh"], "<method 'sin'"),
        (["sin", "sin"], "<method 'tanh'"),
        (["sin", "tanh", "sin"], "no call was expected"),
    ],
    ids=["other", "late", "more"],
)
def test_a_prefix_that_is_no_function_of_its_input_is_refused(second, expected, x):
    """The second chunk makes other calls than the first."""
    runs = iter([["sin", "tanh"], second])

    def impure(x, layer):
        y = layer(x)
        for name in next(runs):
            x = getattr(x, name)()
        return y

    model = nn.Sequential(Apply(impure, *layers((K, C))))
    with pytest.raises(RuntimeError, match="made other calls in the second chunk") as error:
        predict_with_uncertainty(model, x, T=2, chunk=1)
    text = str(error.value)
    assert f" where {expected}" in text
    assert "it is not a pure function of its input. Pass chunk=T to run all passes in one" in text


def test_layers_that_are_not_called_are_named(x):
    model = Apply(lambda x, plain, unused: plain(x), nn.Linear(K, C), DropConnectLinear(K, C))
    message = r"does not depend on any of its DropConnect layers \(parts\.1\): they are not called"
    with pytest.raises(ValueError, match=message):
        predict_with_uncertainty(model, x, T=T)


@pytest.mark.parametrize(("limit", "sizes"), [(B * 4 * 8 * 3, [3, 3, 1]), (1, [1] * 7)])
def test_positions_count_for_the_size_of_a_forward(limit, sizes, x, monkeypatch):
    """A layer on [B, L, K] makes L times as much of every row; T and B alone do not tell."""
    monkeypatch.setattr(predict_module, "ELEMENTS_PER_LAYER", limit)
    tokens = torch.stack([x, x.sin(), x.cos(), -x], dim=1)
    first, second = layers((K, 8), (8, C))
    parts = [nn.Tanh(), first, Apply(counted), Apply(lambda y: y.mean(dim=1)), second]
    model = nn.Sequential(*parts)
    want = by_hand(model, tokens)
    calls.clear()
    got = predict_with_uncertainty(model, tokens, T=T, return_samples=True)
    assert calls == [B * size for size in sizes]
    assert torch.equal(got.samples, want)
    calls.clear()
    predict_with_uncertainty(model, tokens, T=T, chunk=T)
    assert calls == [B * T]


class Memory(nn.Module):
    """Room for so many rows, then CUDA's exception."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, x):
        if x.shape[0] > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x


@pytest.mark.parametrize("rows_per_forward", [1 << 15, 20])
def test_fewer_passes_where_memory_runs_out(rows_per_forward, x, monkeypatch):
    """Halved until they fit; what the broken forward had kept is not used."""
    monkeypatch.setattr(predict_module, "ROWS_PER_FORWARD", rows_per_forward)
    torch.manual_seed(0)
    branch = nn.Sequential(DropConnectLinear(K, 8), Memory(rows=2 * B))
    join = Apply(lambda x, branch: torch.cat([branch(x), x.sin()], dim=1), branch)
    model = nn.Sequential(nn.Tanh(), Apply(counted), join, DropConnectLinear(8 + K, C))
    got = predict_with_uncertainty(model, x, T=T, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
    with pytest.raises(torch.OutOfMemoryError):
        predict_with_uncertainty(model, x, T=T, chunk=3)
    branch[1].rows = B - 1
    with pytest.raises(torch.OutOfMemoryError):
        predict_with_uncertainty(model, x, T=T)


MIXING = {
    "mean": lambda h: h - h.mean(0),
    "mean of all": lambda h: h / (1 + h.mean()),
    "deviation": lambda h: h / h.std(dim=0, keepdim=True),
    "maximum": lambda h: h - h.max(dim=-2).values,
    "by way of others": lambda h: h * (h.sum(0) / 2).exp(),
    "sort": lambda h: h.sort(0).values,
    "flip": lambda h: torch.flip(h, (0, 1)),
    "flip of all": lambda h: h.flip(0, 1),
    "roll": lambda h: h.roll(1, 0),
    "cumsum": lambda h: h.cumsum(dim=0),
    "softmax": lambda h: F.softmax(h, dim=0),
    "normalize": lambda h: F.normalize(h, dim=0),
    "norm": lambda h: h / h.norm(),
    "attention between inputs": lambda h: (h @ h.T).softmax(1) @ h,
    "batch norm": lambda h: F.batch_norm(h, None, None, training=True),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_inputs_is_refused_where_passes_are_folded(name, x):
    """A mean over the rows would be one over inputs and passes."""
    model = nn.Sequential(*layers((K, C)), Apply(MIXING[name]))
    with pytest.raises(ValueError, match="makes one number of several rows") as error:
        predict_with_uncertainty(model, x, T=T)
    text = str(error.value)
    assert f"{T} passes × {B} inputs are folded into {T * B} rows, which would be mixed" in text
    assert "or pass chunk=1, which runs one pass at a time and mixes the inputs as the" in text
    got = predict_with_uncertainty(model, x, T=T, chunk=1, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
    assert not [p for p in model.parameters() if hasattr(p, "_bayes_dc_mixed")]


WITHIN = {
    "mean": lambda h: h - h.mean(1, keepdim=True),
    "softmax": lambda h: h.softmax(-1),
    "pair": lambda h: torch.max(h, -h),
    "norm": lambda h: F.normalize(h) + h.norm(dim=1, keepdim=True),
    "sort": lambda h: h.sort().values.flip(1).cumsum(1).roll(1, 1),
    "steps first": lambda h: torch.stack([h, h + 1, h + 2]).mean(0),
    "unused": lambda h: (h.mean(), h.max().item(), h)[-1],
    "positions": lambda h: (h[:, :, None] @ h[:, None]).sum((1, 2))[:, None] + h,
    "weight": lambda h: (h @ torch.eye(C, T * B))[:, :C],
    "one by one": lambda h: torch.stack([row - row.mean() for row in h]),
}


@pytest.mark.parametrize("name", WITHIN)
def test_what_stays_within_an_input_is_folded(name, x):
    model = nn.Sequential(*layers((K, C)), Apply(WITHIN[name]))
    got = predict_with_uncertainty(model, x, T=T, return_samples=True)
    assert torch.allclose(got.samples, by_hand(model, x), rtol=1e-6)


def test_an_input_scaled_by_its_batch_is_no_mixing_of_passes(x):
    """It is computed once, before the first mask."""
    model = nn.Sequential(Apply(lambda x: x / x.abs().max()), *layers((K, C)))
    got = predict_with_uncertainty(model, x, T=T, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
