"""What a run shows: a bar on a terminal, one line per epoch anywhere else."""

import logging
import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from bayes_dc.train.ranks import ALONE, Ranks

logger = logging.getLogger("bayes_dc.train")


class StepLoss(NamedTuple):
    """What one step measured.

    Attributes:
        step: Global step.
        samples: Size of the batch.
        loss: Mean loss of the batch.
        correct: Right predictions among them.
        finite: Whether the inputs were finite.
    """

    step: int
    samples: int
    loss: float
    correct: int
    finite: bool

    @property
    def is_bad(self) -> bool:
        """Whether the loss is NaN or infinite."""
        return not math.isfinite(self.loss)


class LossWindow:
    """Keeps the losses of the latest steps on the device and reads them all in one transfer.

    Args:
        steps: Steps between two transfers.
        device: Where the losses are.
        ranks: Ranks of the run, which hold a share of every loss each.
    """

    def __init__(self, steps: int, device: torch.device, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self._rows = torch.ones(steps, 3, dtype=torch.float64, device=device)
        self._cells = [row.unbind() for row in self._rows.unbind()]
        self._steps: list[tuple[int, int]] = []

    def add(
        self, step: int, samples: int, loss: Tensor, correct: Tensor, finite: Tensor | None
    ) -> None:
        """Note one step without waiting for the device.

        Args:
            step: Global step.
            samples: Size of the batch.
            loss: Mean loss, or this rank's share of it, 0-d.
            correct: Right predictions of this rank, 0-d.
            finite: Whether its inputs are finite, 0-d bool, or None where that was not looked at.
        """
        cells = self._cells[len(self._steps)]
        cells[0].copy_(loss.detach())
        cells[1].copy_(correct)
        if finite is not None:
            cells[2].copy_(finite)
        self._steps.append((step, samples))

    def is_full(self) -> bool:
        """Return whether the next step needs a transfer first.

        Returns:
            True once as many steps are held as the window is long.
        """
        return len(self._steps) == len(self._rows)

    def drain(self) -> list[StepLoss]:
        """Return the held steps and forget them; waits for the device.

        Returns:
            One entry per step, in order.
        """
        window = self._rows[: len(self._steps)]
        if self._ranks.size > 1:
            window = window.clone()
            self._ranks.sum_([window])
        rows = window.tolist()
        steps, self._steps = self._steps, []
        return [
            StepLoss(step, samples, loss, int(correct), finite == self._ranks.size)
            for (step, samples), (loss, correct, finite) in zip(steps, rows, strict=True)
        ]


class Progress:
    """Shows how far a run is: on a terminal loss, accuracy, samples per second and time left.

    Args:
        epochs: Epochs of the run.
        samples: Samples per epoch.
        done: Epochs already trained.
        shown: Whether this process speaks.
    """

    def __init__(self, epochs: int, samples: int, done: int, *, shown: bool = True) -> None:
        self._epochs = epochs
        self._terminal = shown and sys.stderr.isatty()
        self._bar = tqdm(
            total=epochs * samples,
            initial=done * samples,
            unit=" samples",
            unit_scale=True,
            disable=not self._terminal,
            dynamic_ncols=True,
        )

    def steps(self, epoch: int, steps: list[StepLoss]) -> None:
        """Show steps.

        Args:
            epoch: Their epoch, from 1.
            steps: What they measured.
        """
        samples = sum(s.samples for s in steps)
        if self._terminal and samples:
            loss = sum(s.loss * s.samples for s in steps) / samples
            accuracy = sum(s.correct for s in steps) / samples
            self._bar.set_description(f"epoch {epoch}/{self._epochs}", refresh=False)
            self._bar.set_postfix_str(f"loss {loss:.4f}, accuracy {accuracy:.2%}", refresh=False)
            self._bar.update(samples)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Log the metrics of an epoch where there is no terminal.

        Args:
            row: Line of ``metrics.jsonl``.
        """
        if self._terminal:
            return
        text = f"loss {row['train_loss']:.4f}, accuracy {row['train_accuracy']:.2%}"
        if row["validation_loss"] is not None:
            text += (
                f", validation loss {row['validation_loss']:.4f}, accuracy "
                f"{row['validation_accuracy']:.2%}"
            )
        speed = f"{row['samples_per_second']:.0f} samples/s"
        logger.info("epoch %d/%d: %s, %s", row["epoch"], self._epochs, text, speed)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
