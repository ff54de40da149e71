"""Layers with masks: our launchers, with ids that the engine writes before each chunk of passes."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.layouts import SAMPLES, split_rows
from bayes_dc.mc.lowering.context import Context, Epilogue
from bayes_dc.mc.lowering.elementwise import in_place_of
from bayes_dc.mc.lowering.gaussian import gaussian
from bayes_dc.mc.lowering.ids import ids_of_positions, one_id, packed_unless
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.lowering.sizes import bare
from bayes_dc.mc.markers import planned_conv2d, planned_dropout, planned_linear
from bayes_dc.mc.plan_types import Bind, Call, Site, Value
from bayes_dc.ops.conv2d import op as conv2d_op
from bayes_dc.ops.dropout import op as dropout_op
from bayes_dc.ops.linear import op as linear_op


@lowering(planned_linear)
def dropconnect_linear(c: Context, x: Value, w: Value, bias: Value | None, number: int) -> Value:
    """Masked products of the rows of all passes, in one launch."""
    site = c.site(number)
    x = c.rows_first(x)
    after = _epilogue(c, site, x.ndim - 1)
    out = c.out()
    per_input = prod(x.shape[1:-1])  # type: ignore[arg-type]
    first = 1 if site.scope == "sample" else 0  # rows of several inputs are one dimension else
    read, copies = packed_unless(
        c, x, lambda t: _merges(t, first, t.ndim - 1) and t.stride(-1) == 1
    )
    by_pass, to = split_rows(read, 0), split_rows(out, 0)
    ids = None
    if site.scope == "pass":
        ids = one_id(c)
    elif site.scope == "row" and per_input > 1:
        ids = ids_of_positions(c, site, per_input)
    if site.sampler == "gaussian":
        gaussian(c, site, by_pass, w, bias, to, ids, copies)
        return out
    workspace = _workspace(c, lambda b, p: _linear_bytes(site, by_pass, w, bias, to, b, p))

    def emit(bind: Bind) -> list[Call]:
        calls: list[Call] = [(bind(room).copy_, (bind(of),), {}) for room, of in copies]
        rows, result = (grouped(site, bind(v)) for v in (by_pass, to))
        at = bind.sites[site.index]
        samples = at.sample_ids if ids is None else bind(ids)
        options: dict[str, Any] = {"keep": site.keep, "bits": site.bits, "scale": site.factor}
        options |= _extra(bind, workspace, after)
        launch = linear_op.launcher("launch_fwd", rows)
        added = None if bias is None else bind(bias)
        args = (rows, bind(w), added, at.key, samples, at.pass_ids, result)
        return [*calls, (launch, args, options)]

    scratch = [room for room, _ in copies] + ([workspace] if workspace else [])
    reads = [v for v in (x if copies else read, ids) if v is not None]
    c.step(emit, reads, [out], scratch, sites=[number])
    return out


def grouped(site: Site, t: Tensor) -> Tensor:
    """Rows of a linear layer by the masks they share: ``[P, S, R, features]``.

    Args:
        site: The site.
        t: ``[P, b, …, features]``.

    Returns:
        A view.
    """
    passes, b, *inner, features = t.shape
    count = prod(inner)
    groups = {"row": (b * count, 1), "sample": (b, count), "pass": (1, b * count)}
    return t.view(passes, *groups[site.scope], features)


def _linear_bytes(
    site: Site, x: Value, w: Value, bias: Value | None, out: Value, b: int, passes: int
) -> int:
    from bayes_dc.ops.linear.cpu import workspace_bytes

    rows, result = (grouped(site, bare(v, b, passes)) for v in (x, out))
    weights = bare(w, b, passes)
    return workspace_bytes(rows, weights, None if bias is None else bare(bias, b, passes), result)


@lowering(planned_conv2d)
def dropconnect_conv2d(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    shape: list[int],
    last: bool,
    number: int,
) -> Value:
    """Masked convolution of the images of all passes, in one launch."""
    site = c.site(number)
    x = c.rows_first(x)
    read: Value = x
    copies: list[Any] = []
    if c.device == "cuda":
        read, copies = _channels_last(c, x)
        w = c.constant(lambda t: t.permute(0, 2, 3, 1).contiguous(), w)
    else:
        n, k, height, width = w.shape
        w = c.view(w, lambda t, b, p: t.permute(0, 2, 3, 1), (n, height, width, k))
    by_pass = split_rows(read, 0)
    after = _epilogue(c, site, 1, conv2d_op.pools(bare(w, *SAMPLES[0]), site.groups, c.place))
    out = c.out()
    to = split_rows(out, 0)
    ids = one_id(c) if site.scope == "pass" else None
    geometry = {
        "stride": site.stride,
        "padding": site.padding,
        "dilation": site.dilation,
        "groups": site.groups,
    }
    pool = {"pool": True} if after and after.pool else {}
    workspace = _workspace(c, lambda b, p: _conv_bytes(by_pass, w, to, geometry | pool, b, p))

    def emit(bind: Bind) -> list[Call]:
        calls: list[Call] = [(bind(room).copy_, (bind(of),), {}) for room, of in copies]
        images, result = (bind(v).permute(0, 1, 3, 4, 2) for v in (by_pass, to))
        at = bind.sites[site.index]
        samples = at.sample_ids if ids is None else bind(ids)
        options: dict[str, Any] = {"keep": site.keep, "bits": site.bits, "scale": site.factor}
        options |= geometry | _extra(bind, workspace, after) | pool
        launch = conv2d_op.launcher("launch_fwd", images)
        added = None if bias is None else bind(bias)
        args = (images, bind(w), added, at.key, samples, at.pass_ids, result)
        return [*calls, (launch, args, options)]

    scratch = [room for room, _ in copies] + ([workspace] if workspace else [])
    rounds = bool(pool) and c.device == "cuda" and out.dtype == torch.float32
    c.step(emit, [x if copies else read], [out], scratch, sites=[number], rounds=rounds)
    return out


def _channels_last(c: Context, x: Value) -> tuple[Value, list[Any]]:
    """Images as the kernels on a GPU read them, with neighbouring channels."""

    def fits(t: Tensor) -> bool:
        return t.stride(1) == 1 or t.shape[1] < 2

    if all(fits(bare(x, b, passes)) for b, passes in SAMPLES):
        return x, []
    rows, channels, height, width = x.shape
    turned = c.view(x, lambda t, b, p: t.permute(0, 2, 3, 1), (rows, height, width, channels))
    room, copies = packed_unless(c, turned, lambda t: False)
    back = c.view(room, lambda t, b, p: t.permute(0, 3, 1, 2), x.shape)
    return back, copies


def _conv_bytes(
    x: Value, w: Value, out: Value, geometry: dict[str, Any], b: int, passes: int
) -> int:
    from bayes_dc.ops.conv2d.cpu import workspace_bytes

    images, result = (bare(v, b, passes).permute(0, 1, 3, 4, 2) for v in (x, out))
    return workspace_bytes(images, bare(w, b, passes), result, **geometry)


@lowering(planned_dropout)
def keyed_dropout(c: Context, x: Value, number: int) -> Value:
    """Dropout of the rows of all passes, in one launch."""
    site = c.site(number)
    x = c.rows_first(x)
    out = in_place_of(c, [x]) or c.out()
    by_channel = site.channels or _has_channels_last(x)

    def fits(t: Tensor) -> bool:
        return _merges(t, 2, t.ndim) if by_channel else _merges(t, 1, t.ndim)

    read, copies = packed_unless(c, x, fits)
    written, into = packed_unless(c, out, fits)
    by_pass, to = split_rows(read, 0), split_rows(written, 0)
    workspace = _workspace(c, lambda b, p: _dropout_bytes(by_pass, to, by_channel, b, p))

    def emit(bind: Bind) -> list[Call]:
        calls: list[Call] = [(bind(room).copy_, (bind(of),), {}) for room, of in copies]
        units, result = (_units(bind(v), by_channel) for v in (by_pass, to))
        at = bind.sites[site.index]
        options: dict[str, Any] = {"keep": site.keep, "bits": site.bits, "scale": site.factor}
        options |= {"by_channel": site.channels} | _extra(bind, workspace, None)
        launch = dropout_op.launcher(units)
        calls.append((launch, (units, at.key, at.sample_ids, at.pass_ids, result), options))
        return [*calls, *((bind(of).copy_, (bind(room),), {}) for room, of in into)]

    scratch = [room for room, _ in (*copies, *into)] + ([workspace] if workspace else [])
    c.step(emit, [x if copies else read], [out], scratch, sites=[number])
    return out


def _has_channels_last(x: Value) -> bool:
    """Whether dimension 1 varies fastest, and others are not one with it."""
    return x.ndim > 2 and all(
        t.stride(1) == 1 and not t.is_contiguous() for t in (bare(x, *at) for at in SAMPLES)
    )


def _units(t: Tensor, by_channel: bool) -> Tensor:
    """[P, b, …] as [P, S, U, V]."""
    passes, b, *rest = t.shape
    if by_channel:
        return t.view(passes, b, rest[0], prod(rest[1:]))
    return t.view(passes, b, 1, prod(rest))


def _dropout_bytes(x: Value, out: Value, by_channel: bool, b: int, passes: int) -> int:
    from bayes_dc.ops.dropout.cpu import workspace_bytes

    units, result = (_units(bare(v, b, passes), by_channel) for v in (x, out))
    return workspace_bytes(units, result)


def _merges(t: Tensor, start: int, end: int) -> bool:
    """Whether dimensions start … end − 1 are one in memory."""
    try:
        t.view(*t.shape[:start], prod(t.shape[start:end]), *t.shape[end:])
    except RuntimeError:
        return False
    return True


def _epilogue(c: Context, site: Site, channel_dim: int, pools: bool = False) -> Epilogue | None:
    """What our kernels do with their results before they write them."""
    if site.sampler == "gaussian":
        return None
    after = c.epilogue(channel_dim, pools)
    return None if after == (None, None, False, False) else after


def _workspace(c: Context, nbytes: Callable[[int, int], int]) -> Value | None:
    """Scratch of a launcher on a CPU."""
    if c.device != "cpu":
        return None
    size = max(nbytes(b, passes) for b, passes in SAMPLES)
    return c.scratch((size,), torch.uint8, "workspace") if size else None


def _extra(bind: Bind, workspace: Value | None, after: Epilogue | None) -> dict[str, Any]:
    """Options of a launcher on one device only."""
    options: dict[str, Any] = {}
    if workspace is not None:
        options["workspace"] = bind(workspace)
    if after is not None:
        factors = [None if v is None else bind(v) for v in after[:2]]
        options["epilogue"] = (*factors, after.relu)
    return options
