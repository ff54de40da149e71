"""What every metric asks of its arguments, and what it says when they are wrong."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

# A bfloat16 row is rounded by at most 2⁻⁸ of its sum; a row further off is no distribution.
SUM_SLACK = 1e-2

_TYPE = "{name} must be a torch.Tensor; got {got}. Wrap it: torch.as_tensor({name})."
_PROBS_DTYPE = (
    "{name} must hold floating point probabilities; got dtype {got}. "
    "Class numbers or votes are no probabilities: pass the network's softmax output."
)
_PROBS_SHAPE = (
    "{name} must have shape {want}; got {got}. "
    "For a binary score s pass torch.stack([1 - s, s], dim=1)."
)
_NO_SAMPLES = "no samples: {name} has shape {got}. A metric needs at least one input."
_NOT_FINITE = (
    "{name} holds {count} values that are NaN or infinite, the first at index {first}. "
    "Find the inputs that cause them, or leave those rows out and say so."
)
_NOT_PROBS = (
    "{name} must hold probabilities, non-negative with rows that sum to 1; row {row} has minimum "
    "{low:.6g} and sum {total:.6g}. If these are logits pass {name}.softmax(-1)."
)
_LABELS_DTYPE = (
    "labels must hold integer class numbers; got dtype {got}. Convert with labels.long(), "
    "or labels.argmax(1) if they are one-hot rows."
)
_LABELS_SHAPE = "labels must have shape [{rows}], one class for every row of probs; got {got}."
_LABELS_RANGE = (
    "labels must lie in 0 … {last} because probs has {classes} columns; "
    "got {got} at index {index}. Check that the labels belong to this network."
)
_VECTOR = "{name} must be floating point of shape [n], one number per sample; got {got}."
_NAN = (
    "{name} holds {count} NaN, the first at index {first}; a NaN has no rank. "
    "Find the inputs that cause them, or leave those rows out and say so."
)
_LOSS = "loss must be a bool or floating point tensor of shape [{n}] like uncertainty; got {got}."
_WRONG = "wrong must be a bool tensor of shape [{n}] like uncertainty; got {got}."
_STRATA = (
    "no samples: {missing} is empty, so nothing can be told apart from {other}. "
    "Pass the scores of both data sets."
)
_SHARE = "{name} must be a number above 0 and at most 1, such as 0.95; got {got!r}."
_COVERAGES = (
    "coverages must be a list of numbers above 0 and at most 1; got {got}. "
    "Pass [k / 100 for k in range(1, 101)] for a curve."
)
_RISK = "risk must be a number of at least 0, the mean loss to stay under; got {got!r}."
_CONFIDENCE = "confidence must be a number between 0 and 1 (excluded), such as 0.95; got {got!r}."
_MASS = (
    "n_bins = {n_bins} bins of equal mass need at least {need} samples, two per bin; got {n}. "
    "Pass {most}more samples."
)
_N_BINS = "n_bins must be a positive integer, the number of bins (not of edges); got {got!r}."


def is_integer(value: object) -> bool:
    """Whether ``value`` is a whole number of Python or NumPy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether ``value`` is a real number of Python or NumPy, and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_tensor(value: object, name: str) -> Tensor:
    """Return ``value`` if it is a tensor, or raise."""
    if not isinstance(value, Tensor):
        raise TypeError(_TYPE.format(name=name, got=type(value).__name__))
    return value


def check_distribution(values: Tensor, name: str, shape: str, ndim: int | None = None) -> Tensor:
    """Return ``values`` in float64 if its last dimension holds distributions."""
    check_tensor(values, name)
    if not values.is_floating_point():
        raise TypeError(_PROBS_DTYPE.format(name=name, got=values.dtype))
    if (ndim is not None and values.ndim != ndim) or values.ndim < 1 or values.shape[-1] == 0:
        raise ValueError(_PROBS_SHAPE.format(name=name, want=shape, got=list(values.shape)))
    if values.numel() == 0:
        raise ValueError(_NO_SAMPLES.format(name=name, got=list(values.shape)))
    values = values.double()
    wrong = ~values.isfinite()
    if wrong.any():
        first = wrong.nonzero()[0].tolist()
        raise ValueError(_NOT_FINITE.format(name=name, count=int(wrong.sum()), first=first))
    low, total = values.amin(-1), values.sum(-1)
    wrong = (low < 0) | ((total - 1).abs() > SUM_SLACK)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        row: int | list[int] = at[0] if len(at) == 1 else list(at)
        text = _NOT_PROBS.format(name=name, row=row, low=low[at].item(), total=total[at].item())
        raise ValueError(text)
    return values


def check_probs(probs: Tensor) -> Tensor:
    """Return ``probs`` ``[B, C]`` in float64, or raise."""
    return check_distribution(probs, "probs", "[B, C]", ndim=2)


def check_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """Return ``labels`` ``[B]`` in int64 on the device of ``probs``, or raise."""
    check_tensor(labels, "labels")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(_LABELS_DTYPE.format(got=labels.dtype))
    rows, classes = probs.shape
    if labels.shape != (rows,):
        raise ValueError(_LABELS_SHAPE.format(rows=rows, got=list(labels.shape)))
    labels = labels.to(device=probs.device, dtype=torch.int64)
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        index = int(wrong.nonzero()[0])
        text = _LABELS_RANGE.format(
            last=classes - 1, classes=classes, got=int(labels[index]), index=index
        )
        raise ValueError(text)
    return labels


def check_n_bins(n_bins: Any) -> int:
    """Return ``n_bins`` if it is a positive integer, or raise."""
    if not is_integer(n_bins) or n_bins < 1:
        raise ValueError(_N_BINS.format(got=n_bins))
    return int(n_bins)


def check_scores(scores: Tensor, name: str, *, empty: bool = True) -> Tensor:
    """Return ``scores`` ``[n]`` in float64 if they can be ranked; they may be infinite."""
    check_tensor(scores, name)
    if scores.ndim != 1 or not scores.is_floating_point():
        got = f"shape {list(scores.shape)}, dtype {scores.dtype}"
        raise ValueError(_VECTOR.format(name=name, got=got))
    if not empty and len(scores) == 0:
        raise ValueError(_NO_SAMPLES.format(name=name, got=[0]))
    wrong = scores.isnan()
    if wrong.any():
        first = int(wrong.nonzero()[0])
        raise ValueError(_NAN.format(name=name, count=int(wrong.sum()), first=first))
    return scores.double()


def check_loss(loss: Tensor, uncertainty: Tensor) -> Tensor:
    """Return ``loss`` ``[n]`` in float64 on the device of ``uncertainty``, or raise."""
    check_tensor(loss, "loss")
    known = loss.is_floating_point() or loss.dtype == torch.bool
    if loss.shape != uncertainty.shape or not known:
        got = f"shape {list(loss.shape)}, dtype {loss.dtype}"
        raise ValueError(_LOSS.format(n=len(uncertainty), got=got))
    wrong = ~loss.isfinite()
    if wrong.any():
        first = wrong.nonzero()[0].tolist()
        raise ValueError(_NOT_FINITE.format(name="loss", count=int(wrong.sum()), first=first))
    return loss.to(device=uncertainty.device, dtype=torch.float64)


def check_wrong(wrong: Tensor, uncertainty: Tensor) -> Tensor:
    """Return ``wrong``, bool ``[n]``, on the device of ``uncertainty``, or raise."""
    known = isinstance(wrong, Tensor) and wrong.dtype == torch.bool
    if not known or wrong.shape != uncertainty.shape:
        got = type(wrong).__name__
        if isinstance(wrong, Tensor):
            got = f"shape {list(wrong.shape)}, dtype {wrong.dtype}"
        raise ValueError(_WRONG.format(n=len(uncertainty), got=got))
    return wrong.to(uncertainty.device)


def check_strata(is_ood: Tensor) -> None:
    """Raise if one of the two data sets is empty."""
    for name, other, empty in (
        ("scores_in", "scores_out", bool(is_ood.all())),
        ("scores_out", "scores_in", not is_ood.any()),
    ):
        if empty:
            raise ValueError(_STRATA.format(missing=name, other=other))


def check_share(value: Any, name: str) -> float:
    """Return ``value`` if it is a number in (0, 1], or raise."""
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(_SHARE.format(name=name, got=value))
    return float(value)


def check_coverages(values: Sequence[float]) -> list[float]:
    """Return the shares if there are any and every one is a number in (0, 1], or raise."""
    several = not isinstance(values, Tensor | str) and hasattr(values, "__len__")
    if not several or len(values) == 0:
        got = "none" if several else type(values).__name__
        raise ValueError(_COVERAGES.format(got=got))
    return [check_share(value, "every one of coverages") for value in values]


def check_risk(value: Any) -> float:
    """Return ``value`` if it is a number of at least 0, or raise."""
    if not is_number(value) or not value >= 0:
        raise ValueError(_RISK.format(got=value))
    return float(value)


def check_confidence(value: Any) -> float:
    """Return ``value`` if it is a number strictly between 0 and 1, or raise."""
    if not is_number(value) or not 0 < value < 1:
        raise ValueError(_CONFIDENCE.format(got=value))
    return float(value)


def check_mass(n: int, n_bins: int) -> None:
    """Raise unless every one of ``n_bins`` bins of equal mass gets two samples."""
    if n < 2 * n_bins:
        most = f"n_bins={n // 2} or fewer, or " if n > 1 else ""
        text = _MASS.format(n_bins=n_bins, need=2 * n_bins, n=n, most=most)
        raise ValueError(text)
