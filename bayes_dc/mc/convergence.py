"""How scores settle as passes are added: how many are enough.

For T' = 1, 2, 5, 10, 20, 50 … of T passes that were drawn, the scores of the first T' passes, as a
prediction with T' passes has them, averaged over the inputs. Two Monte Carlo errors stand beside
them: that of the average (its jackknife over passes, so that masks shared by the batch count as
what they are), and the mean over the inputs of every input's own standard error. Neither says how
far the scores would move with other inputs: that is what the bootstrap of the metrics is for.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayes_dc.mc.jackknife import standard_errors, without_groups
from bayes_dc.mc.statistics import PassStatistics, entropy

_SAMPLES = (
    "samples must be a float64 tensor [T, B, C] of class probabilities, that of "
    "predict_with_uncertainty(..., return_samples=True); got {got}."
)
_LABELS = "labels must be an int64 tensor [{B}] of classes 0 … {last}, or None; got {got}."
_BATCH = (
    "every batch must have the passes, classes and labels of the first: {want}; got {got}. Predict "
    "all batches with one T, and give labels with every batch or with none."
)
_NOTHING = "no samples: update was never called with an input. Call it before compute."


@dataclass(frozen=True)
class ConvergenceRow:
    """Scores of the first ``T`` passes, averaged over ``n`` inputs.

    Standard errors are Monte Carlo errors; they are None where they cannot be estimated: at
    ``T = 1``, and for the mutual information, which every single pass has none of, at ``T = 2``.

    Attributes:
        T: Number of passes.
        n: Number of inputs.
        nll: Mean −log p̄_y, nats; None without labels.
        entropy: Mean H(p̄), nats.
        mutual_information: Mean plug-in estimate, nats; low by about 1/T of its value.
        mutual_information_corrected: Mean with the jackknife's bias correction, nats.
        nll_se: Standard error of ``nll``.
        entropy_se: Standard error of ``entropy``.
        mutual_information_se: Standard error of both estimates of the mutual information.
        input_mean_se: Mean over inputs of the standard error of one input's class probabilities,
            that of its least certain class.
        input_entropy_se: Mean over inputs of the standard error of one input's entropy.
        input_mutual_information_se: The same of its mutual information.
    """

    T: int
    n: int
    nll: float | None
    entropy: float
    mutual_information: float
    mutual_information_corrected: float
    nll_se: float | None
    entropy_se: float | None
    mutual_information_se: float | None
    input_mean_se: float | None
    input_entropy_se: float | None
    input_mutual_information_se: float | None


def convergence_steps(T: int) -> list[int]:
    """Numbers of passes to look at.

    Args:
        T: Number of passes that there are, at least 1.

    Returns:
        1, 2, 5, 10, 20, 50 … below T, and T.
    """
    steps = [lead * 10**power for power in range(len(str(T))) for lead in (1, 2, 5)]
    return [step for step in steps if step < T] + [T]


def convergence(samples: Tensor, labels: Tensor | None = None) -> list[ConvergenceRow]:
    """Scores after 1, 2, 5, 10 … of the passes of a prediction.

    Args:
        samples: Class probabilities of every pass, ``Prediction.samples``, float64 ``[T, B, C]``.
        labels: Class of every input, int64 ``[B]``, for the NLL; or None.

    Returns:
        A row for each of ``convergence_steps(T)``.
    """
    curve = Convergence()
    curve.update(samples, labels)
    return curve.compute()


class Convergence:
    """The same over batches, with the bits of the call that gets everything at once.

    Memory is that of a few numbers for each step and group of passes, however many inputs there
    are.
    """

    def __init__(self) -> None:
        self._n = 0
        self._kind: tuple[int, int, bool] | None = None
        self._sums: list[Tensor] = []

    def update(self, samples: Tensor, labels: Tensor | None = None) -> None:
        """Add a batch; inputs with a NaN are left out.

        Args:
            samples: Class probabilities of every pass ``[T, B, C]``.
            labels: Class of every input ``[B]``, or None.

        Raises:
            ValueError: If an argument has another shape or dtype, or differs from the first batch
                in passes, classes or whether there are labels.
        """
        _check(samples, labels)
        kind = (samples.shape[0], samples.shape[2], labels is not None)
        if self._kind is not None and kind != self._kind:
            raise ValueError(_BATCH.format(want=_words(self._kind), got=_words(kind)))
        steps = convergence_steps(len(samples))
        if self._kind is None:
            self._kind = kind
        labels = None if labels is None else labels.to(samples.device)
        known = ~samples.isnan().any(dim=2).any(dim=0)
        if not known.all():
            samples = samples[:, known]
            labels = None if labels is None else labels[known]
        self._n += samples.shape[1]
        for k, step in enumerate(steps):
            values = _values(samples[:step], labels).cpu()
            if len(self._sums) <= k:
                self._sums.append(torch.zeros(len(values), 1, dtype=torch.float64))
            # torch adds up the columns of a cumulative sum one after the other
            self._sums[k] = torch.cat([self._sums[k], values], dim=1).cumsum(dim=1)[:, -1:]

    def compute(self) -> list[ConvergenceRow]:
        """Compute the table of all batches.

        Returns:
            A row for each of ``convergence_steps(T)``.

        Raises:
            ValueError: If there was no input.
        """
        if self._kind is None or self._n == 0:
            raise ValueError(_NOTHING)
        T, _, labelled = self._kind
        steps = convergence_steps(T)
        return [
            _row(step, self._n, sums[:, 0] / self._n, labelled)
            for step, sums in zip(steps, self._sums, strict=True)
        ]


def _values(samples: Tensor, labels: Tensor | None) -> Tensor:
    """What is averaged over inputs: 7 numbers, and 3 without each group, [7 + 3 J, B]."""
    T, B, C = samples.shape
    statistics = PassStatistics(T, B, C, samples.device)
    statistics.update(samples)
    summary = statistics.summary()
    whole = [
        _nll(summary.mean, labels),
        summary.entropy,
        summary.mutual_information,
        summary.mutual_information_corrected,
        summary.mean_se.amax(dim=1),
        summary.entropy_se,
        summary.mutual_information_se,
    ]
    if T == 1:
        return torch.stack(whole)
    mean, expected = without_groups(samples)
    total = entropy(mean)
    without = [_nll(mean, labels), total, total - expected]
    return torch.cat([torch.stack(whole), *without])


def _nll(probs: Tensor, labels: Tensor | None) -> Tensor:
    """−log p_y over the last dimension; 0 without labels."""
    if labels is None:
        return torch.zeros_like(probs[..., 0])
    picked = probs.gather(-1, labels.expand(probs.shape[:-1])[..., None])[..., 0]
    return -picked.clamp(max=1.0).log()


def _row(T: int, n: int, means: Tensor, labelled: bool) -> ConvergenceRow:
    """One row from the means over inputs of what ``_values`` returns."""
    whole = means[:7].tolist()
    errors: list[float | None] = [None] * 3
    if T > 1:
        found = standard_errors(means[:3], means[7:].view(3, -1).T, T)
        errors = [error if math.isfinite(error) else None for error in found.tolist()]
    if T == 2:
        errors[2] = None
    return ConvergenceRow(
        T=T,
        n=n,
        nll=whole[0] if labelled else None,
        entropy=whole[1],
        mutual_information=whole[2],
        mutual_information_corrected=whole[3],
        nll_se=errors[0] if labelled else None,
        entropy_se=errors[1],
        mutual_information_se=errors[2],
        input_mean_se=whole[4] if T > 1 else None,
        input_entropy_se=whole[5] if T > 1 else None,
        input_mutual_information_se=whole[6] if T > 2 else None,
    )


def _check(samples: Tensor, labels: Tensor | None) -> None:
    """Raise unless the shapes and dtypes are those asked for."""
    ok = isinstance(samples, Tensor) and samples.ndim == 3 and samples.dtype == torch.float64
    if not ok or samples.shape[0] == 0 or samples.shape[2] == 0:
        raise ValueError(_SAMPLES.format(got=_described(samples)))
    if labels is None:
        return
    B, C = samples.shape[1:]
    ok = isinstance(labels, Tensor) and labels.shape == (B,) and labels.dtype == torch.int64
    if not ok or bool(((labels < 0) | (labels >= C)).any()):
        got = _described(labels)
        if ok:
            got = f"{int(labels.min())} … {int(labels.max())}"
        raise ValueError(_LABELS.format(B=B, last=C - 1, got=got))


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def _words(kind: tuple[int, int, bool]) -> str:
    return f"T = {kind[0]}, C = {kind[1]}, {'with' if kind[2] else 'without'} labels"
