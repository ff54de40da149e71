"""predict_with_uncertainty and its engines: which path runs; engines are kept and renewed."""

import gc
import weakref

import pytest
import torch
from engine_cases import assert_near, assert_same, convnet, inputs, network
from torch import nn

import bayes_dc.mc.engine as engine_module
import bayes_dc.mc.engine_cache as cache
import bayes_dc.mc.predict as predict_module
from bayes_dc import predict_with_uncertainty
from bayes_dc.mc.plan_errors import PlanError

T = 7


def by_engine(model, x, **options):
    return predict_with_uncertainty(model, x, T, engine="engine", return_samples=True, **options)


def folded(model, x, **options):
    return predict_with_uncertainty(model, x, T, engine="folded", return_samples=True, **options)


@pytest.fixture
def plans(monkeypatch):
    """The models that have been planned for."""
    made = []
    build = engine_module.build_plan

    def counting(model, *args, **options):
        made.append(weakref.ref(model))
        return build(model, *args, **options)

    monkeypatch.setattr(engine_module, "build_plan", counting)
    return made


def test_an_engine_is_kept_until_the_model_changes(plans):
    model = network(scope="row")
    x = inputs(model, 4)
    got = by_engine(model, x)
    assert got.engine == "engine, mode 'workspace'"
    assert_near(got, folded(model, x))
    assert_same(by_engine(model, x), got)
    assert_near(by_engine(model, x, seed=5), folded(model, x, seed=5))
    ids = torch.tensor([9, 0, 3, 3])
    assert_near(by_engine(model, x, sample_ids=ids), folded(model, x, sample_ids=ids))
    assert len(plans) == 1
    for change in (
        lambda: setattr(model[1], "p", 0.25),
        lambda: setattr(model[3], "weight", nn.Parameter(model[3].weight.detach() * 2)),
        lambda: model.load_state_dict(
            {k: v.clone() for k, v in model.state_dict().items()}, assign=True
        ),
    ):
        change()
        assert_near(by_engine(model, x), folded(model, x))
    assert len(plans) == 4
    for other in (x[:3], x[:2]):
        assert_near(by_engine(model, other), folded(model, other))
    assert len(plans) == 6


def test_writes_that_torch_does_not_count_are_seen():
    model = convnet()
    x = inputs(model, 3)
    by_engine(model, x)
    for tensor in (*model.parameters(), model[1].running_var):
        tensor.data.mul_(1.5)
    assert_near(by_engine(model, x), folded(model, x))


def test_few_engines_are_kept(plans, monkeypatch):
    monkeypatch.setattr(cache, "MOST_ENGINES", 1)
    model = network(scope="row")
    x = inputs(model, 3)
    for rows in (1, 2, 2, 1):
        by_engine(model, x[:rows])
    assert len(plans) == 3
    assert len(cache._engines[model]) == 1


def test_engines_go_with_their_model():
    model = network(scope="row")
    by_engine(model, inputs(model, 2))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_what_is_reported_is_that_of_the_folded_path():
    model = network(scope="row", dropout=0.25)
    model.append(nn.Dropout(0.5))
    model.unused = nn.Dropout(0.5)
    model.forward = lambda x: nn.Sequential(*list(model)[:-1])(x)
    x = inputs(model, 3)
    with pytest.warns(UserWarning, match="Dropout layers unused were not called") as said:
        got = by_engine(model, x)
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match="were not called"):
        want = folded(model, x)
    for name in ("dropout", "p_effective", "T", "seed"):
        assert getattr(got, name) == getattr(want, name), name


def test_what_is_said_of_inputs_and_outputs_is_said_too():
    model = network(scope="row")
    x = inputs(model, 3)
    x[1, 0] = torch.inf
    with pytest.warns(UserWarning, match="1 of 3 inputs hold NaN or infinite values"):
        by_engine(model, x)
    with pytest.raises(ValueError, match="link='identity' needs a model that returns class prob"):
        by_engine(model, inputs(model, 3), link="identity")
    with torch.no_grad():
        model[5].weight.zero_()
    with pytest.warns(UserWarning, match="All 7 passes gave the same probabilities"):
        by_engine(model, inputs(model, 3))


def test_which_path_runs_and_why(monkeypatch):
    """Nothing that ran before decides it."""
    model = network(scope="row")
    x = inputs(model, 3)
    for _ in range(2):
        got = predict_with_uncertainty(model, x, T)
        assert got.engine.startswith("folded: on a CPU an engine is made only when asked for")
        by_engine(model, x)
    assert folded(model, x).engine == "folded: asked for"
    assert by_engine(model, x[:0]).engine == "folded: there are no inputs"
    auto = predict_with_uncertainty(model, x, "auto", standard_error=0.2, engine="engine")
    assert auto.engine == "folded: T='auto' looks at the passes while they run"
    cuda = torch.device("cuda")

    class OnGpu:
        is_cuda, device = True, cuda

        def __len__(self):
            return 3

    why = cache.why_folded
    assert why("auto", model, OnGpu(), chunk=None, auto_T=False) is None
    assert why("auto", model, OnGpu(), chunk=2, auto_T=False) == "folded: chunk is given"
    hook = model[3].register_forward_hook(lambda *_: None)
    reason = why("auto", model, OnGpu(), chunk=None, auto_T=False)
    assert reason == "folded: module '3' has hooks, which an engine would not call"
    hook.remove()
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    reason = why("auto", model, OnGpu(), chunk=None, auto_T=False)
    assert reason.startswith("folded: inside an autocast block")
    with pytest.raises(ValueError, match=r"engine must be one of \('auto', 'engine', 'folded'\); "):
        predict_with_uncertainty(model, x, T, engine="fast")


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0)


def test_a_model_without_a_plan():
    """Asked for, it is an error; left to ``auto``, the folded path with the reason."""
    model = nn.Sequential(network(scope="row"), Mixing())
    x = inputs(model, 3)
    with pytest.raises(PlanError, match="works along the dimension of the inputs") as caught:
        by_engine(model, x)
    assert "test_engine_predict.py:" in str(caught.value)
    arguments = {"seed": 0, "chunk": None, "link": "softmax", "dropout": True}
    for _ in range(2):  # the second time without planning
        found = cache.passes_by_engine("auto", model, x, None, T, return_samples=False, **arguments)
        assert found == f"folded: {caught.value}"
    model[1] = nn.Identity()
    found = cache.passes_by_engine("auto", model, x, None, T, return_samples=False, **arguments)
    assert found.engine == "engine, mode 'workspace'"


def test_folding_a_model_without_a_plan_is_said(monkeypatch):
    """As on a GPU, where ``auto`` tries for an engine; not where folding is asked for."""
    why = cache.why_folded
    monkeypatch.setattr(predict_module, "why_folded", lambda *_, **__: None)
    model = nn.Sequential(network(scope="row"), Mixing())
    x = inputs(model, 3)
    said = (
        r"^The passes ran folded: No plan without allocations for aten\.\w+\.\w+ at \w+ "
        r"\(1, \S*test_engine_predict\.py:\d+\): it works along the dimension of the inputs.*"
        r" Pass engine='folded' if that is what you want\.$"
    )
    with pytest.warns(UserWarning, match=said):
        got = predict_with_uncertainty(model, x, T, chunk=1)
    assert got.engine.startswith("folded: No plan without allocations for ")
    monkeypatch.setattr(predict_module, "why_folded", why)
    asked = predict_with_uncertainty(model, x, T, chunk=1, engine="folded")
    assert asked.engine == "folded: asked for"
    assert torch.equal(asked.mean, got.mean)


def test_chunk_is_the_size_of_the_engines_chunks():
    model = network(scope="row")
    x = inputs(model, 3)
    assert_same(by_engine(model, x, chunk=2), by_engine(model, x))
    (engine,) = [e for key, e in cache._engines[model].items() if 2 in key[4:5]]
    assert engine.plan.rows == 6
