"""Weights to start from: those of a checkpoint instead of random ones."""

from pathlib import Path

from torch import nn

from bayes_dc.train.checkpoint import MODEL_FILE, find_checkpoint, load_checkpoint, load_weights
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.meta import CheckpointMeta
from bayes_dc.train.progress import logger


def start_from(folder: str | Path, model: nn.Module, meta: CheckpointMeta) -> None:
    """Copy the weights and buffers of a checkpoint into a network, whatever its DropConnect is.

    Only ``meta.json`` and ``model.safetensors`` are read. Other names of the classes and other
    constants of the pixels than the checkpoint's are warned of.

    Args:
        folder: A checkpoint or a run's output folder (see ``find_checkpoint``).
        model: Network to fill.
        meta: What the new run is.

    Raises:
        CheckpointError: If the checkpoint cannot be read, or is of another network, number or order
            of classes, or shape of inputs.
    """
    saved, state = load_checkpoint(folder)
    classes, wanted = len(saved.class_names), len(meta.class_names)
    if classes != wanted:
        raise CheckpointError(
            f"init_from {folder}: it was trained for {classes} classes; the data has {wanted}. "
            "Name a checkpoint of the same classes, or leave init_from out."
        )
    old, new = list(saved.class_names), list(meta.class_names)
    if old != new and sorted(old) == sorted(new):
        raise CheckpointError(
            f"init_from {folder}: it was trained on the same classes in another order: {old}; the "
            f"data has {new}. Number the data's classes in the checkpoint's order, or leave "
            "init_from out."
        )
    if saved.input_shape != meta.input_shape:
        raise CheckpointError(
            f"init_from {folder}: it was trained on inputs of shape {list(saved.input_shape)}; the "
            f"data has {list(meta.input_shape)}. Name a checkpoint of the same shape, or leave "
            "init_from out."
        )
    load_weights(
        model,
        state,
        find_checkpoint(folder) / MODEL_FILE,
        network="the network of this configuration",
        remedy="Set model.name (and hidden, for mlp) to what the checkpoint was trained with.",
    )
    if old != new:
        logger.warning(
            "init_from %s: its classes are %s, those of this run are %s: output i starts as the "
            "checkpoint's class i",
            folder,
            old,
            new,
        )
    if saved.normalisation != meta.normalisation:
        logger.warning(
            "init_from %s: its pixels were scaled by mean %s and deviation %s, those of this run "
            "are by %s and %s",
            folder,
            *(list(v) for n in (saved, meta) for v in (n.normalisation.mean, n.normalisation.std)),
        )
