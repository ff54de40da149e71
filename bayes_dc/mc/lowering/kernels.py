"""Our own GPU kernels of plain layers, by name; triton is imported with the first."""

from collections.abc import Callable
from importlib import import_module

from bayes_dc.ops._register import importing_triton

_MODULES = {
    "launch_adaptive_avg_pool2d": "triton_pool",
    "launch_affine_act": "triton_affine",
    "launch_attention": "triton_attention",
    "launch_avg_pool2d": "triton_pool",
    "launch_conv2d": "triton_conv2d",
    "launch_group_norm": "triton_normalize",
    "launch_layer_norm": "triton_normalize",
    "launch_max_pool2d": "triton_pool",
    "launch_reduce": "triton_reduce",
    "launch_softmax_rows": "triton_reduce",
}


def plain_kernel(name: str) -> Callable[..., None]:
    """A launcher of ``bayes_dc.ops.plain``.

    Args:
        name: Its name.

    Returns:
        The launcher; it writes into its ``out`` and allocates nothing.
    """
    with importing_triton():
        module = import_module(f"bayes_dc.ops.plain.{_MODULES[name]}")
    launcher: Callable[..., None] = getattr(module, name)
    return launcher
