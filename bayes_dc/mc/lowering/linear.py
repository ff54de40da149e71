"""Matrix products: linear layers, batched products, einsum."""

import torch
from torch import Tensor

from bayes_dc.mc.layouts import SAMPLES
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.matrices import is_matrix, product
from bayes_dc.mc.lowering.pieces import SHORT_TYPES
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.lowering.sizes import bare
from bayes_dc.mc.plan_errors import MIXES
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten
_SHORT = (
    "on a CPU torch multiplies {dtype} by a library that allocates its own memory",
    "Use float32, or mode='workspace', which reports it.",
)


def check_types(c: Context, dtype: torch.dtype) -> bool:
    """Refuse products for which a library allocates.

    Args:
        c: The node.
        dtype: Type of the operands.

    Returns:
        Whether a library may allocate, in mode "workspace".
    """
    library = c.device == "cpu" and dtype in SHORT_TYPES
    if library and c.mode == "strict":
        why, remedy = _SHORT
        c.refuse(why.format(dtype=dtype), remedy)
    return library


def multiply(
    c: Context,
    a: Value,
    b: Value,
    out: Value,
    *,
    batch: int = 0,
    left: int = 1,
    inner: int = 1,
    bias: Value | None = None,
    factor: float = 1.0,
) -> Value:
    """A step that multiplies; see ``matrices.product`` for the arguments.

    Args:
        c: The node.
        a: ``[batch…, left…, inner…]``.
        b: ``[batch…, inner…, right…]``.
        out: ``[batch…, left…, right…]``.
        batch: Number of dimensions of the batch.
        left: Number of dimensions of the rows.
        inner: Number of dimensions that are summed over.
        bias: ``[right]``, or None.
        factor: Factor of the sums; 1 with a bias.

    Returns:
        ``out``.
    """
    library = check_types(c, out.dtype)
    right = out.ndim - batch - left
    packed_a, into_a = _packed(c, a, left, inner, "left")
    packed_b, into_b = _packed(c, b, inner, right, "right")
    packed_out, _ = _packed(c, out, left, right, "product")

    def emit(bind: Bind) -> list[Call]:
        calls: list[Call] = [(bind(room).copy_, (bind(of),), {}) for room, of in (*into_a, *into_b)]
        at = {"batch": batch, "left": left, "inner": inner, "factor": factor}
        to = bind(packed_out)
        vector = None if bias is None else bind(bias)
        calls += product(bind(packed_a), bind(packed_b), to, bias=vector, **at)  # type: ignore[arg-type]
        if packed_out is not out:
            calls.append((bind(out).copy_, (to,), {}))
        return calls

    scratch = [v for v, was in ((packed_a, a), (packed_b, b), (packed_out, out)) if v is not was]
    reads = [v for v in (a, b, bias) if v is not None]
    c.step(emit, reads, [out], scratch, library_workspace=library)
    return out


def _packed(
    c: Context, x: Value, outer: int, inner: int, name: str
) -> tuple[Value, list[tuple[Value, Value]]]:
    """``x``, or scratch with its elements one after the other, and the copies that fill it."""
    if all(is_matrix(bare(x, b, passes), outer, inner) for b, passes in SAMPLES):
        return x, []
    if x.constant:
        return c.constant(lambda t: t.contiguous(), x), []
    room = c.scratch(x.shape, x.dtype, name)
    return room, [(room, x)]


def transposed(c: Context, w: Value) -> Value:
    """The last two dimensions of a value exchanged.

    Args:
        c: The node.
        w: At least two dimensions.

    Returns:
        A view.
    """
    shape = (*w.shape[:-2], w.shape[-1], w.shape[-2])
    return c.view(w, lambda t, b, p: t.transpose(-2, -1), shape)


def scaled_weights(
    c: Context, w: Value, bias: Value | None, scale: Value, shift: Value | None
) -> tuple[Value, Value]:
    """Weights and bias of a layer without masks that BatchNorm follows, as those of one layer.

    Args:
        c: The node.
        w: ``[N, …]``.
        bias: ``[N]`` or None.
        scale: ``[N]``.
        shift: ``[N]`` or None.

    Returns:
        scale · w and scale · bias + shift.
    """

    def by_output(w: Tensor, scale: Tensor) -> Tensor:
        return (w * scale.view(-1, *[1] * (w.ndim - 1))).to(w.dtype)

    def moved(scale: Tensor, *others: Tensor) -> Tensor:
        given = iter(others)
        moved = scale * next(given) if bias is not None else torch.zeros_like(scale)
        return (moved + next(given) if shift is not None else moved).to(dtype)

    dtype = w.dtype
    sources = [v for v in (bias, shift) if v is not None]
    return c.constant(by_output, w, scale), c.constant(moved, scale, *sources)


@lowering(aten.linear.default)
def linear(c: Context, x: Value, w: Value, bias: Value | None = None) -> Value:
    """X Wᵀ + b over the last dimension."""
    if not w.constant or (bias is not None and not bias.constant):
        c.refuse(
            "its weight depends on the input",
            "Write it as a product of activations: torch.matmul(x, w.transpose(-1, -2)) + bias.",
        )
    c.within_rows(x, -1)
    after = c.epilogue(channel_dim=x.ndim - 1)
    if after.scale is not None:
        w, bias = scaled_weights(c, w, bias, after.scale, after.shift)
    out = multiply(c, x, transposed(c, w), c.out(), left=x.ndim - 1, bias=bias)
    if after.relu:
        c.step(lambda bind: [(torch.relu_, (bind(out),), {})], [out], [out])
    return out


@lowering(aten.mm.default, aten.bmm.default, aten.matmul.default)
def matmul(c: Context, a: Value, b: Value) -> Value:
    """Products over the last dimension of a and the last but one of b, batches broadcast."""
    return _matmul(c, a, b, None, 1.0)


@lowering(aten.addmm.default, aten.baddbmm.default)
def addmm(
    c: Context, added: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    """β · added + α · a · b."""
    vector = added.constant and added.ndim == 1 and beta == 1 and alpha == 1 and b.ndim == 2
    if vector and added.shape[0] == b.shape[-1]:
        return _matmul(c, a, b, added, 1.0)
    out = _matmul(c, a, b, None, float(alpha))
    to, of = c.aligned(out, added)

    def emit(bind: Bind) -> list[Call]:
        return [(torch.add, (bind(to), bind(of)), {"alpha": beta, "out": bind(to)})]

    c.step(emit, [out, added], [out])
    return out


def _matmul(c: Context, a: Value, b: Value, bias: Value | None, factor: float) -> Value:
    """Matmul · factor + bias."""
    out = c.out()
    vector_a, vector_b = a.ndim == 1, b.ndim == 1
    to = out
    if vector_a:
        a = c.view(a, lambda t, n, p: t.unsqueeze(0), (1, *a.shape))
        to = _unsqueezed(c, to, to.ndim if vector_b else to.ndim - 1)
    if vector_b:
        b = c.view(b, lambda t, n, p: t.unsqueeze(1), (*b.shape, 1))
        to = _unsqueezed(c, to, to.ndim)
    if a.rows_dim == a.ndim - 1 or b.rows_dim == b.ndim - 2:
        c.refuse(*MIXES)
    if b.constant and b.ndim == 2:
        multiply(c, a, b, to, left=a.ndim - 1, bias=bias, factor=factor)
        return out
    to, a, b = c.aligned(to, a, b)
    batch = to.ndim - 2
    a, b = (_broadcast(c, x, to, batch) for x in (a, b))
    multiply(c, a, b, to, batch=batch, bias=bias, factor=factor)
    return out


def _unsqueezed(c: Context, x: Value, dim: int) -> Value:
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    return c.view(x, lambda t, b, p: t.unsqueeze(dim), shape)


def _broadcast(c: Context, x: Value, out: Value, batch: int) -> Value:
    """``x`` with the batch dimensions of ``out``."""
    shape = (*out.shape[:batch], *x.shape[-2:])

    def expand(t: Tensor, b: int, passes: int) -> Tensor:
        sizes = out.layout(b, passes).sizes[:batch]
        return t.expand(*sizes, *t.shape[-2:])

    return c.view(x, expand, shape)
