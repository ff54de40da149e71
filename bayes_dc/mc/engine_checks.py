"""Arguments of an engine: their checks."""

import torch
from torch import Tensor

_EXAMPLE = (
    "example must hold at least one input, to be traced with; got shape {got}. Its values are not "
    "looked at: torch.zeros(1, …) will do."
)
_TYPE = "x must be a tensor with the inputs along its first dimension; got {got}."
_DEVICE = "x must be on {want}, where the engine was made; got one on {got}. Use x.to({want!r})."
_DTYPE = (
    "x must be {want}, as the example was; got {got}. Convert it (x.to({want})), or make an engine "
    "with an example of that dtype."
)
_SHAPE = (
    "x must have shape [b, {want}], as the example had; got {got}. Make another engine for inputs "
    "of other sizes."
)
_CAPACITY = (
    "x holds {got} inputs, and the engine has room for capacity = {capacity}. Split x "
    "(x.split({capacity})), or make an engine with capacity={got}."
)
_AUTOCAST = (
    "An engine is planned for the dtypes of its model; inside torch.autocast(device_type={kind!r}) "
    "the model itself would compute in others. Leave the block, and convert the model and its "
    "input before making the engine (model.bfloat16())."
)
_SAMPLE_IDS = (
    "sample_ids must be an int64 tensor of shape [{b}], one id per row of x; got {got}. For rows "
    "0…{last} of a data set pass torch.arange({b}), or leave it out."
)


def check_example(example: Tensor) -> None:
    """Refuse an example without inputs.

    Args:
        example: What an engine was given.

    Raises:
        ValueError: If it is empty.
    """
    if example.numel() == 0:
        raise ValueError(_EXAMPLE.format(got=list(example.shape)))


def check_input(
    x: object, shape: torch.Size, dtype: torch.dtype, device: torch.device, capacity: int
) -> int:
    """Refuse inputs that the engine was not planned for.

    Args:
        x: Inputs.
        shape: Their sizes beside the first.
        dtype: Their type.
        device: Where they must be.
        capacity: Most of them.

    Returns:
        How many there are.

    Raises:
        TypeError: If it is no tensor.
        ValueError: If it does not fit.
    """
    if not isinstance(x, Tensor) or x.ndim == 0:
        got = "a scalar" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(_TYPE.format(got=got))
    if x.device != device:
        raise ValueError(_DEVICE.format(want=str(device), got=x.device))
    if x.dtype != dtype:
        raise ValueError(_DTYPE.format(want=dtype, got=x.dtype))
    if x.shape[1:] != shape:
        want = ", ".join(map(str, shape))
        raise ValueError(_SHAPE.format(want=want, got=list(x.shape)))
    b = x.shape[0]
    if b > capacity:
        raise ValueError(_CAPACITY.format(got=b, capacity=capacity))
    return b


def check_no_autocast(kind: str) -> None:
    """Refuse to run inside an autocast block.

    Args:
        kind: Type of the device.

    Raises:
        ValueError: If autocast is on for it.
    """
    if torch.is_autocast_enabled(kind):
        raise ValueError(_AUTOCAST.format(kind=kind))


def check_sample_ids(sample_ids: object, b: int) -> None:
    """Refuse what is not one id for each input.

    Args:
        sample_ids: Ids.
        b: Inputs.

    Raises:
        ValueError: If they do not fit.
    """
    got = type(sample_ids).__name__
    if isinstance(sample_ids, Tensor):
        if sample_ids.shape == (b,) and sample_ids.dtype == torch.int64:
            return
        got = f"{sample_ids.dtype} {list(sample_ids.shape)}"
    raise ValueError(_SAMPLE_IDS.format(b=b, got=got, last=max(b - 1, 0)))
