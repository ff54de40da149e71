"""The output folder of a run.

last/  best/     checkpoints; best has the lowest validation loss of the mean-weight network and
                 is there only with a validation split
metrics.jsonl    one JSON object per epoch
config.yaml      resolved configuration
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayes_dc.train.checkpoint import FILES
from bayes_dc.train.errors import CheckpointError, TrainingError
from bayes_dc.train.folder import current_folder, remove_folder, replace_file, siblings
from bayes_dc.train.progress import logger

MAY_CHANGE = (
    "output_dir",
    "predict",
    "data.root",
    "data.download",
    "train.epochs",
    "train.device",
    "train.cuda_graph",
    "train.log_every",
    "train.rank_timeout_seconds",
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
            TrainingError: If the folder is a file, or is not empty and neither is asked for, or
                holds other people's files where checkpoints go.
        """
        if self.path.exists() and not self.path.is_dir():
            raise TrainingError(f"output_dir {self.path} is a file: name a folder.")
        if self.path.is_dir() and any(self.path.iterdir()) and not (resume or overwrite):
            raise TrainingError(
                f"output_dir {self.path} is not empty. Pass --resume to go on with the run in it, "
                "--overwrite to start over (its checkpoints and metrics are removed), or set "
                "another output_dir."
            )
        for place in (self.last, self.best):
            for folder in (place, *siblings(place)):
                found = _foreign(folder)
                if found is not None:
                    raise TrainingError(
                        f"{folder} holds {found!r}, which is no part of a checkpoint, so it is not "
                        "replaced. Move that away or set another output_dir."
                    )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep other runs out of it.

        Yields:
            Nothing; the run goes on inside.

        Raises:
            TrainingError: If another run is writing to the folder.
            CheckpointError: If it cannot be made.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                import fcntl  # not on Windows

                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed with the process
            except BlockingIOError as error:
                raise TrainingError(
                    f"another run is writing to output_dir {self.path}: wait for it, stop it, or "
                    "set another output_dir."
                ) from error
            except (ImportError, OSError):
                logger.warning("%s cannot be locked: start no second run in it", self.path)
            yield
        finally:
            os.close(handle)

    def start(self, config_text: str, *, overwrite: bool) -> None:
        """Write the configuration and remove what an overwritten run left.

        Args:
            config_text: Resolved configuration, YAML.
            overwrite: Remove checkpoints and metrics; other files stay.

        Raises:
            CheckpointError: If the folder cannot be written.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            replace_file(self.path / "config.yaml", config_text.encode())
            if overwrite:
                remove_folder(self.last)
                remove_folder(self.best)
                self.metrics.unlink(missing_ok=True)

    def keep_metrics(self, epochs: int) -> list[dict[str, Any]]:
        """Cut the metrics back to the first epochs, so that a resumed run repeats no line.

        Args:
            epochs: Epochs of the checkpoint that training goes on from.

        Returns:
            The lines that stay. A half-written last line is cut off.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        kept = []
        content = self.metrics.read_bytes() if self.metrics.exists() else b""
        for line in content.splitlines():
            try:
                row = json.loads(line)
                if row["epoch"] > epochs:
                    break
            except (ValueError, TypeError, KeyError, RecursionError):
                break
            kept.append(row)
        with self._writing():
            replace_file(self.metrics, "".join(json.dumps(row) + "\n" for row in kept).encode())
        return kept

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of one epoch, durably.

        Args:
            row: Plain values.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        with self._writing(), self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say which folder could not be written, and what is left."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"cannot write to output_dir {self.path}: {error.strerror or error}. The last "
                "checkpoint, if any, is kept; make room or set another output_dir."
            ) from error


def _foreign(folder: Path) -> str | None:
    """Name of an entry that is no file of a checkpoint, if there is one; hidden ones are junk."""
    if not folder.is_dir():
        return None
    entries = [e for e in folder.iterdir() if not e.name.startswith(".")]
    names = sorted(e.name for e in entries if e.name not in FILES or not e.is_file())
    return names[0] if names else None


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
