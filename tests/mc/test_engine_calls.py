"""What every call of an engine asks of its model, when it asks, and what it hands out."""

import dataclasses

import pytest
import torch
from engine_cases import assert_same, convnet, inputs, network
from torch import nn

from bayes_dc import MonteCarloEngine, predict_with_uncertainty
from bayes_dc.mc import engine_results
from bayes_dc.mc.engine_guard import Guard, ModelChanged
from bayes_dc.mc.engine_results import handed_out
from bayes_dc.mc.engine_snapshot import Snapshot
from bayes_dc.mc.prediction import Prediction
from bayes_dc.mc.statistics import Summary

T = 5


def snapshot(model):
    modules = list(model.modules())
    return Snapshot(modules, [("p",) if "p" in vars(module) else () for module in modules])


def test_it_stays_current_while_a_model_is_used():
    """Modes, hooks that layers need in training, keys of a prediction, writes into weights."""
    for model in (convnet(), network(scope="row", dropout=0.25).train()):
        seen = snapshot(model)
        for step in (
            model.train,
            model.eval,
            lambda model=model: [t.add_(1) for t in model.parameters()],
            lambda model=model: predict_with_uncertainty(model, inputs(model, 2), 3),
        ):
            with torch.no_grad():
                step()
            assert seen.is_current()


def removed(model):
    model.handle.remove()


def own_parts(model):
    model[4]._parameters = {name: t.clone() for name, t in model[4]._parameters.items()}


def moved(model):
    """From the front of one module to the end of the one before."""
    model.one, model.two = nn.Sequential(nn.Tanh()), nn.Sequential(nn.ReLU(), nn.Tanh())
    yield
    model.one.append(model.two._modules.pop("0"))


def renamed(model):
    model.parts = nn.ModuleDict({"a": nn.Tanh(), "b": nn.ReLU()})
    yield
    a, b = model.parts.values()
    model.parts.clear()
    model.parts.update([("b", a), ("a", b)])


def reordered(model):
    model.parts = nn.ModuleDict({"a": nn.Tanh(), "b": nn.ReLU()})
    yield
    model.parts["a"] = model.parts.pop("a")


@pytest.mark.parametrize("change", [moved, renamed, reordered])
def test_the_same_parts_in_other_places_are_named(change):
    model = nn.Sequential(nn.Linear(4, 4))
    steps = change(model)
    next(steps)
    guard = Guard(model)
    guard.check_modules()
    next(steps, None)
    with pytest.raises(ModelChanged, match=r"^The parts of module '\w+' are others than when"):
        guard.check_modules()


OTHERS = {
    "needs gradients": lambda t: t.clone().requires_grad_(),
    "is of inference mode": lambda t: torch.inference_mode()(t.clone)(),
    "is spread over few entries": lambda t: t[:1].expand(len(t)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_results_that_cannot_be_written_over_are_refused_as_a_whole(other):
    model = network(scope="row")
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, T)
    out, kept = engine(x), engine(x).mean
    last = OTHERS[other](out.mutual_information_se)
    with pytest.raises(ValueError, match=r"out must be .*got mutual_information_se = torch.float"):
        engine(-x, out=dataclasses.replace(out, mutual_information_se=last))
    assert torch.equal(out.mean, kept)
    with pytest.raises(ValueError, match="with return_samples=True; got samples = None"):
        engine(-x, out=out, return_samples=True)
    assert torch.equal(out.mean, kept)


CHANGES = {
    "a hook": lambda m: m[4].register_forward_hook(print),
    "a hook of before": lambda m: m[4].register_forward_pre_hook(print),
    "a hook less": removed,
    "a forward": lambda m: setattr(m[2], "forward", torch.tanh),
    "a class": lambda m: setattr(m[2], "__class__", nn.Tanh),
    "a part": lambda m: m.append(nn.Identity()),
    "a parameter": lambda m: m[0].register_parameter("more", nn.Parameter(torch.ones(1))),
    "a part where there was none": lambda m: m[2].register_buffer("more", torch.ones(1)),
    "a part less": lambda m: m.__delitem__(8),
    "parts in another dictionary": own_parts,
    "an option": lambda m: setattr(m[8], "p", 0.25),
    "an option gone": lambda m: m[8].__delattr__("p"),
    "an option that is a tensor": lambda m: setattr(m[8], "p", torch.full((3,), 0.5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_not_current_after(change):
    model = convnet()
    handle = model[5].register_forward_hook(print)
    object.__setattr__(model, "handle", handle)
    seen = snapshot(model)
    assert seen.is_current()
    CHANGES[change](model)
    assert not seen.is_current()


def test_it_is_not_current_without_its_modules():
    model = convnet()
    kept = dict(model.named_children())
    seen = snapshot(model)
    del model
    assert not seen.is_current()
    assert kept


def test_weights_that_are_laid_otherwise_in_the_same_memory_are_named():
    """A square weight transposed by ``data``: same address, same shape, other numbers."""
    model = nn.Sequential(nn.Linear(4, 4))
    guard = Guard(model)
    model[0].weight.data = model[0].weight.data.t()
    with pytest.raises(ModelChanged, match=r"^Parameter '0.weight' is another tensor, or has ot"):
        guard.check()


def test_parts_in_another_dictionary_are_named():
    model = convnet()
    guard = Guard(model)
    own_parts(model)
    with pytest.raises(ModelChanged, match=r"^Parameter '4.weight' is another tensor, or has ot"):
        guard.check()


def test_what_is_refused_hands_out_nothing():
    """Options are looked at while the device is busy, so before its results are copied."""
    model = network(scope="row")
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, T)
    out, want = engine(x), engine(-x, seed=3)
    kept = {name: getattr(out, name).clone() for name in Summary._fields}
    model[1].p = 0.25
    with pytest.raises(ModelChanged, match="Attribute 'p' of module '1' was"):
        engine(-x, seed=3, out=out)
    for name, value in kept.items():
        assert torch.equal(getattr(out, name), value), name
    model[1].p = 0.5
    assert_same(engine(-x, seed=3, out=out), want)
    assert_same(engine(x), Prediction(*kept.values(), None, T, 0, {}, 0.0))


def test_memory_that_is_gone_is_refused_before_anything_runs(monkeypatch):
    """A kernel would read it."""
    model = network(scope="row")
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, T)
    runs = []
    monkeypatch.setattr(engine._runner, "run", lambda *args, **options: runs.append(args))
    model[1].weight.data = model[1].weight.data.clone()
    with pytest.raises(ModelChanged, match=r"Parameter '1.weight' .* it was moved or converted"):
        engine(x)
    assert not runs


def test_what_is_handed_out_is_what_the_constructor_makes():
    model = network(scope="row")
    x = inputs(model, 3)
    got = MonteCarloEngine(model, x, T)(x, return_samples=True)
    fields = {field.name: getattr(got, field.name) for field in dataclasses.fields(Prediction)}
    assert vars(got) == fields
    summary = Summary._make(fields.pop(name) for name in Summary._fields)
    assert repr(handed_out(summary, **fields)) == repr(Prediction(*summary, **fields))
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.T = 3


def test_constants_are_computed_again_where_their_weights_were_written(monkeypatch):
    model = convnet()
    x = inputs(model, 2)
    engine = MonteCarloEngine(model, x, T, mode="workspace")
    workspace = engine._runner.workspace
    done, recompute = [], workspace._recompute
    monkeypatch.setattr(workspace, "_recompute", lambda s: (done.append(s), recompute(s)))
    want = engine(x)
    assert_same(engine(x), want)
    assert not done
    with torch.no_grad():
        model[5].running_var.mul_(2)
    assert not torch.equal(engine(x).mean, want.mean)
    assert 0 < len(done) < len(engine.plan.derived)
    done.clear()
    with torch.no_grad():
        model[5].running_var.mul_(0.5)
    assert_same(engine(x), want)
    assert done
    done.clear()
    engine(x)
    assert not done
    engine.refresh()
    assert len(done) == len(engine.plan.derived)


def test_a_prediction_looks_at_its_model_once(monkeypatch):
    model = network(scope="row")
    x = inputs(model, 2)
    want = predict_with_uncertainty(model, x, T, engine="engine")
    asked, look = [], Guard._in_place
    monkeypatch.setattr(Guard, "_in_place", lambda guard: (asked.append(guard), look(guard))[1])
    assert_same(predict_with_uncertainty(model, x, T, engine="engine"), want)
    assert len(asked) == 1


def test_several_results_are_written_over_in_turn(monkeypatch):
    """They are looked at once; those that nobody holds are let go."""
    model = network(scope="row")
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, T)
    looked, whole = [], engine_results._whole
    monkeypatch.setattr(
        engine_results, "_whole", lambda *args: (looked.append(args), whole(*args))[1]
    )
    outs = [engine(x[:n]) for n in (3, 2, 3, 1)]
    for _ in range(3):
        for seed, out in enumerate(outs):
            rows = x[: len(out.mean)]
            got = engine(rows, seed=seed, out=out)
            assert got.mean is out.mean
            assert_same(out, engine(rows, seed=seed))
    assert len(looked) == len(outs)
    known = engine.results._known
    assert len(known) == len(outs)
    del outs, out, got
    looked.clear()
    more = [engine(x) for _ in range(engine_results.MOST_KNOWN + 1)]
    for out in more:
        engine(x, out=out)
    kept = [refs[0]() for _, refs, _ in engine.results._known]
    assert all(field is out.mean for field, out in zip(kept, reversed(more[1:]), strict=True))


def test_results_with_another_field_are_looked_at_again():
    model = network(scope="row")
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, T)
    out, want = engine(x), engine(-x)
    engine(x, out=out)
    other = dataclasses.replace(out, entropy=torch.zeros_like(out.entropy))
    engine(-x, out=other)
    assert_same(other, want)
    with pytest.raises(ValueError, match=r"this engine returned for 2 inputs; got mean = torch.fl"):
        engine(x[:2], out=out)
