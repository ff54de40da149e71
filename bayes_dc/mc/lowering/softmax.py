"""Softmax, its logarithm, and log-sum-exp."""

from typing import Any

import torch

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.elementwise import cast, in_place_of
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.reduce import Dims, last, reduce_calls, reduced_dims, without
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten


@lowering(aten.softmax.int, aten._softmax.default)
def softmax(c: Context, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    """exp(x) / Σ exp(x) along a dimension."""
    return _softmax(c, x, dim, logarithm=False)


@lowering(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(c: Context, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    """X − log Σ exp(x) along a dimension."""
    return _softmax(c, x, dim, logarithm=True)


def _softmax(c: Context, x: Value, dim: int, *, logarithm: bool) -> Value:
    (at,) = c.within_rows(x, dim)
    converted = cast(c, x, c.meta().dtype)
    assert isinstance(converted, Value)
    x = converted
    out = in_place_of(c, [x]) or c.out()
    if c.device == "cuda":
        launch = plain_kernel("launch_softmax_rows")

        def launched(bind: Bind) -> list[Call]:
            of, to = (last(bind(v), (at,)) for v in (x, out))
            return [(launch, (of, to), {"dims": 1, "logarithm": logarithm})]

        c.step(launched, [x], [out])
        return out
    function = torch.log_softmax if logarithm else torch.softmax
    if logarithm and at != x.ndim - 1:
        # Along other dimensions torch takes buffers for their sums.
        shape = (*x.shape[:at], *x.shape[at + 1 :], x.shape[at])
        turned = c.scratch(shape, x.dtype, "turned")

        def by_row(bind: Bind) -> list[Call]:
            room = bind(turned)
            return [
                (room.copy_, (bind(x).movedim(at, -1),), {}),
                (function, (room, -1), {"out": room}),
                (bind(out).copy_, (room.movedim(-1, at),), {}),
            ]

        c.step(by_row, [x], [out], [turned])
        return out
    c.step(lambda bind: [(function, (bind(x), at), {"out": bind(out)})], [x], [out])
    return out


@lowering(aten.logsumexp.default)
def logsumexp(c: Context, x: Value, dims: Dims, keepdim: bool = False) -> Value:
    """Log Σ exp(x), from differences to the largest entry."""
    at = reduced_dims(c, x, dims)
    kept = tuple(1 if d in at else size for d, size in enumerate(x.shape))
    most, powers = c.scratch(kept, x.dtype, "most"), c.scratch(x.shape, x.dtype, "powers")
    pair = c.scratch((2,), x.dtype, "pair")
    out = c.out()
    infinity = c.scalar(float("inf"), x.dtype)
    zero = c.scalar(0.0, x.dtype)
    huge = c.scratch(kept, torch.bool, "huge")
    launch = plain_kernel("launch_reduce") if c.device == "cuda" else None

    def emit(bind: Bind) -> list[Call]:
        def reduction(kind: str, x: Any, to: Any) -> list[Call]:
            if launch is None:
                function = torch.amax if kind == "max" else torch.sum
                return reduce_calls(function, x, at, to, bind(pair))
            into = without(to, at) if to.ndim == x.ndim else to
            return [(launch, (last(x, at), into), {"dims": len(at), "kind": kind})]

        largest, power, result = bind(most), bind(powers), bind(out)
        flat = largest if result.ndim == x.ndim else without(largest, at)
        return [
            *reduction("max", bind(x), largest),
            # Differences to infinity would be no numbers.
            (torch.abs, (largest,), {"out": power[_first(at, x.ndim)]}),
            (torch.eq, (power[_first(at, x.ndim)], bind(infinity)), {"out": bind(huge)}),
            (torch.where, (bind(huge), bind(zero), largest), {"out": largest}),
            (torch.sub, (bind(x), largest), {"out": power}),
            (torch.exp, (power,), {"out": power}),
            *reduction("sum", power, result),
            (torch.log, (result,), {"out": result}),
            (torch.add, (result, flat), {"out": result}),
        ]

    c.step(emit, [x], [out], [most, powers, pair, huge])
    return out


def _first(dims: tuple[int, ...], ndim: int) -> tuple[slice, ...]:
    """The first entry along each of some dimensions."""
    return tuple(slice(1) if d in dims else slice(None) for d in range(ndim))
