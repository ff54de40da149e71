"""What a forward does to its results before it writes them: folded batch norm and ReLU.

out = relu?(y · scale[n] + shift[n])        y = s · Σ_k D W x + b, in the precision of its sum
"""

from typing import Any, NamedTuple

from torch import Tensor

_NOT_A_VECTOR = (
    "epilogue {name} must be a contiguous floating-point vector of {n} numbers on {device}, one "
    "for each output; got shape {shape}, strides {strides}, {dtype} on {got}."
)


class Epilogue(NamedTuple):
    """What happens to output n, in this order.

    Attributes:
        scale: Factors ``[N]``, or None for 1.
        shift: Summands ``[N]``, or None for 0.
        relu: Whether negative results become 0.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None
    relu: bool = False


def options(
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None, out: Tensor
) -> dict[str, Any]:
    """Arguments of a kernel that writes ``out``, whose last dimension are the outputs.

    Args:
        epilogue: An ``Epilogue``, or a tuple like one; None for none.
        out: What the kernel writes.

    Returns:
        Nothing for None: the kernel is the one without. EPILOGUE adds up 1 for a scale, 2 for a
        shift and 4 for a ReLU.
    """
    if epilogue is None:
        return {}
    scale, shift, relu = epilogue
    for name, vector in (("scale", scale), ("shift", shift)):
        if vector is not None:
            _check(name, vector, out)
    flags = 1 * (scale is not None) + 2 * (shift is not None) + 4 * bool(relu)
    return {"factors_ptr": scale, "summands_ptr": shift, "EPILOGUE": flags}


def in_place(epilogue: tuple[Tensor | None, Tensor | None, bool] | None, out: Tensor) -> None:
    """The same in steps of torch, for results that no kernel made.

    Args:
        epilogue: What to do.
        out: Results, outputs along the last dimension; changed.
    """
    if epilogue is None:
        return
    scale, shift, relu = epilogue
    if scale is not None:
        out.mul_(scale)
    if shift is not None:
        out.add_(shift)
    if relu:
        out.clamp_(min=0)


def _check(name: str, vector: Tensor, out: Tensor) -> None:
    n = out.shape[-1]
    if (
        vector.shape != (n,)
        or not vector.is_contiguous()
        or not vector.is_floating_point()
        or vector.device != out.device
    ):
        raise ValueError(
            _NOT_A_VECTOR.format(
                name=name,
                n=n,
                device=out.device,
                shape=list(vector.shape),
                strides=list(vector.stride()),
                dtype=vector.dtype,
                got=vector.device,
            )
        )
