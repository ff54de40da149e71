"""A training run from its first or last saved epoch to the end."""

from typing import Any

from torch import nn

from bayes_dc.datasets import DatasetBundle
from bayes_dc.train.meta import CheckpointMeta
from bayes_dc.train.progress import Progress, logger
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

    Returns:
        The lines of ``metrics.jsonl``, one per epoch, resumed ones included.

    Raises:
        TrainingError: If the folder is in use, the device is missing, the settings of a resumed run
            differ, or the loss stops being finite.
        CheckpointError: If a checkpoint or its metrics cannot be read or written.

    Determinism: on one CPU with one number of threads, weights and metrics repeat bit for bit, also
        across a resume.
    """
    run.check(resume=resume, overwrite=overwrite)
    trainer = Trainer(model, data, settings, meta.seed)
    options = {"resume": resume, "overwrite": overwrite}
    with run.locked():
        run.check(**options)  # another run may just have ended
        return _fit(trainer, settings, run, meta, config_text=config_text, **options)


def _fit(
    trainer: Trainer,
    settings: TrainConfig,
    run: RunFolder,
    meta: CheckpointMeta,
    *,
    config_text: str,
    resume: bool,
    overwrite: bool,
) -> list[dict[str, Any]]:
    """Train in a folder that nobody else writes to."""
    history: list[dict[str, Any]] = []
    if resume and run.has_checkpoint():
        trainer.restore(run, meta)
    if not overwrite:
        run.start(config_text, overwrite=False)
    if trainer.epoch > 0:
        history = run.keep_metrics(trainer.epoch)
        logger.info("resuming %s after epoch %d", run.last, trainer.epoch)
    elif resume:
        logger.info("nothing to resume in %s: starting from the beginning", run.path)
        run.keep_metrics(0)
    progress = Progress(settings.epochs, trainer.samples, trainer.epoch)
    try:
        while trainer.epoch < settings.epochs:
            row = trainer.run_epoch(progress)
            if overwrite and not history:
                run.start(config_text, overwrite=True)
            run.add_metrics(row)
            history.append(row)
            trainer.save(run, meta, row)
            progress.epoch(row)
    finally:
        progress.close()
    return history
