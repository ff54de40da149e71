"""Metrics over batches, with the bits of the call that gets everything at once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.metrics._kind import Rows
from bayes_dc.metrics._table import check_batch, check_scalar, kind_of
from bayes_dc.metrics.bootstrap import Interval, bootstrap_rows

_EMPTY = "no samples: update was never called with any. Call it for every batch before {call}."
_SHAPE = (
    "a batch has {got} numbers per sample after batches of {want}; "
    "every batch must have the same classes."
)


class Streaming:
    """Collects batches and computes one metric of them all.

    Kept are the few numbers per sample that the metric needs, on the CPU: 8 bytes for means and for
    uncertainties, 9 for top-label calibration and OOD, 16 for selective prediction, 8 C + 8 for
    class-wise calibration.
    They are put together in the order of the calls, so ``compute`` returns the bits of the one-call
    form on CPU however the samples were cut into batches.

    Args:
        metric: A metric of this package that takes two tensors, such as ``ece``, ``aurc`` or
            ``auroc``, or an uncertainty of one, such as ``predictive_entropy`` or ``entropy``.
        **options: Its options by keyword, such as ``n_bins=10``.

    Raises:
        ValueError: If ``metric`` is not known or an option is out of range.
        TypeError: If an option is missing or not known.

    Example:
        >>> stream = Streaming(nll)
        >>> for probs, labels in batches:
        ...     stream.update(probs, labels)
        >>> value, interval = stream.compute(), stream.interval()
    """

    def __init__(self, metric: Callable[..., Any], **options: Any) -> None:
        self._kind = kind_of(metric, options)
        self._metric, self._options = metric, options
        self._batches: list[Rows] = []

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return sum(len(rows[0]) for rows in self._batches)

    def update(self, first: Tensor, second: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            first: First argument of the metric, for this batch.
            second: Second argument; None for an uncertainty. For OOD metrics one of the two may be
                ``torch.empty(0)``.

        Raises:
            TypeError: If the metric takes another number of tensors.
            ValueError: If the batch is refused by the metric or has another number of classes;
                the state is then unchanged.
        """
        batch = check_batch(self._metric, (first, second))
        rows = tuple(row.detach().cpu() for row in self._kind.rows(*batch))
        if self._batches:
            want = [list(row.shape[1:]) for row in self._batches[0]]
            got = [list(row.shape[1:]) for row in rows]
            if got != want:
                raise ValueError(_SHAPE.format(got=got, want=want))
        self._batches.append(rows)

    def compute(self) -> Any:
        """Compute the metric of all batches.

        Returns:
            What the one-call form returns, on the CPU; of an uncertainty float64 ``[n]``.
        """
        return self._kind.finish(self._rows("compute"), **self._options)

    def interval(self, *, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> Interval:
        """Compute the bootstrap interval of the metric, of an uncertainty's mean.

        See ``bootstrap_metric``.

        Args:
            level: Confidence level, strictly between 0 and 1.
            resamples: Number of resamples, at least 1.
            seed: Seed of the resampling.

        Returns:
            The interval.
        """
        check_scalar(self._metric)
        rows = self._rows("interval")
        return bootstrap_rows(
            self._kind, rows, self._options, level=level, resamples=resamples, seed=seed
        )

    def reset(self) -> None:
        """Forget every batch."""
        self._batches.clear()

    def _rows(self, call: str) -> Rows:
        """All batches in one, or raise if there is nothing."""
        if self.n == 0:
            raise ValueError(_EMPTY.format(call=call))
        return tuple(torch.cat(parts) for parts in zip(*self._batches, strict=True))
