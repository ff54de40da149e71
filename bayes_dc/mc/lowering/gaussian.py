"""Linear layers with the Gaussian sampler: draws with the moments of the masked product."""

from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.layouts import SAMPLES
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.sizes import bare
from bayes_dc.mc.plan_types import Bind, Call, Rows, Site, Value
from bayes_dc.ops.gaussian import op
from bayes_dc.ops.gaussian.factors import moment_factors, rounded, squares

Copies = list[tuple[Value, Value]]


class _Draws:
    """What the steps of a site have in common: its operands as [P, S, 1, features]."""

    def __init__(
        self, site: Site, x: Value, w: Value, bias: Value | None, out: Value, ids: Value | None
    ) -> None:
        self.site, self.x, self.w, self.bias, self.out, self.ids = site, x, w, bias, out, ids

    def rows(self, bind: Bind) -> Tensor:
        """Rows of the input, those of one pass where all share them."""
        x = by_row(bind(self.x))
        return x[:1] if self.x.plain else x

    def result(self, bind: Bind) -> Tensor:
        """Rows of the output."""
        return by_row(bind(self.out))

    def added(self, bind: Bind) -> Tensor | None:
        """The bias."""
        return None if self.bias is None else bind(self.bias)

    def at(self, bind: Bind) -> tuple[Tensor, Tensor, Tensor]:
        """Coordinates of the normals."""
        ids = bind.sites[self.site.index]
        samples = ids.sample_ids if self.ids is None else bind(self.ids)
        return ids.key, samples, ids.pass_ids

    @property
    def options(self) -> dict[str, Any]:
        """Numbers of the layer."""
        return {"keep": self.site.keep, "bits": self.site.bits, "scale": self.site.factor}


def by_row(t: Tensor) -> Tensor:
    """[P, b, …, features] as [P, S, 1, features]."""
    return t.view(t.shape[0], -1, 1, t.shape[-1])


def gaussian(
    c: Context,
    site: Site,
    x: Value,
    w: Value,
    bias: Value | None,
    out: Value,
    ids: Value | None,
    copies: Copies,
) -> None:
    """Steps of a layer.

    Args:
        c: The node.
        site: The site.
        x: ``[P, b, …, K]``.
        w: ``[N, K]``.
        bias: ``[N]`` or None.
        out: ``[P, b, …, N]``.
        ids: Ids of the rows where they are not those of the inputs.
        copies: Pairs (scratch, operand) that fill ``x`` first.
    """
    draws = _Draws(site, x, w, bias, out, ids)
    if c.device == "cpu":
        _on_cpu(c, draws, copies)
    elif not op.on_tensor_cores(x.dtype, w.shape[1]):  # type: ignore[arg-type]
        _by_torch(c, draws, copies)
    elif x.plain:
        _from_shared_moments(c, draws, copies)
    else:
        _in_one_kernel(c, draws, copies)


def _copied(bind: Bind, copies: Copies) -> list[Call]:
    return [(bind(room).copy_, (bind(of),), {}) for room, of in copies]


def _step(c: Context, draws: _Draws, copies: Copies, emit: Any, scratch: list[Value]) -> None:
    """A step that draws."""
    reads = [*(of for _, of in copies), *([] if copies else [draws.x])]
    reads += [] if draws.ids is None else [draws.ids]
    scratch = [*(room for room, _ in copies), *scratch]
    c.step(emit, reads, [draws.out], scratch, sites=[draws.site.index])


def _on_cpu(c: Context, draws: _Draws, copies: Copies) -> None:
    """Moments and draws by one launcher, with packed weights."""
    from bayes_dc.ops.gaussian.cpu import launch_linear, pack_weights, workspace_bytes

    packed = c.constant(
        lambda w: pack_weights(w.contiguous()), draws.w, name=f"{c.node.name}.packed"
    )

    def size(b: int, passes: int) -> int:
        x, out = (by_row(bare(v, b, passes)) for v in (draws.x, draws.out))
        bias = None if draws.bias is None else bare(draws.bias, b, passes)
        return workspace_bytes(
            x[:1] if draws.x.plain else x, bare(draws.w, b, passes), bias, out, packed=True
        )

    workspace = c.scratch((max(size(b, p) for b, p in SAMPLES),), torch.uint8, "workspace")

    def emit(bind: Bind) -> list[Call]:
        options = draws.options | {"packed": bind(packed), "workspace": bind(workspace)}
        args = (draws.rows(bind), bind(draws.w), draws.added(bind), *draws.at(bind))
        return [*_copied(bind, copies), (launch_linear, (*args, draws.result(bind)), options)]

    _step(c, draws, copies, emit, [workspace])


def _in_one_kernel(c: Context, draws: _Draws, copies: Copies) -> None:
    """Products, variances and draws in one launch."""
    square, near = c.constant(squares, draws.w), c.constant(rounded, draws.w)

    def emit(bind: Bind) -> list[Call]:
        rows, weights, out = draws.rows(bind), bind(near), draws.result(bind)
        launch = op.fused_launcher(rows, weights, bind(square), out)
        options = draws.options | {"squares": bind(square)}
        args = (rows, weights, draws.added(bind), *draws.at(bind), out)
        return [*_copied(bind, copies), (launch, args, options)]

    _step(c, draws, copies, emit, [])


def _moments(c: Context, draws: _Draws, dtype: torch.dtype) -> tuple[Value, Value]:
    """Memory of moments: filled once in a call where all passes share them."""
    inner = torch.Size(draws.x.shape[2:-1]).numel()  # type: ignore[arg-type]
    shape = (Rows(inner, folded=not draws.x.plain), draws.w.shape[0])
    make = c.kept if draws.x.plain else c.scratch
    return make(shape, dtype, "mean"), make(shape, dtype, "variance")


def _from_shared_moments(c: Context, draws: _Draws, copies: Copies) -> None:
    """Moments once in a call, and draws from them in every chunk."""
    square, near = c.constant(squares, draws.w), c.constant(rounded, draws.w)
    mean, variance = _moments(c, draws, torch.float32)

    def moments(bind: Bind) -> list[Call]:
        rows = draws.rows(bind)
        room = [bind(v).view(*rows.shape[:3], -1) for v in (mean, variance)]
        options = draws.options | {"squares": bind(square)}
        args = (rows, bind(near), draws.added(bind), *room)
        return [(op.launcher("launch_moments", rows), args, options)]

    c.step(moments, [draws.x], [mean, variance])
    _drawn(c, draws, mean, variance, [])


def _drawn(c: Context, draws: _Draws, mean: Value, variance: Value, scratch: list[Value]) -> None:
    """A step that draws from moments that are there."""

    def emit(bind: Bind) -> list[Call]:
        out = draws.result(bind)
        passes = 1 if mean.plain else out.shape[0]
        room = [bind(v).view(passes, *out.shape[1:]) for v in (mean, variance)]
        return [(op.launcher("launch_draw", out), (*room, *draws.at(bind), out), {})]

    reads = [mean, variance, *([] if draws.ids is None else [draws.ids])]
    c.step(emit, reads, [draws.out], scratch, sites=[draws.site.index])


def _by_torch(c: Context, draws: _Draws, copies: Copies) -> None:
    """Moments by torch's products in the dtype's full accuracy, then draws.

    float16 has not the range of squares and is computed in float32.
    """
    kind = torch.float32 if draws.x.dtype == torch.float16 else draws.x.dtype
    weights = c.constant(lambda w: w.to(kind).t().contiguous(), draws.w)
    square = c.constant(lambda w: w.to(kind).square().t().contiguous(), draws.w)
    bias = draws.bias
    if bias is not None and bias.dtype != kind:
        bias = c.constant(lambda b: b.to(kind), bias)
    inner = torch.Size(draws.x.shape[2:-1]).numel()  # type: ignore[arg-type]
    shape = (Rows(inner, folded=not draws.x.plain), draws.w.shape[1])
    make = c.kept if draws.x.plain else c.scratch
    rows = make(shape, kind, "rows")
    mean, variance = _moments(c, draws, kind)
    mean_factor, variance_factor = moment_factors(
        draws.site.keep, draws.site.bits, draws.site.factor
    )

    def moments(bind: Bind) -> list[Call]:
        room, first, second = bind(rows), bind(mean), bind(variance)
        calls: list[Call] = [
            *_copied(bind, copies),
            (room.copy_, (draws.rows(bind).reshape(room.shape),), {}),
            (torch.mm, (room, bind(weights)), {"out": first}),
            (first.mul_, (mean_factor,), {}),
            (room.square_, (), {}),
            (torch.mm, (room, bind(square)), {"out": second}),
            (second.mul_, (variance_factor,), {}),
        ]
        return calls if bias is None else [*calls, (first.add_, (bind(bias),), {})]

    if draws.x.plain:
        c.step(moments, [draws.x], [mean, variance, rows])
        _drawn(c, draws, mean, variance, [])
        return

    def emit(bind: Bind) -> list[Call]:
        out = draws.result(bind)
        room = [bind(v).view(out.shape) for v in (mean, variance)]
        launch = op.launcher("launch_draw", out)
        return [*moments(bind), (launch, (*room, *draws.at(bind), out), {})]

    _step(c, draws, copies, emit, [rows, mean, variance])
