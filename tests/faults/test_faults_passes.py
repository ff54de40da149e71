"""Faults that users of such tools have met: passes of a model, planned or folded."""

import warnings

import pytest
import torch
from engine_cases import assert_same
from torch import nn

from bayes_dc import MonteCarloEngine, convert, predict_with_uncertainty
from bayes_dc.mc.engine_guard import ModelChanged
from bayes_dc.models import mlp
from bayes_dc.nn import dropconnect_layers
from bayes_dc.train import predict_inputs

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
ROUNDING = 64 * 2.0**-23  # of probabilities, by sums of a few dozen terms
PATHS = pytest.mark.parametrize("path", ["folded", "engine"])


def network(inputs=12, classes=5, hidden=(16,), device="cpu", p=0.5):
    torch.manual_seed(0)
    model = mlp(inputs, classes, hidden=hidden)
    convert(model, p=p)
    return model.to(device).eval()


def draw(*size, device="cpu"):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(device)


@pytest.mark.gpu
def test_kernels_met_first_while_a_graph_is_captured():
    """source: triton-lang/triton#10596: a kernel that was never run breaks the capture."""
    model, x = network(37, 11, (53,), "cuda"), draw(7, 37, device="cuda")
    graphs = MonteCarloEngine(model, x, T=3)
    got = graphs(x)
    assert graphs.description.endswith("CUDA graph")
    assert_same(got, MonteCarloEngine(model, x, T=3, cuda_graph=False)(x))


@pytest.mark.parametrize(
    ("classes", "T", "path"), [(1, 1, "folded"), (3, 4, "folded"), (1, 1, "engine")]
)
def test_results_are_never_squeezed(classes, T, path):
    """source: aleximmer/Laplace#143: dimensions of size one are gone."""
    model = network(classes=classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one class has probability 1 in every pass
        found = predict_with_uncertainty(model, draw(1, 12), T, return_samples=True, engine=path)
    assert found.mean.shape == found.variance.shape == (1, classes)
    assert found.entropy.shape == found.mutual_information.shape == (1,)
    assert found.samples.shape == (T, 1, classes)


@DEVICES
def test_other_seeds_give_other_masks_and_equal_seeds_the_same(device):
    """source: pytorch/pytorch#46148: a captured graph repeats its random numbers.

    There is no call without a seed: the default is 0.
    """
    model, x = network(device=device), draw(3, 12, device=device)
    engine = MonteCarloEngine(model, x, T=8)
    first, second, third, default = (
        engine(x, **a) for a in ({"seed": 4}, {"seed": 5}, {"seed": 4}, {})
    )
    assert_same(first, third)
    assert not torch.equal(first.mean, second.mean)
    assert_same(default, engine(x, seed=0))


@DEVICES
def test_fewer_inputs_than_the_engine_has_room_for(device):
    """source: mala-project/mala#496: a smaller batch does not fit, or rows of the last one stay."""
    model, x = network(device=device), draw(4, 12, device=device)
    engine = MonteCarloEngine(model, x, T=8)
    whole = engine(x)
    folded = predict_with_uncertainty(model, x, T=8, engine="folded")
    for rows in (3, 4, 1):
        got = engine(x[:rows])
        assert_same(got, whole, slice(0, rows))
        assert torch.allclose(got.mean, folded.mean[:rows], atol=ROUNDING)


@DEVICES
def test_numbers_of_the_host_are_not_frozen_in_silence(device):
    """source: tracel-ai/burn#5779: p, T or the seed change and the graph keeps the old value."""
    model, x = network(device=device), draw(4, 12, device=device)
    engine = MonteCarloEngine(model, x, T=8)
    before = engine(x)
    for name, value in (("T", 50), ("capacity", 9), ("mode", "eager"), ("link", "identity")):
        was = getattr(engine, name)
        wanted = (
            rf"{name} of an engine cannot be changed: its memory was planned for {name} = {was!r}"
        )
        with pytest.raises(AttributeError, match=wanted):
            setattr(engine, name, value)
    assert_same(engine(x), before)
    for layer in dropconnect_layers(model).values():
        layer.p = 0.9
    with pytest.raises(ModelChanged, match=r"'p' of module '1' was 0\.5 .* and is 0\.9 now\. Make"):
        engine(x)
    for path in ("folded", "engine"):
        found = predict_with_uncertainty(model, x, T=8, engine=path)
        assert found.p_effective["1"] == pytest.approx(0.9, abs=1e-3)
        assert found.variance.mean() > before.variance.mean()


@DEVICES
def test_engines_of_different_shapes_in_turn(device):
    """source: ROCm/aiter#5393: the workspace of one lies in the graph of another."""
    cases = [
        (model, draw(rows, width, device=device))
        for model, rows, width in (
            (network(device=device), 4, 12),
            (network(33, 3, (65, 9), device), 6, 33),
        )
    ]
    engines = [MonteCarloEngine(model, x, T=8) for model, x in cases]
    folded = [predict_with_uncertainty(model, x, T=8, engine="folded") for model, x in cases]
    first = [engine(x) for engine, (_, x) in zip(engines, cases, strict=True)]
    for _ in range(5):
        for engine, (_, x), want, eager in zip(engines, cases, first, folded, strict=True):
            got = engine(x)
            assert_same(got, want)
            assert torch.allclose(got.mean, eager.mean, atol=ROUNDING)


@pytest.mark.gpu
def test_memory_of_the_device_grows_with_the_chunk_and_not_with_T():
    """source: baal-org/baal#6: the batch is repeated T times. On a CPU: see COVERED.md."""
    model, x = network(784, 10, (64,), "cuda"), draw(64, 784, device="cuda")

    def peak(T, chunk):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = predict_with_uncertainty(model, x, T, chunk=chunk, engine="folded")
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, found

    peak(50, 50)
    (few, _), (many, by_50), (less, by_25) = peak(100, 50), peak(2000, 50), peak(2000, 25)
    assert many <= 1.1 * few
    assert less < 0.9 * many
    assert_same(by_25, by_50)


def test_results_do_not_depend_on_the_chunk():
    """source: baal-org/baal#6."""
    model, x = network(), draw(6, 12)
    whole = predict_with_uncertainty(model, x, T=20, chunk=20)
    for chunk in (1, 7, 50):
        assert_same(predict_with_uncertainty(model, x, T=20, chunk=chunk), whole)


class Pool:
    """Inputs in the form that ``predict_inputs`` takes."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def batch(self, positions, device):
        return self.x[positions].to(device)


@pytest.mark.gpu
def test_results_of_batches_leave_the_device():
    """source: Imageomics/pybioclip#145: probabilities of all batches stay there to the end."""
    model, device = network(784, 10, (64,), "cuda"), torch.device("cuda")
    live = []

    def watch(prediction, positions):
        assert prediction.mean.device.type == "cpu"
        live.append(torch.cuda.memory_allocated())

    options = {"T": 20, "seed": 0, "batch_size": 500, "device": device, "watch": watch}
    found = predict_inputs(model, Pool(draw(10_000, 784)), **options)
    assert len(found.prediction.mean) == 10_000
    assert len(live) == 20
    assert max(live[2:]) <= max(live[:2])


class Normed(nn.Module):
    """A network with BatchNorm that can be made to fail."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.bn = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)
        self.broken = False

    def forward(self, x):
        x = self.last(self.bn(self.first(x)).relu())
        if self.broken:
            raise ArithmeticError("broken")
        return x


def normed():
    torch.manual_seed(0)
    model = Normed()
    model(draw(64, 6))  # statistics other than 0 and 1
    convert(model, p=0.5)
    return model.eval()


@pytest.mark.parametrize("broken", [False, True])
def test_every_module_keeps_its_mode(broken):
    """source: Lightning-AI/pytorch-lightning#21410: prediction leaves the model in another mode."""
    model, x = normed(), draw(4, 6)
    model.bn.train()
    model.broken = broken
    before = [module.training for module in model.modules()]
    if broken:
        with pytest.raises(ArithmeticError, match="broken"):
            predict_with_uncertainty(model, x, T=10)
    else:
        assert (predict_with_uncertainty(model, x, T=10).variance > 0).any()
    assert [module.training for module in model.modules()] == before
    assert any(before)
    assert not all(before)


@PATHS
def test_batch_statistics_are_neither_used_nor_changed(path):
    """source: lightning-uq-box/lightning-uq-box#173: BatchNorm in training mode, too."""
    model, x = normed(), draw(4, 6)
    model.bn.train()
    before = {name: t.clone() for name, t in model.bn.state_dict().items()}
    whole = predict_with_uncertainty(model, x, T=10, engine=path)
    other = torch.cat([x[:1], 100 * draw(3, 6)])
    changed = predict_with_uncertainty(model, other, T=10, engine=path)
    assert torch.equal(changed.mean[0], whole.mean[0])
    assert torch.equal(changed.mutual_information[0], whole.mutual_information[0])
    for name, value in model.bn.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_one_input_and_batch_normalisation():
    """source: pytorch/pytorch#4534: BatchNorm in training mode refuses a batch of one."""
    model = normed().train()
    found = predict_with_uncertainty(model, draw(1, 6), T=10)
    assert found.mean.isfinite().all()
    assert (found.variance > 0).all()


def nested():
    inner = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    return nn.Sequential(nn.Flatten(), nn.ModuleDict({"a": inner})["a"], nn.Linear(8, 3))


KINDS = {
    "linear": (lambda: mlp(16, 3, hidden=(8,)), (4, 16)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (4, 1, 6, 6),
    ),
    "nested": (nested, (4, 1, 4, 4)),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 3)), (4, 16)),
}


@pytest.mark.parametrize(
    ("kind", "path"),
    [*((kind, "folded") for kind in KINDS), ("nested", "engine")],
)
def test_passes_draw_in_every_kind_of_model(kind, path):
    """source: unit8co/darts#2300: dropout for passes is not switched on everywhere."""
    make, size = KINDS[kind]
    torch.manual_seed(0)
    model = make()
    if kind != "dropout":
        convert(model, p=0.5)
    found = predict_with_uncertainty(model.eval(), draw(*size), T=10, engine=path)
    assert (found.variance > 0).any(dim=1).all()


@pytest.mark.parametrize("make", [MonteCarloEngine, predict_with_uncertainty])
def test_a_model_that_draws_nothing_is_refused(make):
    """source: unit8co/darts#2300."""
    wanted = r"(?s)no (DropConnect )?layer .*so every pass would be equal.*Convert (it|the model)"
    with pytest.raises(ValueError, match=wanted):
        make(mlp(16, 3, hidden=(8,)), draw(4, 16), T=10)


@pytest.mark.parametrize("make", [MonteCarloEngine, predict_with_uncertainty])
@pytest.mark.parametrize("T", [0, -1, 2.5, True, "3"])
def test_numbers_of_passes_that_are_none(make, T):
    """source: baal-org/baal#59: zero passes end in an obscure error."""
    with pytest.raises(ValueError, match=r"T must be an integer of at least 1; got "):
        make(network(), draw(4, 12), T=T)
