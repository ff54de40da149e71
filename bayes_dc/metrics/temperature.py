"""Temperature: how sure a Monte Carlo prediction may be, fitted on held-out labels.

With p_t the class probabilities of pass t, p̄ their mean and τ the temperature, the NLL of::

    "logits"   1/T Σ_t softmax(log p_t / τ)      every pass is tempered, then averaged
    "mean"     softmax(log p̄ / τ)                the average is tempered

is least at the τ that is returned. ``log p_t`` is the pass's logits less an offset that softmax
forgets, so the first is what dividing the logits by τ gives. For ``"mean"`` the NLL is convex in
1/τ; for ``"logits"`` it need not be, so the search begins on a grid, goes on by golden section and
ends with a step of Newton's. Fit on inputs that the network was not trained on, measure on others.
Source: Guo et al. 2017, "On calibration of modern neural networks", ICML, section 4.2; Ashukha et
al. 2020, "Pitfalls of in-domain uncertainty estimation and ensembling in deep learning", ICLR.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_distribution, check_labels

TemperatureKind = Literal["logits", "mean"]
"""What the temperature divides: the logits of every pass, or the log of their mean."""

BOUNDS = (0.05, 20.0)
"""Least and largest temperature of the search."""

_GRID = 13
_STEP = 1e-3  # in log τ: where golden section ends, and for derivatives
_ELEMENTS = 1 << 22

_KIND = "kind must be one of {allowed}; got {got!r}."
_IMPOSSIBLE = (
    "{count} of {n} labels were given probability 0 (first: input {first}), so the NLL is infinite "
    "at every temperature. Look at these inputs: a label may be wrong."
)
_ONE = (
    "a temperature needs at least 2 inputs, to say how well it is known; got {n}. Fit on more "
    "inputs, or use no temperature."
)
_FLAT = (
    "every pass gives all classes the same probability, which no temperature changes. Check that "
    "the network was trained."
)
_SURE = (
    "the NLL of these {n} inputs falls down to the least temperature, {bound}: {wrong} of them are "
    "wrong, too few to say how sure the network may be. Fit on more inputs, or use no temperature."
)
_UNSURE = (
    "the NLL of these {n} inputs falls up to the largest temperature, {bound}: the predictions say "
    "nothing about the labels. Check that labels and inputs belong together."
)


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature and how well it is known.

    Attributes:
        temperature: τ, above 0; above 1 makes predictions less sure.
        standard_error: Standard error of τ over other inputs of the same kind.
        kind: What it divides.
        nll_before: NLL at τ = 1, nats.
        nll_after: NLL at τ, nats, on the inputs that it was fitted on.
        n: Number of inputs.
    """

    temperature: float
    standard_error: float
    kind: TemperatureKind
    nll_before: float
    nll_after: float
    n: int


def fit_temperature(
    samples: Tensor, labels: Tensor, kind: TemperatureKind = "logits"
) -> TemperatureFit:
    """Find the temperature of least NLL; see the module.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        kind: ``"logits"`` or ``"mean"``.

    Returns:
        The fit; τ to about six digits.

    Raises:
        ValueError: If an argument is out of range, there is one input, a label has probability 0,
            all probabilities are equal, or the least NLL lies at a bound of 0.05 … 20, where the
            inputs say too little.
    """
    if kind not in get_args(TemperatureKind):
        raise ValueError(_KIND.format(allowed=get_args(TemperatureKind), got=kind))
    samples = check_distribution(samples, "samples", "[T, B, C]", ndim=3)
    mean = samples.mean(dim=0)
    labels = check_labels(labels, mean)
    if len(labels) < 2:
        raise ValueError(_ONE.format(n=len(labels)))
    logs = (mean[None] if kind == "mean" else samples).log()
    picked = mean.gather(1, labels[:, None])[:, 0]
    if not picked.all():
        none = (picked == 0).nonzero().flatten().tolist()
        text = _IMPOSSIBLE.format(count=len(none), n=len(labels), first=none[0])
        raise ValueError(text)
    if (logs == logs[..., :1]).all():
        raise ValueError(_FLAT)

    def nll(u: float) -> Tensor:
        """NLL of every input at τ = exp(u)."""
        rows = max(1, _ELEMENTS // logs[:, 0].numel())
        pairs = zip(logs.split(rows, dim=1), labels.split(rows), strict=True)
        return torch.cat([_nll(part, own, math.exp(-u)) for part, own in pairs])

    low, high = map(math.log, BOUNDS)
    grid = [low + (high - low) * k / (_GRID - 1) for k in range(_GRID)]
    values = [nll(u).mean().item() for u in grid]
    best = values.index(min(values))
    if best in (0, _GRID - 1):
        wrong = int((mean.argmax(dim=1) != labels).sum())
        text, bound = (_SURE, BOUNDS[0]) if best == 0 else (_UNSURE, BOUNDS[1])
        raise ValueError(text.format(n=len(labels), bound=bound, wrong=wrong))
    u = _golden_section(lambda u: nll(u).mean().item(), grid[best - 1], grid[best + 1])
    left, right = nll(u - _STEP), nll(u + _STEP)
    slope = (right - left) / (2 * _STEP)
    curvature = ((right - 2 * nll(u) + left) / _STEP**2).mean().item()
    u -= max(-_STEP, min(_STEP, slope.mean().item() / curvature))
    # of an M-estimator: the spread of the slopes over the curvature of their mean
    error = slope.std(correction=0).item() / math.sqrt(len(labels)) / curvature
    return TemperatureFit(
        temperature=math.exp(u),
        standard_error=math.exp(u) * error,
        kind=kind,
        nll_before=nll(0.0).mean().item(),
        nll_after=nll(u).mean().item(),
        n=len(labels),
    )


def _nll(logs: Tensor, labels: Tensor, power: float) -> Tensor:
    """−log of the mean over passes of the label's tempered probability, [B]."""
    scaled = logs * power
    own = scaled.gather(2, labels.expand(len(logs), -1)[..., None])[..., 0]
    return math.log(len(logs)) - (own - scaled.logsumexp(dim=2)).logsumexp(dim=0)


def _golden_section(f: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function with one minimum in low … high is least."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    f_a, f_b = f(a), f(b)
    while high - low > _STEP:
        if f_a <= f_b:
            high, b, f_b = b, a, f_a
            a = high - ratio * (high - low)
            f_a = f(a)
        else:
            low, a, f_a = a, b, f_b
            b = low + ratio * (high - low)
            f_b = f(b)
    return (low + high) / 2
