"""What acquisition asks of its arguments."""

import operator

from torch import Tensor

_SAMPLES = (
    "samples must be class probabilities [T, N, C] of T passes over N candidates; got {got}. "
    "joint_samples(model, x, T) returns them."
)
_WHOLE = "{name} must be an integer {range}; got {got!r}."


def check_samples(samples: Tensor) -> Tensor:
    """Return samples in float64.

    Args:
        samples: Class probabilities ``[T, N, C]``.

    Returns:
        Float64, detached.

    Raises:
        ValueError: If they are something else.
    """
    if not isinstance(samples, Tensor) or samples.ndim != 3 or not samples.is_floating_point():
        what = type(samples).__name__
        if isinstance(samples, Tensor):
            what = f"shape {list(samples.shape)}, dtype {samples.dtype}"
        raise ValueError(_SAMPLES.format(got=what))
    if samples.numel() == 0:
        raise ValueError(_SAMPLES.format(got=f"shape {list(samples.shape)}: nothing to choose"))
    return samples.detach().double()


def check_whole(value: object, name: str, low: int, high: int | None) -> int:
    """Return an integer in a range.

    Args:
        value: The argument.
        name: Its name.
        low: Least value.
        high: Largest value, or None.

    Returns:
        The same as a Python int.

    Raises:
        ValueError: If it is something else.
    """
    try:
        number = low - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = low - 1
    if number < low or (high is not None and number > high):
        shown = f"of at least {low}" if high is None else f"in {low} … {high}"
        raise ValueError(_WHOLE.format(name=name, range=shown, got=value))
    return number
