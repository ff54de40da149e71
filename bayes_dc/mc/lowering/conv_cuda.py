"""Convolutions without masks on a GPU: our kernel, or cuDNN in mode "workspace"."""

import torch

from bayes_dc.mc.layouts import SAMPLES
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.conv_cpu import Geometry, by_pixels
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.sizes import bare, is_dense
from bayes_dc.mc.plan_types import Bind, Call, Value
from bayes_dc.ops._device import convolution_tensor_float32

aten = torch.ops.aten


def launched(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    out: Value,
    at: Geometry,
    *,
    relu: bool,
) -> None:
    """A step of our kernel, or of cuBLAS for kernels of one pixel; channels are last in memory.

    Args:
        c: The node.
        x: ``[rows, C, H, W]``.
        w: ``[N, C / groups, KH, KW]``.
        bias: ``[N]`` or None.
        out: ``[rows, N, OH, OW]``.
        at: The convolution.
        relu: Whether ReLU follows.
    """
    read, written = x, out
    scratch: list[Value] = []
    if not _has_channels_last(x):
        read = _with_channels_last(c, x, "packed")
        scratch.append(read)
    if not is_dense(out, last=True):
        written = _with_channels_last(c, out, "product")
        scratch.append(written)
    weights = c.constant(lambda t: t.contiguous(memory_format=torch.channels_last), w)
    by_product = at.is_pointwise and at.groups == 1 and is_dense(read, last=True)
    launch = plain_kernel("launch_conv2d")
    options = {
        "stride": at.stride,
        "padding": at.padding,
        "dilation": at.dilation,
        "groups": at.groups,
        "epilogue": (None, None, True) if relu else None,
    }

    def emit(bind: Bind) -> list[Call]:
        of, to, added = bind(read), bind(written), None if bias is None else bind(bias)
        calls: list[Call] = [] if read is x else [(of.copy_, (bind(x),), {})]
        if by_product:
            calls += by_pixels(of, bind(weights), added, to, 1)
            calls += [(torch.relu_, (to,), {})] if relu else []
        else:
            calls.append((launch, (of, bind(weights), added, to), options))
        return calls if written is out else [*calls, (bind(out).copy_, (to,), {})]

    c.step(emit, [x], [out], scratch)


def by_cudnn(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    out: Value,
    at: Geometry,
    *,
    relu: bool,
) -> None:
    """A step of cuDNN, which allocates a workspace in each call, and of bias and ReLU.

    Args:
        c: The node.
        x: ``[rows, C, H, W]``.
        w: ``[N, C / groups, KH, KW]``.
        bias: ``[N]`` or None.
        out: ``[rows, N, OH, OW]``.
        at: The convolution.
        relu: Whether ReLU follows.
    """
    weights = c.constant(lambda t: t.contiguous(memory_format=torch.channels_last), w)
    launch = plain_kernel("launch_affine_act")

    def emit(bind: Bind) -> list[Call]:
        switches = torch.backends.cudnn
        geometry = (at.padding, at.stride, at.dilation, at.groups)
        tf32 = convolution_tensor_float32()
        flags = (switches.benchmark, switches.deterministic, tf32)
        to = bind(out)
        calls: list[Call] = [
            (
                aten.cudnn_convolution.out,
                (bind(x), bind(weights), *geometry, *flags),
                {"out": to},
            )
        ]
        if bias is not None or relu:
            rest = (to, None, None if bias is None else bind(bias), None, to)
            calls.append((launch, rest, {"relu": relu}))
        return calls

    c.step(emit, [x], [out], library_workspace=True)


def _has_channels_last(x: Value) -> bool:
    """Whether channels are neighbours in memory."""
    return all(bare(x, *sample).stride(1) == 1 for sample in SAMPLES) or x.shape[1] == 1


def _with_channels_last(c: Context, x: Value, name: str) -> Value:
    """Scratch of the sizes of ``x`` with neighbouring channels."""
    rows, channels, height, width = x.shape
    room = c.scratch((rows, height, width, channels), x.dtype, name)
    return c.view(room, lambda t, b, p: t.permute(0, 3, 1, 2), x.shape)
