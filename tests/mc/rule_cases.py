"""Runs operations as plain, folded and mixed parts of a plan, by the rules of the package."""

import copy

import pytest
import torch
from plan_harness import Bound
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bayes_dc.mc.plan import build_plan
from bayes_dc.mc.plan_types import SiteIds
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.rng import dropout_key, layer_key

KINDS = ("plain", "folded", "folded and plain", "plain and folded")
SOME = [pytest.param(k, marks=[pytest.mark.slow] * k.startswith("plain")) for k in KINDS]
"""Plain operands in the always running tests are those of ``folded and plain``."""
T = 3


def inputs(*shape, rows=5):
    """Real numbers from −0.75 to 1.25."""
    return torch.rand(rows, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 0.75


class Operations(nn.Module):
    """Each of ``functions(a, b)`` of two tensors that depend on the input, one after the other.

    ``kind`` says which of them passes have their own of, by dropout. Every function gets tensors
    that die with it, so that it may work in place.
    """

    def __init__(self, functions, kind):
        super().__init__()
        self.dropout = nn.Dropout(0.5)  # first: masks of modules are keyed by their number
        self.functions = [f for f in functions if not isinstance(f, nn.Module)]
        self.held = nn.ModuleList(f for f in functions if isinstance(f, nn.Module))
        self.kind, self.widths = kind, []

    def forward(self, x):
        a = b = x
        if self.kind in ("folded", "folded and plain"):
            a = self.dropout(x)
        if self.kind in ("folded", "plain and folded"):
            b = self.dropout(x)
        results = [f(a * 0.75 + 0.25, b * 0.5 - 0.125) for f in self.functions]
        results += [m(a * 0.75 + 0.25) for m in self.held]
        flat = [(y if y.is_floating_point() else y.to(x.dtype)).flatten(1) for y in results]
        self.widths = [y.shape[1] for y in flat]
        whole = torch.cat([y.to(x.dtype) for y in flat], 1)
        return self.dropout(whole) if self.kind == "plain" else whole


def allocations(function, device="cpu"):
    """Bytes of every allocation of torch's allocator in a call; on a GPU only their number."""
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        function()
        return [1] * (torch.cuda.memory_stats().get("allocation.all.allocated", 0) - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        function()
    events = seen.profiler.kineto_results.events()
    return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]


class Runner:
    """A plan bound to the rows of ``x`` and some passes, in an arena full of NaN."""

    def __init__(self, plan, x, passes, seed=0, first=0):
        at = {"device": x.device}
        arena = torch.full((max(plan.arena_bytes, 16),), 0xFF, dtype=torch.uint8, **at)
        keys = []
        for site in plan.sites:
            kind, *words = site.key
            if kind == "function":
                words = [2**32 - 1, *words]
            key = layer_key(seed, *words) if kind == "layer" else dropout_key(seed, *words)
            keys.append(torch.tensor(key, **at))
        ids, steps = torch.arange(len(x), **at), torch.arange(first, first + passes, **at)
        sites = [SiteIds(key, ids, steps) for key in keys]
        bind = Bound(plan, arena, len(x), passes, sites)
        self.input, self.x = bind(plan.input), x
        with torch.no_grad():
            self.calls = [(s, call) for s in plan.steps for call in s.emit(bind)]
        self.output = bind(plan.output)

    def __call__(self):
        """Run it; the output is that of the arena."""
        with torch.no_grad():
            self.input.copy_(self.x)
            for _, (function, args, kwargs) in self.calls:
                function(*args, **kwargs)
        return self.output

    def allocating(self):
        """Steps that allocate, with the bytes of each allocation."""
        self.input.copy_(self.x)
        found = {}
        with torch.no_grad():
            for step, (function, args, kwargs) in self.calls:
                seen = allocations(lambda f=function, a=args, k=kwargs: f(*a, **k), self.x.device)
                if seen:
                    found.setdefault(step.op, []).append(seen)
        return found


def errors(got, want, widths):
    """For each operation the largest difference, in units of its largest value (at least 1)."""
    result, start = [], 0
    for width in widths:
        one, other = (t[..., start : start + width].double() for t in (got, want))
        start += width
        finite = other.isfinite()
        same = torch.equal(one.isnan(), other.isnan())
        same = same and torch.equal(one.isposinf(), other.isposinf())
        if not (same and torch.equal(one.isneginf(), other.isneginf())):
            result.append(float("inf"))
            continue
        difference = torch.where(finite, one - other, 0).abs().max()
        size = torch.where(finite, other, 0).abs().max().clamp(min=1)
        result.append(float(difference / size))
    return result


class Keyed(nn.Module):
    """Dropout with the masks of one pass, for a reference outside of any plan."""

    def __init__(self, number):
        super().__init__()
        self.number, self.calls = number, 0

    def forward(self, x):
        key = torch.tensor(dropout_key(0, 0, self.calls), device=x.device)
        self.calls += 1
        passes = torch.tensor([self.number], device=x.device)
        return keyed_dropout(x, p=0.5, key=key, pass_ids=passes)


def by_pass(model, x):
    """Outputs [T, B, C] of the operators themselves."""
    results, dropout = [], model.dropout
    for number in range(T):
        model.dropout = Keyed(number)
        with torch.no_grad():
            results.append(model(x))
    model.dropout = dropout
    return torch.stack(results)


def check(functions, x, kind="folded", *, mode="strict", names=None, steps=4):
    """Results are as accurate as the operators', whole or pass by pass, repeat, and none allocates.

    ``steps``: roundings that a rule may add to those of the operator, in units of the last place of
    the largest value: what torch computes in one kernel may take several calls.
    """
    model = Operations(functions, kind).eval()
    names = names or [getattr(f, "__name__", str(f)) for f in functions]
    plan = build_plan(model, x, T, mode=mode)
    exact = copy.deepcopy(model).double()
    for rows in (len(x), 1):
        part = x[:rows]
        own, want = by_pass(model, part), by_pass(exact, part.double())
        widths = model.widths
        own = errors(own, want, widths)
        runner = Runner(plan, part, T)
        got = runner().clone()
        for name, error, theirs in zip(names, errors(got, want, widths), own, strict=True):
            allowed = 2 * theirs + steps * torch.finfo(x.dtype).eps
            assert error <= allowed, f"{name}, {kind}, {rows} rows: {error}, torch has {theirs}"
        same = torch.equal(runner().nan_to_num(), got.nan_to_num())
        assert same, "the second run differs"
        if mode == "strict":
            assert not allocations(runner, x.device), runner.allocating()
        # Torch's own functions give other last bits at other places of a tensor.
        one_by_one = [Runner(plan, part, 1, first=p)().clone() for p in range(T)]
        chunked = errors(torch.cat(one_by_one), want, widths)
        for name, error, theirs in zip(names, chunked, own, strict=True):
            allowed = 2 * theirs + steps * torch.finfo(x.dtype).eps
            assert error <= allowed, f"{name}, {kind}, passes one by one: {error}"
    return plan
