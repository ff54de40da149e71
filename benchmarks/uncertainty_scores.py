"""What ``benchmarks.uncertainty`` measures of one trained network."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bayes_dc.config import Config
from bayes_dc.datasets import ANGLES, DatasetBundle, load_votes, rotate
from bayes_dc.mc import Prediction, predict_with_uncertainty
from bayes_dc.metrics import (
    accuracy,
    aurc,
    auroc,
    brier,
    correct,
    coverage_at_risk,
    ece,
    fpr_at_tpr,
    nll,
    risk_at_coverage,
)
from bayes_dc.train import Inputs, Outputs, load_inputs, load_model, load_other, predict_inputs
from benchmarks.recipe_runs import Run
from benchmarks.votes import is_plain, vote_scores

COVERAGE, RISK = 0.9, 0.01


class Options(NamedTuple):
    """What is measured, the same for all networks.

    Attributes:
        ood: Sets of other inputs: name of a data set, or NAME=FILE.npz.
        ood_inputs: Of each, the first so many.
        rotated: Test images of the rotation sweep, the first so many.
        rotation_passes: T of the sweep.
        votes: File of votes about the test images, or None.
        batch_size: Inputs per call.
    """

    ood: tuple[str, ...]
    ood_inputs: int
    rotated: int
    rotation_passes: int
    votes: str | None
    batch_size: int = 500


def measure(
    model: nn.Module, config: Config, data: DatasetBundle, run: Run, *, options: Options
) -> dict[str, Any]:
    """Scores by group and name."""
    folder = Path(config.output_dir)
    _, meta = load_model(folder)
    device = next(model.parameters()).device
    if config.train.channels_last:
        model.to(memory_format=torch.channels_last)
    plain = is_plain(model)

    def predict(inputs: Inputs, passes: int) -> Outputs:
        with torch.autocast(device.type, torch.bfloat16, enabled=run.amp):
            return predict_inputs(
                model,
                inputs,
                T=passes,
                seed=0,
                batch_size=options.batch_size,
                device=device,
                plain=plain,
                # an engine takes seconds to make, for a network that is looked at once
                predict=partial(predict_with_uncertainty, engine="folded"),
            )

    test = load_inputs(folder, meta)
    assert test.labels is not None
    known = predict(test, run.passes)
    scores: dict[str, Any] = {"test": in_distribution(known.prediction, test.labels)}
    scores["seconds per 1000"] = 1e3 * known.seconds / len(test)
    for entry in options.ood:
        name, _, file = entry.partition("=")
        source: Any = ("npz", file) if file else (name, None)
        inputs = load_other(meta, source[0], root=source[1], limit=options.ood_inputs)
        scores[f"ood {name}"] = against(known, predict(inputs, run.passes), plain)
    if options.rotated:
        scores["rotation"] = rotation(test, predict, options)
    if options.votes is not None:
        votes = load_votes(options.votes, test.labels, len(meta.class_names))
        scores["votes"] = vote_scores(known.prediction, votes)
    return scores


def in_distribution(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    """Scores on inputs of the kind that was trained on; selection is by predictive entropy."""
    probs, wrong = prediction.mean, ~correct(prediction.mean, labels).bool()
    unsure = prediction.entropy
    return {
        "error %": 100 * float(wrong.double().mean()),
        "NLL": float(nll(probs, labels)),
        "Brier": float(brier(probs, labels)),
        "ECE": float(ece(probs, labels)),
        "AURC": float(aurc(unsure, wrong)),
        f"error % at {COVERAGE:.0%} coverage": 100
        * float(risk_at_coverage(unsure, wrong, COVERAGE)),
        f"coverage % at {RISK:.0%} error": 100 * float(coverage_at_risk(unsure, wrong, RISK)),
    }


def against(known: Outputs, other: Outputs, plain: bool) -> dict[str, float]:
    """How well uncertainties tell other inputs from those that were trained on, in per cent."""
    a, b = known.prediction, other.prediction
    pairs = {
        "entropy": (a.entropy, b.entropy),
        "max-p": (1 - a.confidence, 1 - b.confidence),
        "energy": (known.energy, other.energy),
    }
    if not plain:
        pairs["MI"] = (a.mutual_information, b.mutual_information)
    scores = {f"AUROC {name}": 100 * float(auroc(*pair)) for name, pair in pairs.items()}
    return scores | {"FPR95 entropy": 100 * float(fpr_at_tpr(*pairs["entropy"]))}


def rotation(
    test: Inputs, predict: Callable[[Inputs, int], Outputs], options: Options
) -> dict[str, dict[str, float]]:
    """Scores of test images turned by 0, 15 … 180 degrees."""
    count = min(options.rotated, len(test))
    pixels = np.stack([test.image(i) for i in range(count)])
    found = {}
    for degrees in (0, *ANGLES):
        turned = test.with_pixels(rotate(pixels, degrees))
        prediction = predict(turned, options.rotation_passes).prediction
        labels = turned.labels
        assert labels is not None
        found[str(degrees)] = {
            "accuracy": float(accuracy(prediction.mean, labels)),
            "NLL": float(nll(prediction.mean, labels)),
            "Brier": float(brier(prediction.mean, labels)),
            "ECE": float(ece(prediction.mean, labels)),
            "entropy": float(prediction.entropy.mean()),
            "MI": float(prediction.mutual_information.mean()),
        }
    return found
