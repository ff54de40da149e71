"""Normalisation: by statistics that are constants, and by those of each row."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.elementwise import in_place_of
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.pieces import SHORT_TYPES, in_full_precision
from bayes_dc.mc.lowering.reduce import reduce_calls, without
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_errors import MIXES
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten
_COMPUTED = (
    "its statistics or weights depend on the input",
    "Normalise by constants in evaluation mode (model.eval()), or use LayerNorm or GroupNorm.",
)


@lowering(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    """Scale and shift of each channel, made of the statistics once; in place."""
    given = [v for v in (mean, var, weight, bias) if v is not None]
    _check_constant(c, *given)
    c.within_rows(x, 1)

    def scale_of(mean: Tensor, var: Tensor, *rest: Tensor) -> Tensor:
        scale = torch.rsqrt(var + eps)
        return scale if weight is None else scale * rest[0]

    def shift_of(mean: Tensor, var: Tensor, *rest: Tensor) -> Tensor:
        shift = -mean * scale_of(mean, var, *rest)
        return shift if bias is None else shift + rest[-1]

    scale, shift = (
        c.constant(_wide(f), *given, name=f"{c.node.name}.{name}")
        for f, name in ((scale_of, "scale"), (shift_of, "shift"))
    )
    out = in_place_of(c, [x]) or c.out()
    scale_and_shift(c, x, out, scale, shift, channel_dim=1)
    return out, None, None


def _check_constant(c: Context, *values: Value | None) -> None:
    if not all(v is None or v.constant for v in values):
        c.refuse(*_COMPUTED)


def _wide(function: Any) -> Any:
    """``function`` of arguments in float32, or in float64 where they are."""

    def wide(*given: Tensor) -> Tensor:
        kept = torch.float64 if given[0].dtype == torch.float64 else torch.float32
        result: Tensor = function(*[t.to(kept) for t in given])
        return result

    return wide


def scale_and_shift(
    c: Context, x: Value, out: Value, scale: Value, shift: Value, *, channel_dim: int
) -> None:
    """A step that writes x · scale + shift.

    Args:
        c: The node.
        x: The operand.
        out: The result, of its shape; may be ``x``.
        scale: ``[C]``, float32 for 16-bit types.
        shift: ``[C]``.
        channel_dim: Dimension of the channels.
    """
    if c.device == "cuda":
        launch = plain_kernel("launch_affine_act")

        def launched(bind: Bind) -> list[Call]:
            at = (bind(x), bind(scale), bind(shift), None, bind(out))
            return [(launch, at, {"channel_dim": channel_dim})]

        c.step(launched, [x], [out])
        return
    after = (1,) * (x.ndim - channel_dim - 1)

    def calls(bind: Bind, x: Tensor, y: Tensor) -> list[Call]:
        factor, added = (bind(v).view(-1, *after) for v in (scale, shift))
        return [(torch.addcmul, (added, x, factor), {"out": y})]

    in_full_precision(c, x, out, calls)


@lowering(aten._native_batch_norm_legit.no_stats)
def batch_norm_of_batch(c: Context, x: Value, *_: Any) -> tuple[Value, None, None]:
    """Statistics of the batch mix its rows."""
    c.refuse(*MIXES)


@lowering(aten.layer_norm.default)
def layer_norm(
    c: Context,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    """(x − mean) / √(variance + eps) · weight + bias over the last dimensions, in place."""
    dims = c.within_rows(x, range(x.ndim - len(shape), x.ndim))
    _check_constant(c, weight, bias)
    out = in_place_of(c, [x]) or c.out()
    if c.device == "cuda":
        launch = plain_kernel("launch_layer_norm")

        def launched(bind: Bind) -> list[Call]:
            factors = [None if v is None else bind(v) for v in (weight, bias)]
            at = {"dims": len(dims), "eps": eps}
            return [(launch, (bind(x), *factors, bind(out)), at)]

        c.step(launched, [x], [out])
        return out
    _normalised(c, x, out, dims, weight, bias, eps)
    return out


@lowering(aten.native_layer_norm.default)
def native_layer_norm(c: Context, x: Value, *args: Any) -> tuple[Value, None, None]:
    """LayerNorm with statistics that no one reads."""
    return layer_norm(c, x, *args), None, None


@lowering(aten.rms_norm.default)
def rms_norm(
    c: Context,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    """X / √(mean of squares + eps) · weight over the last dimensions."""
    dims = c.within_rows(x, range(x.ndim - len(shape), x.ndim))
    _check_constant(c, weight)
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    out = in_place_of(c, [x]) or c.out()
    if c.device == "cuda":
        _rms_on_gpu(c, x, out, dims, weight, eps)
    else:
        _normalised(c, x, out, dims, weight, None, eps, centred=False)
    return out


def _rms_on_gpu(
    c: Context, x: Value, out: Value, dims: Sequence[int], weight: Value | None, eps: float
) -> None:
    """By squares and their mean, which no kernel of ours has in one."""
    launch = plain_kernel("launch_reduce")
    squares = c.scratch(x.shape, torch.float32, "squares")
    kept = tuple(1 if d in dims else size for d, size in enumerate(x.shape))
    means = c.scratch(kept, torch.float32, "means")

    def emit(bind: Bind) -> list[Call]:
        of, to, square, mean = bind(x), bind(out), bind(squares), bind(means)
        calls: list[Call] = [
            (square.copy_, (of,), {}),
            (square.square_, (), {}),
            (launch, (square, without(mean, dims)), {"dims": len(dims), "kind": "mean"}),
            (mean.add_, (eps,), {}),
            (mean.rsqrt_, (), {}),
            (torch.mul, (of, mean), {"out": to}),
        ]
        return calls if weight is None else [*calls, (to.mul_, (bind(weight),), {})]

    c.step(emit, [x], [out], [squares, means])


@lowering(aten.group_norm.default)
def group_norm(
    c: Context,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    """Normalisation by mean and variance of each group of channels of each row."""
    c.within_rows(x, range(1, x.ndim))
    _check_constant(c, weight, bias)
    out = in_place_of(c, [x]) or c.out()
    if c.device == "cuda":
        launch = plain_kernel("launch_group_norm")

        def launched(bind: Bind) -> list[Call]:
            factors = [None if v is None else bind(v) for v in (weight, bias)]
            at = {"groups": groups, "eps": eps}
            return [(launch, (bind(x), *factors, bind(out)), at)]

        c.step(launched, [x], [out])
        return out
    dims = tuple(range(2, x.ndim + 1))
    ones = (1,) * (x.ndim - 2)
    by_group = (groups, x.shape[1] // groups, *ones)  # type: ignore[operator]
    factors = [
        None if v is None else c.view(v, lambda t, b, p: t.view(groups, -1, *ones), by_group)
        for v in (weight, bias)
    ]
    size = x.shape[1]
    assert isinstance(size, int)
    shape = (x.shape[0], groups, size // groups, *x.shape[2:])
    of, to = (
        c.view(v, lambda t, b, p: t.view(t.shape[0], groups, -1, *t.shape[2:]), shape)
        for v in (x, out)
    )
    _normalised(c, of, to, dims, factors[0], factors[1], eps)
    return out


@lowering(aten.instance_norm.default)
def instance_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    by_input: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    """A group for each channel; in evaluation mode with running statistics a BatchNorm."""
    if by_input or mean is None or var is None:
        channels = x.shape[1]
        assert isinstance(channels, int)
        return group_norm(c, x, channels, weight, bias, eps)
    return batch_norm(c, x, weight, bias, mean, var, momentum, eps)[0]


def _normalised(
    c: Context,
    x: Value,
    out: Value,
    dims: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
    *,
    centred: bool = True,
) -> None:
    """On a CPU in calls of torch, whose own normalisations all allocate their results."""
    kind = torch.float32 if x.dtype in SHORT_TYPES else x.dtype
    shape = tuple(1 if d in dims else size for d, size in enumerate(x.shape))
    means, variances = c.scratch(shape, kind, "mean"), c.scratch(shape, kind, "variance")
    pair = c.scratch((2,), kind, "pair")
    count = torch.Size([x.shape[d] for d in dims]).numel()  # type: ignore[misc]
    share, least = c.scalar(1 / count, kind), c.scalar(eps, kind)
    factor, added = (
        v if v is None or v.dtype == kind else c.constant(lambda t: t.to(kind), v)
        for v in (weight, bias)
    )

    def calls(bind: Bind, x: Tensor, y: Tensor) -> list[Call]:
        mean, variance = bind(means)[: len(x)], bind(variances)[: len(x)]
        of_count, room = bind(share), bind(pair)
        result: list[Call] = []
        if centred:
            result += reduce_calls(torch.sum, x, dims, mean, room)
            result += [(mean.mul_, (of_count,), {}), (torch.sub, (x, mean), {"out": y})]
            x = y
        norm = torch.linalg.vector_norm
        result += reduce_calls(norm, x, dims, variance, room, ord=2)
        result += [
            (variance.mul_, (variance,), {}),
            (torch.addcmul, (bind(least), variance, of_count), {"out": variance}),
            (variance.rsqrt_, (), {}),
            (torch.mul, (x, variance), {"out": y}),
        ]
        if factor is not None and added is not None:
            result.append((torch.addcmul, (bind(added), y, bind(factor)), {"out": y}))
        elif factor is not None:
            result.append((y.mul_, (bind(factor),), {}))
        elif added is not None:
            result.append((y.add_, (bind(added),), {}))
        return result

    in_full_precision(c, x, out, calls, [means, variances, pair])
