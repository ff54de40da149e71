"""Rules for any operator and a tiny executor: plans can be run without the rules of the package.

A rule here computes with the operator itself and copies the result into its place, so that what is
tested are trace, views, rows, lifetimes and offsets.
"""

import torch

import bayes_dc.mc.markers as markers
from bayes_dc.mc.plan import build_plan
from bayes_dc.mc.plan_types import SiteIds, Value, size_of
from bayes_dc.mc.trace_types import mapped
from bayes_dc.mc.views import packet, tensor_of
from bayes_dc.ops import dropconnect_conv2d, dropconnect_linear
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.rng import dropout_key, layer_key

POINTWISE = {"relu", "add", "mul", "sub", "gelu", "silu", "sigmoid", "tanh", "div", "neg", "exp"}
REDUCTIONS = {"mean", "sum", "amax"}


def _run(bind, out, function, args, kwargs):
    def call():
        given = mapped((args, kwargs), lambda leaf: bind(leaf) if isinstance(leaf, Value) else leaf)
        result = function(*given[0], **given[1])
        for to, of in zip(out, result if isinstance(result, tuple) else [result], strict=False):
            if to is not None:
                bind(to).copy_(of)

    return [(call, (), {})]


def any_rule(c, *args, **kwargs):
    """The operator itself, then a copy; plain operands of a folded one are repeated."""
    target, name = c.node.target, packet(c.node.target)
    epilogue = c.epilogue() if name in {"linear", "convolution", "conv2d"} else None
    if c.kind == "folded":
        args, kwargs = mapped(
            (args, kwargs), lambda leaf: c.repeated(leaf) if isinstance(leaf, Value) else leaf
        )
    reads = []
    mapped((args, kwargs), lambda leaf: reads.append(leaf) if isinstance(leaf, Value) else None)
    if c.node.many:
        outs = tuple(
            c.out(index=i) if m and 0 not in m.shape else None for i, m in enumerate(c.node.outs)
        )
    elif name in POINTWISE:
        outs = (next((o for o in map(c.in_place, reads) if o), None) or c.out(),)
    else:
        outs = (c.out(),)

    def compute(*given, **options):
        y = target(*given, **options)
        if epilogue and epilogue.scale is not None:
            ones = [1] * (y.ndim - 2)
            scale, shift = (tensor_of(v).view(-1, *ones) for v in epilogue[:2])
            y = y * scale + shift
        return y.relu() if epilogue and epilogue.relu else y

    c.step(lambda bind: _run(bind, outs, compute, args, kwargs), reads, [o for o in outs if o])
    return outs if c.node.many else outs[0]


def marker_rule(c, x, *args):
    """The public function, with the coordinates of the site."""
    c.rows_first(x)
    site = c.site(args[-1])
    out = c.out()

    def emit(bind):
        key, sample_ids, pass_ids = bind.sites[site.index]
        ids = {"key": key, "sample_ids": sample_ids, "pass_ids": pass_ids, "p": site.p}
        scale = "none" if site.factor == 1 else "inverted"
        if site.kind == "dropout":

            def call():
                y = keyed_dropout(bind(x), channels=site.channels, **ids)
                bind(out).copy_(y * (site.factor * site.keep / 2**site.bits))

        elif site.kind == "linear":

            def call():
                w, b = bind(args[0]), args[1] and bind(args[1])
                y = dropconnect_linear(
                    bind(x), w, b, scope=site.scope, scale=scale, sampler=site.sampler, **ids
                )
                bind(out).copy_(y)

        else:

            def call():
                w, b = bind(args[0]), args[1] and bind(args[1])
                y = dropconnect_conv2d(
                    bind(x),
                    w,
                    b,
                    site.stride,
                    site.padding,
                    site.dilation,
                    site.groups,
                    scope=site.scope,
                    scale=scale,
                    **ids,
                )
                bind(out).copy_(y)

        return [(call, (), {})]

    c.step(emit, [x], [out], sites=[site.index])
    return out


def rules(target, device):
    marked = (markers.planned_linear, markers.planned_conv2d, markers.planned_dropout)
    return marker_rule if target in marked else any_rule


class Bound:
    """A plan at one (b, passes), in an arena."""

    def __init__(self, plan, arena, b, passes, sites):
        self.plan, self.arena, self.b, self.passes, self.sites = plan, arena, b, passes, sites

    def __call__(self, value):
        storage = value.storage
        if not storage.in_arena:
            return tensor_of(value, self.b, self.passes)
        used = value.nbytes(self.b, self.passes)
        assert used <= storage.nbytes, (storage.name, used, storage.nbytes)
        part = self.arena[storage.offset : storage.offset + used].view(value.dtype)
        sizes, strides, offset = value.layout(self.b, self.passes)
        return part.as_strided(sizes, strides, part.storage_offset() + offset)

    def size(self, dim):
        return size_of(dim, self.b, self.passes)


def run_plan(plan, x, seed=0, chunk=None):
    """Outputs [T, B, C] of a plan, in an arena full of NaN."""
    b = len(x)
    arena = torch.full((max(plan.arena_bytes, 16),), 0xFF, dtype=torch.uint8)
    ids = torch.arange(b)
    keys = []
    for site in plan.sites:
        kind, *words = site.key
        if kind == "function":
            words = [2**32 - 1, *words]
        key = layer_key(seed, *words) if kind == "layer" else dropout_key(seed, *words)
        keys.append(torch.tensor(key))
    outputs = []
    chunk = min(chunk or plan.T, plan.passes_for(b))
    for first in range(0, plan.T, chunk):
        pass_ids = torch.arange(first, min(plan.T, first + chunk))
        bind = Bound(plan, arena, b, len(pass_ids), [SiteIds(k, ids, pass_ids) for k in keys])
        with torch.no_grad():
            if first == 0:
                bind(plan.input).copy_(x)
            phases = ("once", "passes") if first == 0 else ("passes",)
            for step in plan.steps:
                if step.phase in phases:
                    for function, args, kwargs in step.emit(bind):
                        function(*args, **kwargs)
            outputs.append(bind(plan.output).clone())
    return torch.cat(outputs)


def planned(model, x, T, **options):
    return build_plan(model, x, T, rules=rules, **options)
