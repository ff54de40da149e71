"""Against people: ``python -m benchmarks.votes --votes cifar10h-counts.npy CHECKPOINT …``.

For every checkpoint of a network of CIFAR-10 (or of any set whose test images several people
labelled): the rank correlation of its uncertainties with the entropy of the votes, and its NLL
against their distribution, each with a 95 % bootstrap interval. CIFAR-10H is for non-commercial use
only and no part of this repository; see bayes_dc/datasets/votes.py for where it is.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bayes_dc.config import PredictConfig
from bayes_dc.datasets import DatasetError, load_votes
from bayes_dc.mc import Prediction
from bayes_dc.metrics import (
    bootstrap_mean,
    bootstrap_metric,
    kendall_tau_b,
    spearman,
    vote_entropy,
    vote_nll,
    vote_nll_per_sample,
)
from bayes_dc.nn import dropconnect_layers
from bayes_dc.train import (
    CheckpointError,
    TrainingError,
    load_inputs,
    load_model,
    predict_inputs,
    resolve_device,
    settings_of,
)

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
SCORES = ("expected_entropy", "mutual_information", "entropy")
USER_ERRORS = (CheckpointError, DatasetError, TrainingError, OSError)


def main() -> int:
    """Print a table; return the exit code."""
    arguments = parse_arguments()
    try:
        rows = {str(folder): one(folder, arguments) for folder in arguments.checkpoints}
    except USER_ERRORS as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(table(rows))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT")
    parser.add_argument("--votes", type=Path, required=True, metavar="FILE")
    parser.add_argument("--passes", type=int, metavar="T", help="default: of the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="only the first test images")
    parser.add_argument("--data-root", metavar="PATH", help="data files; default: of training")
    return parser.parse_args()


def one(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores of a checkpoint."""
    model, meta = load_model(folder)
    device = resolve_device("auto")
    every = load_inputs(folder, meta, root=arguments.data_root)
    if every.labels is None:
        raise DatasetError(f"{folder}: its test images have no labels, so no votes belong to them.")
    votes = load_votes(arguments.votes, every.labels, len(meta.class_names))
    inputs = load_inputs(folder, meta, root=arguments.data_root, limit=arguments.limit)
    settings = settings_of(PredictConfig, "predict", meta)
    outputs = predict_inputs(
        model.to(device),
        inputs,
        T=arguments.passes or settings.passes,
        seed=arguments.seed,
        batch_size=settings.batch_size,
        device=device,
        plain=is_plain(model),
    )
    return vote_scores(outputs.prediction, votes[: len(inputs)], intervals=True)


def is_plain(model: nn.Module) -> bool:
    """Whether nothing in a network draws masks."""
    drops = (m.p > 0 for m in model.modules() if isinstance(m, DROPOUT))
    return not dropconnect_layers(model) and not any(drops)


def vote_scores(
    prediction: Prediction, votes: Tensor, *, intervals: bool = False
) -> dict[str, Any]:
    """Agreement of a prediction with votes; each a number, with intervals (value, low, high).

    A plain network has no mutual information: that is left out.
    """
    people = vote_entropy(votes)
    scores: dict[str, Any] = {"vote NLL": float(vote_nll(prediction.mean, votes))}
    if intervals:
        interval = bootstrap_mean(vote_nll_per_sample(prediction.mean, votes))
        scores["vote NLL"] = (scores["vote NLL"], interval.low, interval.high)
    for name in SCORES:
        if name == "mutual_information" and prediction.T == 1:
            continue
        values = getattr(prediction, name)
        for label, metric in (("ρ", spearman), ("τ", kendall_tau_b)):
            value: Any = float(metric(values, people))
            if intervals:
                interval = bootstrap_metric(metric, values, people)
                value = (value, interval.low, interval.high)
            scores[f"{label} {name}"] = value
    return scores


def table(rows: dict[str, dict[str, Any]]) -> str:
    """One block for each checkpoint."""
    lines = []
    for name, scores in rows.items():
        lines.append(name)
        for label, (value, low, high) in scores.items():
            lines.append(f"    {label:24}{value:9.4f}   95 % {low:.4f} … {high:.4f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
