"""The output folder of a run.

last/  best/     checkpoints; best has the lowest validation loss of the mean-weight network and
                 is there only with a validation split
metrics.jsonl    one JSON object per epoch
config.yaml      resolved configuration
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayes_dc.train.errors import TrainingError
from bayes_dc.train.folder import current_folder, remove_folder, replace_file

MAY_CHANGE = (
    "output_dir",
    "predict",
    "data.root",
    "data.download",
    "train.epochs",
    "train.device",
    "train.log_every",
    "train.checkpoint_every",
)
"""Settings that a resumed run may change: they do not change the steps already done."""


@dataclass(frozen=True)
class RunFolder:
    """Output folder of one training run.

    Attributes:
        path: ``output_dir`` of the configuration.
    """

    path: Path

    @property
    def last(self) -> Path:
        """Checkpoint of the last saved epoch."""
        return self.path / "last"

    @property
    def best(self) -> Path:
        """Checkpoint of the lowest validation loss."""
        return self.path / "best"

    @property
    def metrics(self) -> Path:
        """One JSON object per epoch."""
        return self.path / "metrics.jsonl"

    def has_checkpoint(self) -> bool:
        """Return whether there is something to resume.

        Returns:
            True if ``last`` exists.
        """
        return current_folder(self.last) is not None

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse to write among files of another run; changes nothing.

        Args:
            resume: The run goes on.
            overwrite: The run starts over.

        Raises:
            TrainingError: If the folder is a file, or is not empty and neither is asked for.
        """
        if self.path.exists() and not self.path.is_dir():
            raise TrainingError(f"output_dir {self.path} is a file: name a folder.")
        if self.path.is_dir() and any(self.path.iterdir()) and not (resume or overwrite):
            raise TrainingError(
                f"output_dir {self.path} is not empty. Pass --resume to go on with the run in it, "
                "--overwrite to start over (its checkpoints and metrics are removed), or set "
                "another output_dir."
            )

    def start(self, config_text: str, *, overwrite: bool) -> None:
        """Make the folder, remove what an overwritten run left, and write the configuration.

        Args:
            config_text: Resolved configuration, YAML.
            overwrite: Remove checkpoints and metrics; other files stay.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if overwrite:
            remove_folder(self.last)
            remove_folder(self.best)
            self.metrics.unlink(missing_ok=True)
        replace_file(self.path / "config.yaml", config_text.encode())

    def keep_metrics(self, epochs: int) -> list[dict[str, Any]]:
        """Cut the metrics back to the first epochs, so that a resumed run repeats no line.

        Args:
            epochs: Epochs of the checkpoint that training goes on from.

        Returns:
            The lines that stay. A half-written last line is cut off.
        """
        kept = []
        text = self.metrics.read_text() if self.metrics.exists() else ""
        for line in text.splitlines():
            try:
                row = json.loads(line)
                if row["epoch"] > epochs:
                    break
            except (ValueError, TypeError, KeyError):
                break
            kept.append(row)
        replace_file(self.metrics, "".join(json.dumps(row) + "\n" for row in kept).encode())
        return kept

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of one epoch, durably.

        Args:
            row: Plain values.
        """
        with self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def check_same_run(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume with settings that would make it another run.

    Args:
        old: Resolved configuration in the checkpoint.
        new: Resolved configuration now.
        folder: Checkpoint, for the message.

    Raises:
        TrainingError: If a setting outside ``MAY_CHANGE`` differs.
    """
    before, now = _flat(old), _flat(new)
    changed = [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and not any(key == free or key.startswith(free + ".") for free in MAY_CHANGE)
    ]
    if changed:
        raise TrainingError(
            f"cannot resume {folder}: {'; '.join(changed)}. Set it back, or start a new run in "
            "another output_dir."
        )


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return every setting by its dotted key; lists and tuples compare equal."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat
