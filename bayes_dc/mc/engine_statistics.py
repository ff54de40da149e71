"""Statistics of an engine's passes in memory of its own: calls that allocate nothing."""

from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.plan_types import Call
from bayes_dc.mc.statistics import MAX_GROUPS, Summary
from bayes_dc.ops import mc_stats
from bayes_dc.types import Link


class RunStatistics:
    """Room for the state, the summary and, if asked for, the samples of T passes.

    Args:
        T: Passes.
        capacity: Largest number of inputs.
        classes: Classes C.
        link: What turns outputs into probabilities.
        device: Where.
        most_rows: Most rows, inputs times passes, of a chunk.
    """

    def __init__(
        self,
        T: int,
        capacity: int,
        classes: int,
        link: Link,
        device: torch.device,
        most_rows: int,
    ) -> None:
        self.T, self.classes, self.link = T, classes, link
        self.groups = min(T, MAX_GROUPS)
        self._capacity, self._most_rows = capacity, most_rows
        self._launch = mc_stats.launchers(device)
        entries = mc_stats.state_entries(self.groups, capacity, classes, ranges=self._ranged)
        self._state = torch.zeros(entries, dtype=torch.float64, device=device)
        self._results = self._state.new_zeros(self.result_entries(capacity))
        self._latest = self._results
        self._rows: Tensor | None = None
        if self._launch.notes_rows:
            entries = mc_stats.row_entries(T, most_rows, classes, ranges=self._ranged)
            self._rows = self._state.new_empty(entries)
        self._samples: Tensor | None = None
        self._wide: Tensor | None = None

    @property
    def _ranged(self) -> bool:
        return self.link == "identity"

    def result_entries(self, b: int) -> int:
        """Room of a summary.

        Args:
            b: Inputs.

        Returns:
            Number of float64.
        """
        return 3 * b * self.classes + 7 * b

    def results(self, b: int) -> Tensor:
        """Where the summary of b inputs is after a run.

        Args:
            b: Inputs.

        Returns:
            float64 ``[result_entries(b)]``, to be read with ``fields``.
        """
        if self._latest.numel() != (entries := self.result_entries(b)):
            self._latest = self._results[:entries]
        return self._latest

    def fields(self, results: Tensor, b: int) -> Summary:
        """The summary in a copy of ``results(b)``.

        Args:
            results: float64 ``[result_entries(b)]``, contiguous.
            b: Inputs.

        Returns:
            Views of it.
        """
        C, at = self.classes, results.storage_offset()
        # Two views and two calls that part them: fewer calls of torch than a view for each field.
        by_class = results.as_strided((3, b, C), (b * C, C, 1), at)
        by_input = results.as_strided((7, b), (b, 1), at + 3 * b * C)
        mean, variance, mean_se = by_class.unbind()
        pieces = by_input.unbind()
        return Summary._make((mean, variance, *pieces[:5], mean_se, *pieces[5:]))

    def samples(self, b: int) -> Tensor:
        """Where the probabilities of all passes are after a run that keeps them.

        Args:
            b: Inputs.

        Returns:
            float64 ``[T, b, C]``; allocated at the first call.
        """
        if self._samples is None:
            entries = self.T * self._capacity * self.classes
            self._samples = self._state.new_empty(entries)
        entries = self.T * b * self.classes
        return self._samples[:entries].view(self.T, b, self.classes)

    def ranges(self, b: int) -> Tensor | None:
        """What tells probabilities from other numbers, of b inputs.

        Args:
            b: Inputs.

        Returns:
            float64 ``[3, b]`` as in ``PassState``; None for ``link="softmax"``.
        """
        return self._state_of(b).ranges if self._ranged else None

    def add(self, output: Tensor, first: int, *, keep_samples: bool) -> list[Call]:
        """Calls after a chunk of passes.

        Args:
            output: ``[passes, b, C]``, where the chunk leaves its outputs.
            first: Number of its first pass.
            keep_samples: Whether the probabilities are kept too.

        Returns:
            They add the passes to the state; those of the first chunk to that of no passes.
        """
        passes, b = output.shape[:2]
        calls: list[Call] = []
        if output.dtype not in self._launch.dtypes:
            output, narrow = self._widened(output), output
            calls.append((torch.Tensor.copy_, (output, narrow), {}))
        samples = self.samples(b)[first : first + passes] if keep_samples else None
        options: dict[str, Any] = {"first": first, "softmax": self.link == "softmax"}
        if self._rows is not None:
            options["rows"] = self._rows
        calls.append((self._launch.update, (output, *self._state_of(b), samples), options))
        return calls

    def end(self, b: int) -> list[Call]:
        """Calls after the last pass.

        Args:
            b: Inputs.

        Returns:
            They write the summary.
        """
        into = self._parts(self.results(b), b)
        return [(self._launch.summary, (*self._state_of(b)[:6], *into), {"T": self.T})]

    def state_bytes(self) -> dict[str, int]:
        """What is allocated.

        Returns:
            Bytes by what they are for.
        """
        others = {
            "notes of rows": self._rows,
            "samples": self._samples,
            "outputs in float32": self._wide,
        }
        return {
            "statistics": self._state.nbytes + self._results.nbytes,
            **{name: 0 if t is None else t.nbytes for name, t in others.items()},
        }

    def _state_of(self, b: int) -> mc_stats.PassState:
        entries = mc_stats.state_entries(self.groups, b, self.classes, ranges=self._ranged)
        memory = self._state[:entries]
        return mc_stats.state_in(memory, self.groups, b, self.classes, ranges=self._ranged)

    def _widened(self, output: Tensor) -> Tensor:
        """Room for outputs of a dtype that the kernels do not read, as float32."""
        if self._wide is None:
            entries = self._most_rows * self.classes
            self._wide = self._state.new_empty(entries, dtype=torch.float32)
        return self._wide[: output.numel()].view(output.shape)

    def _parts(self, results: Tensor, b: int) -> tuple[Tensor, Tensor]:
        classes, inputs = results.split([3 * b * self.classes, 7 * b])
        return classes.view(3, b, self.classes), inputs.view(7, b)
