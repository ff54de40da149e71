"""predict_with_uncertainty: what it returns, and that nothing but the masks decides it."""

import dataclasses
import warnings

import pytest
import torch
from live_bytes import LiveBytes
from torch import Tensor, nn

import bayes_dc.mc.predict as predict_module
from bayes_dc import DropConnectLinear, Prediction, convert, predict_with_uncertainty
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys

K, C = 12, 4


def network(*, p=0.5, hidden=(16, 8), classes=C, prefix=()):
    """A network in which every linear layer drops weights."""
    torch.manual_seed(0)
    model = nn.Sequential(*prefix, *mlp(K, classes, hidden=hidden))
    convert(model, p)
    return model


def inputs(rows, *, seed=1):
    return torch.randn(rows, K, generator=torch.Generator().manual_seed(seed))


def tensors(prediction):
    """The tensor fields by name; those over passes and inputs with the inputs first."""
    fields = {f.name: getattr(prediction, f.name) for f in dataclasses.fields(Prediction)}
    if fields["samples"] is not None:
        fields["samples"] = fields["samples"].transpose(0, 1)
    return {name: value for name, value in fields.items() if isinstance(value, Tensor)}


def assert_equal(got, want, rows=slice(None)):
    """Equal to the bit in every field."""
    got, want = tensors(got), tensors(want)
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert torch.equal(value, want[name][rows]), name


@pytest.mark.parametrize(("p", "classes", "T"), [(0.5, 4, 9), (0.3, 10, 3), (0.5, 133, 41)])
def test_an_input_has_one_result_whatever_its_batch(p, classes, T):
    """All at once; one by one; batches of 4 with a smaller last one; shuffled."""
    model, x, ids = network(p=p, classes=classes), inputs(13), torch.arange(100, 113)
    options = {"T": T, "seed": 3, "return_samples": True}
    want = predict_with_uncertainty(model, x, sample_ids=ids, **options)
    shuffled = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    for rows in (*torch.arange(13).split(1), *torch.arange(13).split(4), shuffled):
        got = predict_with_uncertainty(model, x[rows], sample_ids=ids[rows], **options)
        assert_equal(got, want, rows)


def test_sample_ids_are_the_place_in_the_batch_unless_given():
    model, x = network(), inputs(7)
    want = predict_with_uncertainty(model, x, T=4)
    assert_equal(predict_with_uncertainty(model, x, T=4, sample_ids=torch.arange(7)), want)
    for rows in torch.arange(7).split(4):
        assert_equal(predict_with_uncertainty(model, x[rows], 4, sample_ids=rows), want, rows)
    # Equal inputs with other ids meet other masks.
    same = predict_with_uncertainty(model, x[:1].expand(5, K), T=4)
    assert len(same.mean.unique(dim=0)) == 5


@pytest.mark.parametrize("prefix", [(), (nn.Tanh(), nn.LayerNorm(K))], ids=["bare", "prefix"])
def test_chunking_changes_no_bit(prefix, monkeypatch):
    model, x = network(prefix=prefix), inputs(5)
    want = predict_with_uncertainty(model, x, T=23, return_samples=True)
    for chunk in (1, 2, 7, 22, 23, 1000):
        got = predict_with_uncertainty(model, x, T=23, chunk=chunk, return_samples=True)
        assert_equal(got, want)
    monkeypatch.setattr(predict_module, "ROWS_PER_FORWARD", 18)  # three passes of five rows
    assert_equal(predict_with_uncertainty(model, x, T=23, return_samples=True), want)
    monkeypatch.setattr(predict_module, "ROWS_PER_FORWARD", 1)  # less than one pass
    assert_equal(predict_with_uncertainty(model, x, T=23, return_samples=True), want)


def test_equal_to_single_passes_made_by_hand():
    """Pass t is one evaluation forward with the masks of (seed, layer, sample, t)."""
    model, x, ids = network(), inputs(6), torch.tensor([8, 3, 10**9, 2**32 - 1, 0, 5])
    got = predict_with_uncertainty(model, x, T=7, seed=11, sample_ids=ids, return_samples=True)
    keys = MaskKeys(11)
    model.eval()
    with keys.attached(model), torch.no_grad():
        for step in range(7):
            keys.set(pass_ids=step, sample_ids=ids)
            assert torch.equal(got.samples[step], model(x).double().softmax(dim=1))


def test_repeats_to_the_bit_and_other_seeds_differ():
    model, x = network(), inputs(5)
    want = predict_with_uncertainty(model, x, T=6)
    assert_equal(predict_with_uncertainty(model, x, T=6, seed=0), want)
    for seed in (1, 2**32, 2**64 - 1):
        other = predict_with_uncertainty(model, x, T=6, seed=seed)
        assert other.seed == seed
        assert not torch.equal(other.mean, want.mean)


def test_more_passes_begin_with_the_same_passes():
    model, x = network(), inputs(5)
    few = predict_with_uncertainty(model, x, T=3, return_samples=True)
    many = predict_with_uncertainty(model, x, T=8, return_samples=True)
    assert torch.equal(many.samples[:3], few.samples)


def test_what_a_prediction_holds():
    model, x = network(p=0.1), inputs(5)
    got = predict_with_uncertainty(model, x, T=6, return_samples=True)
    assert got.samples.shape == (6, 5, C)
    for name in ("mean", "variance", "mean_se"):
        assert getattr(got, name).shape == (5, C)
    for name in ("entropy", "expected_entropy", "mutual_information", "variation_ratio",
                 "mutual_information_corrected", "entropy_se", "mutual_information_se",
                 "predicted", "confidence"):  # fmt: skip
        assert getattr(got, name).shape == (5,)
    assert {value.dtype for value in tensors(got).values()} == {torch.float64}
    assert (got.T, got.seed) == (6, 0)
    assert got.p_effective == {"1": 51 / 512, "3": 51 / 512, "5": 51 / 512}
    assert got.elapsed_seconds > 0
    assert torch.equal(got.predicted, got.mean.argmax(dim=1))
    assert torch.equal(got.confidence, got.mean.max(dim=1).values)
    assert predict_with_uncertainty(model, x, T=6).samples is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_pass_has_no_spread(dtype):
    """T = 1: exact zeros, neither NaN from T − 1 nor a rounding left over."""
    got = predict_with_uncertainty(network().to(dtype), inputs(5).to(dtype), T=1)
    for name in ("variance", "mutual_information", "mutual_information_corrected",
                 "variation_ratio", "mean_se", "entropy_se", "mutual_information_se"):  # fmt: skip
        assert not getattr(got, name).any(), name
    assert torch.equal(got.entropy, got.expected_entropy)


@pytest.mark.parametrize("T", [1, 5])
def test_shapes_are_never_squeezed(T):
    """One input, one class: probability 1 without variance, which is said."""
    model = network(classes=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = predict_with_uncertainty(model, inputs(1), T=T, return_samples=True)
    assert len(said) == (T > 1)
    for warning in said:
        assert "the softmax of one number is 1 whatever it is" in str(warning.message)
        assert "return the two logits [0, z]" in str(warning.message)
        assert "[1 − p, p] and pass link='identity'." in str(warning.message)
    assert torch.equal(got.mean, torch.ones(1, 1, dtype=torch.float64))
    assert got.samples.shape == (T, 1, 1)
    assert got.entropy.tolist() == [0.0]


@pytest.mark.parametrize("chunk", [None, 2])
def test_an_empty_batch_gives_an_empty_prediction(chunk):
    got = predict_with_uncertainty(network(), inputs(0), T=5, chunk=chunk, return_samples=True)
    assert got.mean.shape == got.variance.shape == (0, C)
    assert got.entropy.shape == got.mutual_information_se.shape == (0,)
    assert got.samples.shape == (5, 0, C)
    assert got.T == 5


def test_batches_of_changing_length_in_turn():
    """3 rows, then 4, then 1: no row of an earlier batch lives on."""
    model, x = network(), inputs(4)
    want = predict_with_uncertainty(model, x, T=5)
    for rows in (3, 4, 1):
        assert_equal(predict_with_uncertainty(model, x[:rows], T=5), want, slice(rows))


def test_statistics_are_those_of_the_samples():
    model, x = network(), inputs(5)
    got = predict_with_uncertainty(model, x, T=30, chunk=7, return_samples=True)
    # Sums of 30 numbers below 1 in float64.
    torch.testing.assert_close(got.mean, got.samples.mean(dim=0), rtol=0, atol=30 * 2.0**-52)
    torch.testing.assert_close(got.variance, got.samples.var(dim=0), rtol=0, atol=30 * 2.0**-52)


def test_identity_takes_a_model_of_probabilities():
    """Softmax in float32 inside the model, or in float64 outside."""
    model, x = network(), inputs(5)
    want = predict_with_uncertainty(model, x, T=6)
    model.append(nn.Softmax(dim=1))
    got = predict_with_uncertainty(model, x, T=6, link="identity")
    torch.testing.assert_close(got.mean, want.mean, rtol=0, atol=4 * 2.0**-24)


@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_not_finite_are_said_and_hurt_no_other(bad, link):
    model, x = network(), inputs(6)
    if link == "identity":
        model.append(nn.Softmax(dim=1))
    want = predict_with_uncertainty(model, x, T=5, link=link)
    x[2, 3] = bad
    x[4] = bad
    with pytest.warns(UserWarning, match="2 of 6 inputs hold NaN or infinite values") as said:
        got = predict_with_uncertainty(model, x, T=5, link=link)
    assert "(first row: 2)" in str(said[0].message)
    assert said[0].filename == __file__
    for name, value in tensors(got).items():
        assert torch.equal(value[[0, 1, 3, 5]], tensors(want)[name][[0, 1, 3, 5]]), name
    assert got.mean[4].isnan().all()
    assert got.entropy[4].isnan()
    assert got.variation_ratio[4].isnan()  # not 0, as if every pass agreed


def test_passes_without_variance_are_said_with_the_layers():
    """p = 0 drops nothing: an exact zero, and a warning that names the layers."""
    model, x = network(p=0.0), inputs(5)
    with pytest.warns(UserWarning, match="All 7 passes gave the same probabilities") as said:
        got = predict_with_uncertainty(model, x, T=7)
    names = "1 (p = 0.0), 3 (p = 0.0), 5 (p = 0.0)."
    assert f"without meaning. DropConnect layers: {names}" in " ".join(str(said[0].message).split())
    assert said[0].filename == __file__
    assert not got.variance.any()
    assert not got.mutual_information.any()
    predict_with_uncertainty(model, x, T=1)
    predict_with_uncertainty(model, x[:0], T=7)


def test_a_head_of_zeros_is_named_as_a_cause():
    model, x = network(p=0.5), inputs(5)
    nn.init.zeros_(model[5].weight)
    with pytest.warns(UserWarning, match="weights of the last layer are all zero"):
        predict_with_uncertainty(model, x, T=7)


def test_a_new_p_holds_in_the_next_call():
    """Nothing of a layer is frozen by an earlier prediction."""
    model, x = network(p=0.01), inputs(20)
    before = predict_with_uncertainty(model, x, T=40)
    for layer in (model[1], model[3], model[5]):
        layer.p = 0.75
    after = predict_with_uncertainty(model, x, T=40)
    assert set(after.p_effective.values()) == {0.75}
    assert after.variance.mean() > 2 * before.variance.mean()


def test_mean_and_variance_are_those_of_the_closed_form():
    """E[y] = W x + b, Var[y] = p/(1−p) Σ_k (W_k x_k)², 5 standard errors, for one layer.

    With logits [y, 0] the class probabilities tell y: y = log p₀ − log p₁.
    """

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = DropConnectLinear(K, 1, p=0.25, dtype=torch.float64)

        def forward(self, x):
            y = self.layer(x)
            return torch.cat([y, torch.zeros_like(y)], dim=1)

    torch.manual_seed(0)
    model, x, T = Logits(), inputs(50).double(), 4096
    samples = predict_with_uncertainty(model, x, T=T, return_samples=True).samples.log()
    y = samples[..., 0] - samples[..., 1]
    weight, q = model.layer.weight[0].detach(), 0.25
    terms = (x * weight).square()
    mean, variance = x @ weight + model.layer.bias.detach(), q / (1 - q) * terms.sum(dim=1)
    assert ((y.mean(dim=0) - mean).abs() <= 5 * (variance / T).sqrt()).all()
    # Var(s²) ≈ (μ₄ − σ⁴) / T; κ₄ of a kept-or-dropped term is its square times this.
    fourth = terms.square().sum(dim=1) * (q / (1 - q)) ** 2 * ((1 - q) / q + q / (1 - q) - 4)
    spread = ((fourth + 2 * variance.square()) / T).sqrt()
    assert ((y.var(dim=0) - variance).abs() <= 5 * spread).all()


def test_memory_does_not_grow_with_the_number_of_passes():
    model, x = network(hidden=(64, 64)), inputs(40)

    def peak(T, chunk):
        with LiveBytes() as memory:
            predict_with_uncertainty(model, x, T=T, chunk=chunk)
        return memory.peak

    assert peak(400, 10) == peak(40, 10)
    # What the peak consists of: activations of one chunk.
    assert peak(40, 20) > 1.5 * peak(40, 10)


def test_rows_of_one_forward_are_limited(monkeypatch):
    rows = []
    model = network()
    model[1].register_forward_hook(lambda module, args, output: rows.append(len(output)))
    monkeypatch.setattr(predict_module, "ROWS_PER_FORWARD", 20)
    predict_with_uncertainty(model, inputs(6), T=7)
    assert rows == [18, 18, 6]


def test_inputs_of_any_shape_and_type():
    """Images, token numbers, half precision; outputs with strides of their own."""
    images = predict_with_uncertainty(network(), inputs(5).view(5, 3, 2, 2), T=4)
    assert_equal(images, predict_with_uncertainty(network(), inputs(5), T=4))

    words = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    convert(words)
    got = predict_with_uncertainty(words, torch.arange(6).view(2, 3), T=4)
    assert got.variance.all()

    class Transposed(nn.Module):
        def forward(self, y):
            return y.t().contiguous().t()

    model = network().double()
    want = predict_with_uncertainty(model, inputs(5).double(), T=4)
    model.append(Transposed())
    assert_equal(predict_with_uncertainty(model, inputs(5).double(), T=4), want)

    half = predict_with_uncertainty(network().bfloat16(), inputs(5).bfloat16(), T=4)
    assert half.mean.dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        cast = predict_with_uncertainty(network(), inputs(5), T=4)
    assert torch.equal(cast.mean, half.mean)


def test_a_transformer_block_draws_its_masks():
    """torch's fused encoder path would read the weights past the layers."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)
    model = nn.Sequential(block, nn.Flatten(), nn.Linear(36, 3))
    report = convert(model, select=lambda name, _: name == "0.linear1")
    assert list(report.converted) == ["0.linear1"]
    x = inputs(12).view(4, 3, 12)
    options = {"T": 6, "return_samples": True, "dropout": False}
    got = predict_with_uncertainty(model, x, **options)
    assert (got.variance > 0).all()
    single = predict_with_uncertainty(model, x, chunk=1, **options)
    # Matrix products of other heights round in other ways.
    torch.testing.assert_close(got.samples, single.samples, rtol=0, atol=64 * 2.0**-24)


def test_arguments_of_other_integer_types():
    model, x = network(), inputs(3)
    want = predict_with_uncertainty(model, x, T=4, seed=5, chunk=2)
    numpy = pytest.importorskip("numpy")
    got = predict_with_uncertainty(
        model, x, T=numpy.int64(4), seed=torch.tensor(5), chunk=numpy.int32(2)
    )
    assert_equal(got, want)
    assert (type(got.T), type(got.seed)) == (int, int)
