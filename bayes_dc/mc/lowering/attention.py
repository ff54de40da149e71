"""Attention without a matrix of all pairs: our kernel on a GPU, pieces of the heads on a CPU."""

from collections.abc import Iterator
from math import prod, sqrt

import torch
from torch import Tensor

from bayes_dc.mc.layouts import SAMPLES
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.linear import check_types
from bayes_dc.mc.lowering.matrices import is_matrix, product
from bayes_dc.mc.lowering.pieces import PIECE_BYTES
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.lowering.sizes import bare
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten
_DROPOUT = (
    "it draws dropout inside torch",
    "Call model.eval(), or compute softmax and dropout as layers of their own.",
)
_GROUPED = (
    "it shares heads between queries (enable_gqa)",
    "Repeat the heads of keys and values: k.repeat_interleave(n, 1).",
)
_MASK = (
    "its mask depends on the input",
    "Use a mask that is a constant, or is_causal=True.",
)
_BLIND = (
    "its mask leaves a query without any key",
    "Let such queries see one key, and ignore their results.",
)


@lowering(aten.scaled_dot_product_attention.default)
def attention(
    c: Context,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(q kᵀ · scale + mask) v over the last two dimensions."""
    if dropout:
        c.refuse(*_DROPOUT)
    if enable_gqa:
        c.refuse(*_GROUPED)
    for x in (q, k, v):
        c.within_rows(x, (-2, -1))
    factor = 1 / sqrt(q.shape[-1]) if scale is None else scale  # type: ignore[arg-type]
    out = c.out()
    if c.device == "cuda":
        _launched(c, (q, k, v, mask, out), factor, causal)
    else:
        _by_products(c, (q, k, v, mask, out), factor, causal)
    return out


def _launched(
    c: Context, at: tuple[Value, Value, Value, Value | None, Value], factor: float, causal: bool
) -> None:
    """A step of our kernel."""
    *tensors, mask, out = at
    given = [*tensors, *([] if mask is None else [mask])]
    to, *views = c.aligned(out, *given)
    launch = plain_kernel("launch_attention")

    def emit(bind: Bind) -> list[Call]:
        o, q, k, v, *rest = (bind(x) for x in (to, *views))
        lead = o.shape[:-2]
        q, k, v = (t.expand(*lead, *t.shape[-2:]) for t in (q, k, v))
        options = {"scale": factor, "causal": causal, "mask": rest[0] if rest else None}
        return [(launch, (q, k, v, o), options)]

    c.step(emit, given, [out])


def _by_products(
    c: Context, at: tuple[Value, Value, Value, Value | None, Value], factor: float, causal: bool
) -> None:
    """A step of products and softmax, for as many heads at a time as scratch has room for."""
    q, k, v, mask, out = at
    library = check_types(c, out.dtype)
    if mask is not None and not mask.constant:
        c.refuse(*_MASK)
    queries, keys = q.shape[-2], k.shape[-2]
    assert isinstance(queries, int)
    assert isinstance(keys, int)
    added = _added(c, mask, queries, keys, q.dtype, causal)
    to, *views = c.aligned(out, q, k, v)
    packed, into = [], []
    for x in views:
        room = _packed(c, x)
        packed.append(room)
        into += [] if room is x else [(room, x)]
    result = _packed(c, to)
    heads = max(1, PIECE_BYTES // (queries * keys * q.dtype.itemsize))
    scores = c.scratch((heads, queries, keys), q.dtype, "scores")

    def emit(bind: Bind) -> list[Call]:
        calls: list[Call] = [(bind(room).copy_, (bind(x),), {}) for room, x in into]
        o = bind(result)
        lead = o.shape[:-2]
        q, k, v = (bind(x).expand(*lead, *bind(x).shape[-2:]) for x in packed)
        room = bind(scores)
        bias = None if added is None else bind(added).expand(*lead, queries, keys)
        for part in _parts(lead, heads):
            count = prod(o[part].shape[:-2])
            score = room[:count].view(*o[part].shape[:-2], queries, keys)
            batch = score.ndim - 2
            calls += product(q[part], k[part].transpose(-2, -1), score, batch=batch, factor=factor)
            if bias is not None:
                calls.append((score.add_, (bias[part],), {}))
            calls.append((torch.softmax, (score, -1), {"out": score}))
            calls += product(score, v[part], o[part], batch=batch)
        return calls if result is to else [*calls, (bind(to).copy_, (o,), {})]

    scratch = [scores, *(room for room, _ in into), *([] if result is to else [result])]
    c.step(emit, [q, k, v], [out], scratch, library_workspace=library)


def _packed(c: Context, x: Value) -> Value:
    """``x``, or scratch for it where its last two dimensions are no matrix for products."""
    if all(is_matrix(bare(x, b, passes), 1, 1) for b, passes in SAMPLES):
        return x
    return c.scratch(x.shape, x.dtype, "packed")


def _parts(lead: tuple[int, ...], heads: int) -> Iterator[tuple[slice | int, ...]]:
    """Parts of the leading dimensions with at most ``heads`` matrices each."""
    if prod(lead) <= heads or not lead:
        yield ()
        return
    first, *rest = lead
    each = prod(rest)
    if each > heads:
        for i in range(first):
            for part in _parts(tuple(rest), heads):
                yield (i, *part)
        return
    step = heads // each
    for start in range(0, first, step):
        yield (slice(start, start + step),)


def _added(
    c: Context, mask: Value | None, queries: int, keys: int, dtype: torch.dtype, causal: bool
) -> Value | None:
    """What is added to the scores: −∞ where nothing is to be seen."""
    if mask is None and not causal:
        return None
    sources = [] if mask is None else [mask]

    def compute(*given: Tensor) -> Tensor:
        device = given[0].device if given else None
        result = torch.zeros(queries, keys, dtype=dtype, device=device)
        if causal:
            seen = torch.ones_like(result, dtype=torch.bool).tril()
            result = result.masked_fill(~seen, -torch.inf)
        if given and given[0].dtype == torch.bool:
            result = result.masked_fill(~given[0], -torch.inf)
        elif given:
            result = result + given[0]
        return result

    added = c.constant(compute, *sources, name=f"{c.node.name}.mask")
    tensor = added.storage.tensor
    if tensor is not None and bool((tensor == -torch.inf).all(-1).any()):
        c.refuse(*_BLIND)
    return added
