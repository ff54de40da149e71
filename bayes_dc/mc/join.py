"""Predictions of consecutive batches as one."""

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from bayes_dc.mc.prediction import Prediction

_NOTHING = "no predictions to join; predict at least one batch."
_RUNS = (
    "predictions to be joined must come from one run; got {name} = {first!r} and {other!r}. "
    "Predict all batches with the same T, seed and model."
)
_SAMPLES = (
    "predictions to be joined must all hold samples or none; got {got} of {parts} with samples."
)


def join_predictions(parts: Sequence[Prediction]) -> Prediction:
    """Join the predictions of consecutive batches, on the CPU.

    Args:
        parts: Predictions of one run, in the order of the inputs.

    Returns:
        One prediction; ``elapsed_seconds`` is the sum, ``samples`` are kept where there are any.

    Raises:
        ValueError: If there is nothing to join or the runs differ in T, seed, p_effective, active
            dropout or whether they hold samples.
    """
    if not parts:
        raise ValueError(_NOTHING)
    for name in ("T", "seed", "p_effective", "dropout"):
        values = [getattr(part, name) for part in parts]
        for other in values[1:]:
            if other != values[0]:
                raise ValueError(_RUNS.format(name=name, first=values[0], other=other))
    tensors = {
        field.name: torch.cat([getattr(part, field.name).cpu() for part in parts])
        for field in fields(Prediction)
        if field.name != "samples" and isinstance(getattr(parts[0], field.name), Tensor)
    }
    samples = [part.samples.cpu() for part in parts if part.samples is not None]
    if samples and len(samples) < len(parts):
        raise ValueError(_SAMPLES.format(got=len(samples), parts=len(parts)))
    return Prediction(
        **tensors,
        samples=torch.cat(samples, dim=1) if samples else None,
        T=parts[0].T,
        seed=parts[0].seed,
        p_effective=parts[0].p_effective,
        elapsed_seconds=sum(part.elapsed_seconds for part in parts),
        dropout=parts[0].dropout,
        engine=parts[0].engine,
    )
