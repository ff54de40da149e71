"""A training run from its first or last saved epoch to the end."""

from contextlib import nullcontext
from typing import Any

from torch import nn

from bayes_dc.datasets import DatasetBundle
from bayes_dc.train.meta import CheckpointMeta
from bayes_dc.train.progress import Progress, logger
from bayes_dc.train.ranks import ALONE, Ranks
from bayes_dc.train.run import RunFolder
from bayes_dc.train.settings import TrainConfig
from bayes_dc.train.trainer import Trainer


def fit(
    model: nn.Module,
    data: DatasetBundle,
    settings: TrainConfig,
    run: RunFolder,
    meta: CheckpointMeta,
    *,
    config_text: str,
    resume: bool = False,
    overwrite: bool = False,
    ranks: Ranks = ALONE,
) -> list[dict[str, Any]]:
    """Train a network and save it as it goes.

    Args:
        model: Network; moved to the device and trained in place.
        data: Data set.
        settings: Section ``train`` of a configuration.
        run: Output folder, made if it is not there.
        meta: What the run is: configuration, seed, classes; epoch, step and metrics are filled in.
        config_text: Resolved configuration, for ``config.yaml``.
        resume: Go on from ``run.last`` if it is there.
        overwrite: Start over in a folder that is in use. What is there is removed after the first
            epoch of the new run: one that fails before costs nothing.
        ranks: Ranks of the run, each with the same arguments; rank 0 writes.

    Returns:
        The lines of ``metrics.jsonl``, one per epoch, resumed ones included.

    Raises:
        TrainingError: If the folder is in use, the device is missing, the settings of a resumed run
            differ, or the loss stops being finite.
        CheckpointError: If a checkpoint or its metrics cannot be read or written.

    Determinism: on one CPU with one number of threads, weights and metrics repeat bit for bit, also
        across a resume.
    """
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite}
    if ranks.is_main:
        run.check(**options)
    trainer = Trainer(model, data, settings, meta.seed, ranks)
    with run.locked() if ranks.is_main else nullcontext():
        if ranks.is_main:
            run.check(**options)  # another run may just have ended
        return _fit(trainer, settings, run, meta, ranks, config_text=config_text, **options)


def _fit(
    trainer: Trainer,
    settings: TrainConfig,
    run: RunFolder,
    meta: CheckpointMeta,
    ranks: Ranks,
    *,
    config_text: str,
    resume: bool,
    overwrite: bool,
) -> list[dict[str, Any]]:
    """Train in a folder that nobody else writes to."""
    history: list[dict[str, Any]] = []
    if resume and run.has_checkpoint():
        trainer.restore(run, meta)
    ranks.wait()  # all have read what rank 0 is about to change
    if ranks.is_main:
        history = _prepare(trainer.epoch, run, config_text, resume=resume, overwrite=overwrite)
    progress = Progress(settings.epochs, trainer.samples, trainer.epoch, shown=ranks.is_main)
    started = overwrite
    try:
        while trainer.epoch < settings.epochs:
            row = trainer.run_epoch(progress)
            history.append(row)
            if ranks.is_main:
                if started:
                    run.start(config_text, overwrite=True)
                    started = False
                run.add_metrics(row)
                trainer.save(run, meta, row)
                progress.epoch(row)
            ranks.wait()  # what was saved is there
    finally:
        progress.close()
    return history


def _prepare(
    epoch: int, run: RunFolder, config_text: str, *, resume: bool, overwrite: bool
) -> list[dict[str, Any]]:
    """Bring the folder to the state after ``epoch``; return the metrics up to there."""
    if not overwrite:
        run.start(config_text, overwrite=False)
    if epoch > 0:
        logger.info("resuming %s after epoch %d", run.last, epoch)
        return run.keep_metrics(epoch)
    if resume:
        logger.info("nothing to resume in %s: starting from the beginning", run.path)
        run.keep_metrics(0)
    return []
