"""MonteCarloEngine: the results of predict_with_uncertainty, at any length, again and again."""

import gc
import threading
import warnings

import pytest
import torch
from engine_cases import assert_near, assert_same, convnet, inputs, network
from torch import nn

from bayes_dc import MonteCarloEngine, convert, predict_with_uncertainty
from bayes_dc.mc.plan_errors import PlanError
from bayes_dc.mc.statistics import Summary
from bayes_dc.models import mlp

T = 11
MODELS = {
    "row": lambda: network(scope="row"),
    "sample": lambda: network(scope="sample"),
    "pass": lambda: network(scope="pass"),
    "gaussian": lambda: network(sampler="gaussian"),
    "dropout": lambda: network(scope="row", dropout=0.25),
    "convolutions": convnet,
}


def folded(model, x, **options):
    return predict_with_uncertainty(
        model, x, options.pop("T", T), return_samples=True, engine="folded", **options
    )


class Planned:
    """A model, inputs and an engine that most tests can share."""

    def __init__(self):
        self.model = network(scope="row")
        self.x = inputs(self.model, 6)
        self.engine = MonteCarloEngine(self.model, self.x[:2], T, capacity=6)


@pytest.fixture(scope="module")
def planned():
    return Planned()


@pytest.mark.parametrize("kind", MODELS)
def test_equal_to_the_folded_path(kind):
    """Logits to rounding, and the statistics of their probabilities."""
    model = MODELS[kind]()
    x = inputs(model, 5)
    engine = MonteCarloEngine(model, x, T, mode="workspace")
    for seed, ids in ((0, None), (7, torch.tensor([3, 10**9, 0, 2**32 - 1, 8]))):
        got = engine(x, seed=seed, sample_ids=ids, return_samples=True)
        want = folded(model, x, seed=seed, sample_ids=ids)
        assert_near(got, want)
        assert (got.T, got.seed) == (T, seed)
        assert got.p_effective == want.p_effective
        assert got.dropout == want.dropout
        assert got.engine == "engine, mode 'workspace'"


@pytest.mark.parametrize("kind", ["dropout"])
def test_chunks_of_passes_change_no_bit(kind):
    model = MODELS[kind]()
    x = inputs(model, 4)
    want = MonteCarloEngine(model, x, T)(x, return_samples=True)
    for rows in (8, 13):
        engine = MonteCarloEngine(model, x, T, rows=rows)
        assert engine.plan.passes_for(4) < T
        assert_same(engine(x, return_samples=True), want)
        assert_same(engine(x[:1], return_samples=True), want, slice(0, 1))
        assert_same(engine(x, return_samples=True), want)


def test_a_layer_is_launched_once_for_each_chunk():
    """And what comes before the first mask once for a call."""
    model = convnet()
    x = inputs(model, 4)
    engine = MonteCarloEngine(model, x, T, rows=20)
    engine(x)
    (prepared,) = engine._runner._runs.values()
    names = [f"{getattr(f, '__module__', '')}.{f.__name__}" for f, _, _ in prepared.calls]
    chunks = -(-T // 5)
    for op in ("conv2d", "linear"):
        assert names.count(f"bayes_dc.ops.{op}.cpu.launch_fwd") == chunks
    assert names.count("bayes_dc.ops.mc_stats.cpu.launch_update") == chunks
    assert sum("max_pool2d" in name for name in names) == 1


def test_a_run_that_breaks_off_leaves_nothing_behind(planned):
    x, engine = planned.x, MonteCarloEngine(planned.model, planned.x, T, rows=12)
    want = engine(x[:1])  # one chunk; six inputs take several
    prepared = engine._runner._prepared(6, False)
    calls = list(prepared.calls)
    prepared.calls[len(calls) // 2 :] = [(torch.ones(2).add_, (torch.ones(3),), {})]
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        engine(x)
    assert_same(engine(x[:1]), want)
    prepared.calls[:] = calls
    assert_same(engine(x), planned.engine(x))


def test_any_length_up_to_the_capacity_in_turn(planned):
    """Longer and shorter in turn: no row of an earlier call lives on, nothing is planned anew."""
    model, x, engine = planned.model, planned.x, planned.engine
    plan, arena = engine.plan, engine.memory_bytes()["arena"]
    want = engine(x, return_samples=True)
    for rows in (1, 5, 6, 2, 1, 3):
        assert_same(engine(x[:rows], return_samples=True), want, slice(0, rows))
    assert engine.plan is plan
    assert engine.memory_bytes()["arena"] == arena
    assert engine(x[:0], return_samples=True).samples.shape == (T, 0, want.mean.shape[1])
    with pytest.raises(
        ValueError, match="x holds 7 inputs, and the engine has room for capac"
    ) as e:
        engine(inputs(model, 7))
    assert "capacity = 6. Split x (x.split(6)), or make an engine with capacity=7." in str(e.value)


def test_seeds_and_ids_change_between_calls(planned):
    x, engine = planned.x[:4], planned.engine
    want = engine(x)
    other = engine(x, seed=2**64 - 1)
    assert not torch.equal(other.mean, want.mean)
    assert_same(engine(x), want)
    ids = torch.tensor([3, 1, 2, 0])
    swapped = engine(x[ids], sample_ids=ids)
    for name in Summary._fields:
        assert torch.equal(getattr(swapped, name), getattr(want, name)[ids]), name
    assert_same(engine(x), want)
    assert_same(engine(x[:2]), want, slice(0, 2))
    assert engine(x, seed=torch.tensor(5)).seed == 5
    assert_same(engine(x, seed=False or 0), want)


def test_results_are_never_written_over(planned):
    x, engine = planned.x[:4], planned.engine
    first = engine(x, return_samples=True)
    kept = {name: getattr(first, name).clone() for name in (*Summary._fields, "samples")}
    engine(-x, seed=3, return_samples=True)
    for name, value in kept.items():
        assert torch.equal(getattr(first, name), value), name


def test_out_is_written_over(planned):
    model, x, engine = planned.model, planned.x[:4], planned.engine
    want = engine(-x, return_samples=True)
    out = engine(x, return_samples=True)
    got = engine(-x, out=out, return_samples=True)
    assert_same(got, want)
    assert got.mean is out.mean
    assert got.samples is out.samples
    # Tensors that do not lie as the engine lays them.
    apart = predict_with_uncertainty(model, x, T)
    assert_same(engine(-x, out=apart), engine(-x))
    with pytest.raises(ValueError, match="out must be a Prediction whose tensors are to be") as e:
        engine(x[:2], out=out)
    assert "that this engine returned for 2 inputs; got mean = torch.float64 [4, 5]" in str(e.value)
    with pytest.raises(ValueError, match=r"got dict\. Leave it out to get fresh tensors\."):
        engine(x, out={})
    with pytest.raises(ValueError, match="for 4 inputs with return_samples=True; got samples = N"):
        engine(x, out=engine(x), return_samples=True)


def test_weights_that_are_changed_in_place_are_seen():
    """By an optimizer, load_state_dict and copy_; through .data after refresh()."""
    model = convnet()
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, T, mode="workspace")
    before = engine(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    model(x).square().sum().backward()  # BatchNorm's running statistics move too
    optimizer.step()
    model.eval()
    assert not torch.equal(engine(x).mean, before.mean)
    assert_near(engine(x, return_samples=True), folded(model, x))
    model.load_state_dict({k: v.clone() * 1.5 for k, v in model.state_dict().items()})
    assert_near(engine(x, return_samples=True), folded(model, x))
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    engine.refresh()
    assert_near(engine(x, return_samples=True), folded(model, x))


def test_the_mode_of_the_model_does_not_matter():
    model = network(scope="row", dropout=0.25)
    x = inputs(model, 3)
    engine = MonteCarloEngine(model.train(), x, T)
    want = engine(x)
    assert all(module.training for module in model.modules())
    assert_same(engine(x), want)
    assert_same(MonteCarloEngine(model.eval(), x, T)(x), want)


def test_one_engine_for_several_threads(planned):
    x, engine = planned.x[:4], planned.engine
    want = [engine(x[:n], seed=n) for n in (1, 2, 3, 4)]
    found = {}

    def work(n):
        for turn in range(5):
            found[n, turn] = engine(x[:n], seed=n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for (n, _), got in found.items():
        assert_same(got, want[n - 1])
        assert got.seed == n


def test_within_inference_mode_and_with_gradients_on():
    model = network(scope="row")
    x = inputs(model, 3)
    with torch.inference_mode():
        engine = MonteCarloEngine(model, x, T)
        want = engine(x)
    with torch.enable_grad():
        got = engine(x.clone().requires_grad_())
    assert_same(got, want)
    assert not got.mean.requires_grad
    assert not want.mean.is_inference()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.float64, torch.float16)),
    ],
)
def test_other_dtypes(dtype):
    model = network(scope="row").to(dtype)
    x = inputs(model, 3)
    got = MonteCarloEngine(model, x, T)(x, return_samples=True)
    assert_near(got, folded(model, x), eps=torch.finfo(dtype).eps)


def test_probabilities_of_the_model_itself():
    model = nn.Sequential(*network(scope="row"), nn.Softmax(dim=1))
    x = inputs(model, 3)
    got = MonteCarloEngine(model, x, T, link="identity")(x, return_samples=True)
    assert_near(got, folded(model, x, link="identity"))


def test_eager_mode_is_the_folded_path():
    model = network(scope="row")
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, T, capacity=4, mode="eager")
    assert_same(engine(x, seed=2, return_samples=True), folded(model, x, seed=2))
    assert engine(x).engine == "folded: asked for"
    with pytest.raises(
        ValueError, match=r"mode='eager' has no plan\. Make the engine with mode='s"
    ):
        print(engine.plan)
    with pytest.raises(ValueError, match="and the engine has room for capacity = 4"):
        engine(inputs(model, 5))
    engine.refresh()
    assert engine.memory_bytes() == {}
    assert engine.difference() is None


def test_what_is_refused_at_construction():
    model = network(scope="row")
    x = inputs(model, 3)
    with pytest.raises(ValueError, match=r"mode must be one of \('strict', 'workspace', 'eager'\)"):
        MonteCarloEngine(model, x, T, mode="fast")
    with pytest.raises(ValueError, match=r"must hold at least one input.*got shape \[0, 12\]"):
        MonteCarloEngine(model, x[:0], T)
    with pytest.raises(TypeError, match="x must be a tensor with the inputs along its first"):
        MonteCarloEngine(model, [1.0], T)
    for name in ("capacity", "rows", "memory"):
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1; got 0"):
            MonteCarloEngine(model, x, T, **{name: 0})
    with pytest.raises(ValueError, match="T must be an integer of at least 1; got 0"):
        MonteCarloEngine(model, x, 0)
    plain = mlp(12, 5, hidden=(8,))
    with pytest.raises(PlanError, match="no layer with masks comes before it"):
        MonteCarloEngine(plain, x, T)
    tokens = nn.Sequential(nn.Linear(12, 5))
    convert(tokens)
    with pytest.raises(PlanError, match=r"rather than one floating point tensor \[rows, classes\]"):
        MonteCarloEngine(tokens, torch.zeros(3, 4, 12), T)


def test_what_is_refused_at_a_call(planned):
    model, x, engine = planned.model, planned.x[:3], planned.engine
    with pytest.raises(TypeError, match="along its first dimension; got list"):
        engine([1.0])
    with pytest.raises(ValueError, match=r"x must be torch.float32, as the example was; got torch"):
        engine(x.double())
    with pytest.raises(
        ValueError, match=r"have shape \[b, 12\], as the example had; got \[3, 11\]"
    ):
        engine(x[:, :11])
    with pytest.raises(ValueError, match="x must be on cpu, where the engine was made; got one on"):
        engine(x.to("meta"))
    for bad in (torch.arange(2), torch.arange(3).float(), [0, 1, 2]):
        with pytest.raises(ValueError, match=r"int64 tensor of shape \[3\], one id per row of x"):
            engine(x, sample_ids=bad)
    with pytest.raises(ValueError, match="seed must be an integer in 0"):
        engine(x, seed=-1)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ValueError, match="for the dtypes of its model; inside torch"),
    ):
        engine(x)
    assert_near(engine(x, return_samples=True), folded(model, x))


def test_nothing_is_said_of_odd_inputs(planned):
    """To know would wait for the device; predict_with_uncertainty does."""
    x, engine = planned.x[:3], planned.engine
    want = engine(x)
    x = x.clone()
    x[1] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = engine(x)
    assert got.mean[1].isnan().all()
    for row in (0, 2):
        assert torch.equal(got.mean[row], want.mean[row])


def test_an_engine_keeps_its_model():
    """It may be all that is left of a function that loaded a network."""
    for mode in ("strict", "eager"):
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        convert(model, 0.5)
        engine = MonteCarloEngine(model, x, T=4, mode=mode)
        want = engine(x).mean
        model = None
        gc.collect()
        assert torch.equal(engine(x).mean, want)


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_autocast_within_a_forward(kind):
    """Layers with masks compute in its dtype, as in the folded path."""

    class Within(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network(scope="row") if kind == "linear" else convnet()

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x).float()

    torch.manual_seed(0)
    model = Within().eval()
    x = inputs(model.inner, 3)
    engine = MonteCarloEngine(model, x, T, mode="workspace")
    drawn = [value for step in engine.plan.steps if "planned" in step.op for value in step.writes]
    assert {value.dtype for value in drawn} == {torch.bfloat16}
    if kind == "linear":  # torch's own convolutions round by the number of rows
        got, want = engine(x, return_samples=True), folded(model, x)
        assert (got.samples - want.samples).abs().max() <= 2**-12
