"""Arguments of a prediction: their checks, and what is said of odd inputs."""

import operator
import warnings
from typing import get_args

import torch
from torch import Tensor, nn

from bayes_dc.mc.dropout import refuse_scripted
from bayes_dc.mc.guards import refuse_batch_statistics
from bayes_dc.nn import DropConnectModule, dropconnect_layers
from bayes_dc.types import Link

_PASSES = "{name} must be an integer of at least 1; got {got!r}."
_MOST_PASSES = 1 << 32
_TOO_MANY = "T must be at most 2**32, the number of pass ids; got {got}."
_INPUT = "x must be a tensor with the inputs along its first dimension; got {got}."
_SAMPLE_IDS = """\
sample_ids must be an int64 tensor of shape [{rows}], one id per row of x {x_shape}; got {got}.
For rows 0…{last} of a data set pass torch.arange({rows}), or leave it out.
"""
_LINK = "link must be one of {allowed}; got {got!r}."
_DROPOUT = "dropout must be True (nn.Dropout draws masks too) or False (it is off); got {got!r}."
_NO_LAYER = """\
The model has no DropConnect layer{and_no_dropout}, so every pass would be equal.
Convert it (bayes_dc.convert(model, p=0.5)) and train or fine-tune it, or build it with
bayes_dc.DropConnectLinear.
"""
_AND_NO_DROPOUT = """\
 and no dropout with p > 0 that draws in its forward (its modules
are in evaluation mode, so what it guards with self.training is off; use nn.Dropout or F.dropout
without the guard)"""
_AND_DROPOUT_OFF = " and dropout is off (dropout=False)"
_NOT_FOLDED = (
    "The model's output does not depend on any of its DropConnect layers ({names}): they are not "
    "called in its forward."
)
_NOT_FINITE = (
    "{count} of {batch} inputs hold NaN or infinite values (first row: {first}); their statistics "
    "are what the model makes of them."
)
_UNKNOWN = (
    "{count} of {batch} predictions are NaN although their inputs are finite (first row: {first}): "
    "weights are not finite, or numbers in the model outgrow its dtype (float16 ends at 65504). "
    "Look for them with torch.isfinite, or predict in float32 (model.float(), x.float())."
)


def check_count(name: str, value: object) -> int:
    """Return an integer of at least 1.

    Args:
        name: Name of the argument; T has an upper limit.
        value: Its value.

    Returns:
        The same as a Python int.

    Raises:
        ValueError: If it is something else.
    """
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(_PASSES.format(name=name, got=value))
    if name == "T" and count > _MOST_PASSES:
        raise ValueError(_TOO_MANY.format(got=count))
    return count


def check_arguments(
    model: nn.Module, x: Tensor, link: Link, dropout: bool
) -> dict[str, DropConnectModule]:
    """Refuse what cannot work.

    Args:
        model: The model.
        x: Its input.
        link: What turns its output into probabilities.
        dropout: Whether dropout draws masks.

    Returns:
        The DropConnect layers by name.

    Raises:
        TypeError: If ``x`` is no tensor.
        ValueError: If an option is not known.
    """
    if not isinstance(x, Tensor) or x.ndim == 0:
        got = "a scalar" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(_INPUT.format(got=got))
    if link not in get_args(Link):
        raise ValueError(_LINK.format(allowed=get_args(Link), got=link))
    if not isinstance(dropout, bool):
        raise ValueError(_DROPOUT.format(got=dropout))
    layers = dropconnect_layers(model)
    refuse_batch_statistics(model)
    if dropout:
        refuse_scripted(model)
    return layers


def ids_of_rows(sample_ids: Tensor | None, x: Tensor) -> Tensor:
    """The ids on the device of x; 0 … B − 1 where none are given.

    Args:
        sample_ids: What the user gave.
        x: Input ``[B, …]``.

    Returns:
        int64 ``[B]``.

    Raises:
        ValueError: If they are not one id for each row.
    """
    rows = x.shape[0]
    if sample_ids is None:
        return torch.arange(rows, dtype=torch.int64, device=x.device)
    is_tensor = isinstance(sample_ids, Tensor)
    if not is_tensor or sample_ids.shape != (rows,) or sample_ids.dtype != torch.int64:
        got = type(sample_ids).__name__
        if is_tensor:
            got = f"{sample_ids.dtype} {list(sample_ids.shape)}"
        raise ValueError(
            _SAMPLE_IDS.format(rows=rows, x_shape=list(x.shape), got=got, last=max(rows - 1, 0))
        )
    return sample_ids.to(x.device)


def largest_magnitude(x: Tensor) -> Tensor:
    """Largest magnitude in the input.

    Args:
        x: Any tensor.

    Returns:
        float64 scalar on its device, infinite or NaN where an entry is.
    """
    if not x.is_floating_point() or x.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=x.device)
    if x.element_size() == 1:
        x = x.float()
    return torch.linalg.vector_norm(x, torch.inf).double()


def warn_not_finite(x: Tensor) -> None:
    """Say that NaN and infinite inputs are used as they are.

    Args:
        x: Input with at least one of them.
    """
    bad = ~_finite_rows(x)
    count, first = int(bad.sum()), int(bad.nonzero()[0])
    message = _NOT_FINITE.format(count=count, batch=x.shape[0], first=first)
    warnings.warn(message, UserWarning, stacklevel=3)


def warn_unknown(x: Tensor, mean: Tensor) -> None:
    """Say that a model gave NaN for finite inputs; nothing if there are none.

    Args:
        x: Input.
        mean: Class probabilities ``[B, C]``.
    """
    bad = _finite_rows(x) & mean.isnan().any(dim=1)
    if count := int(bad.sum()):
        message = _UNKNOWN.format(count=count, batch=len(x), first=int(bad.nonzero()[0]))
        warnings.warn(message, UserWarning, stacklevel=3)


def _finite_rows(x: Tensor) -> Tensor:
    return torch.isfinite(x.reshape(x.shape[0], -1)).all(dim=1)


def nothing_drawn(model: nn.Module, dropout: bool) -> str:
    """Why no pass differs from another.

    Args:
        model: The model.
        dropout: Whether dropout draws masks.

    Returns:
        A message.
    """
    if layers := dropconnect_layers(model):
        return _NOT_FOLDED.format(names=", ".join(layers))
    if not dropout:
        return _NO_LAYER.format(and_no_dropout=_AND_DROPOUT_OFF)
    return _NO_LAYER.format(and_no_dropout=_AND_NO_DROPOUT)
