"""Convolution without masks: the DropConnect kernels with everything of a mask compiled out.

Shapes, tiles, precision, order and limits as in ``ops/conv2d/triton_fwd.py``; on Hopper as in
``triton_hopper_kernel.py``, both operands from shared memory. All images are one group.
"""

from torch import Tensor

from bayes_dc.ops.conv2d import triton_fwd

_CHANNELS_LAST = (
    "conv2d on the GPU reads and writes channels that are neighbours in memory; {name} has shape "
    "{shape} and strides {strides}. Give it the memory format torch.channels_last."
)


def launch_conv2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None = None,
) -> None:
    """Write ``F.conv2d(x, w, bias, …)``, then the epilogue, into ``out``.

    Args:
        x: Images ``[B, C, H, W]``, neighbouring channels, other strides any.
        w: Weights ``[N, C / groups, KH, KW]``, contiguous channels-last.
        bias: ``[N]``, or None.
        out: Result ``[B, N, OH, OW]``, contiguous channels-last.
        stride: Distance of windows.
        padding: Rows and columns of zeros around the image.
        dilation: Distance of taps.
        groups: Groups of channels.
        epilogue: Factors ``[N]``, summands ``[N]`` (or None) and whether negative results become 0.

    Raises:
        ValueError: If a tensor lies otherwise in memory.
    """
    images, weights, result = (t.permute(0, 2, 3, 1) for t in (x, w, out))
    if images.stride(3) != 1 and images.shape[3] > 1:
        raise ValueError(_message("x", x))
    for name, last, t in (("w", weights, w), ("out", result, out)):
        if not last.is_contiguous():
            raise ValueError(_message(name, t))
    triton_fwd.launch_fwd(
        images[None],
        weights,
        bias,
        None,
        None,
        None,
        result[None],
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        keep=1,
        bits=0,
        scale=1.0,
        epilogue=epilogue,
    )


def _message(name: str, t: Tensor) -> str:
    return _CHANNELS_LAST.format(name=name, shape=list(t.shape), strides=list(t.stride()))
