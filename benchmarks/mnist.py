"""The published MNIST experiment: ``python -m benchmarks.mnist --seeds 0 1 2``.

Trains 784-800-800-10 with DropConnect p = 0.5 on every weight matrix, and the plain network by the
same recipe, for every seed; prints test error, NLL, Brier and ECE of the Monte Carlo predictive
(T = 100), the mean-weight network and the plain network, mean ± standard deviation over seeds.
Source of the comparison: McClure & Kriegeskorte 2016, table 1.
"""

import argparse
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

import bayes_dc
from bayes_dc.config import Config, load_config
from bayes_dc.datasets import load_dataset
from bayes_dc.metrics import accuracy, brier, ece, nll
from bayes_dc.train import load_model

ROOT = Path(__file__).parents[1]
CONFIGS = ("mnist_mlp", "mnist_mlp_plain")
PASSES, BATCH = 100, 1000


def main() -> None:
    """Train what is asked for, evaluate all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=6, help="trainings that run side by side")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a setting of every run",
    )
    parser.add_argument("--evaluate-only", action="store_true", help="the runs are there already")
    arguments = parser.parse_args()
    runs = [(name, seed) for name in CONFIGS for seed in arguments.seeds]
    data = load_config(ROOT / f"configs/{CONFIGS[0]}.yaml", arguments.overrides).data
    load_dataset(data)  # unpacks and checks the files once, before many processes want them
    if not arguments.evaluate_only:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            started = [
                pool.submit(train, name, seed, arguments.out, arguments.overrides)
                for name, seed in runs
            ]
            for (name, seed), run in zip(runs, started, strict=True):
                run.result()
                print(f"trained {name}, seed {seed}", file=sys.stderr)
    scores: dict[str, list[list[float]]] = {}
    for name, seed in runs:
        for row, values in evaluate(arguments.out / f"{name}_seed{seed}").items():
            scores.setdefault(row, []).append(values)
    print(f"MNIST 784-800-800-10, T = {PASSES}, seeds {arguments.seeds}, mean ± sd")
    print(f"{'':32} {'error %':>14} {'NLL':>16} {'Brier':>16} {'ECE':>16}")
    for row, columns in scores.items():
        print(f"{row:32}", *(f"{spread(c):>16}" for c in zip(*columns, strict=True)))


def train(name: str, seed: int, out: Path, overrides: list[str]) -> None:
    """One run of ``scripts/train.py`` in a process of its own."""
    changes = [f"seed={seed}", f"output_dir={out / f'{name}_seed{seed}'}", *overrides]
    command = [sys.executable, str(ROOT / "scripts/train.py"), str(ROOT / f"configs/{name}.yaml")]
    for change in changes:
        command += ["--set", change]
    done = subprocess.run([*command, "--overwrite"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}: {done.stderr.strip().splitlines()[-1]}")


def evaluate(folder: Path) -> dict[str, list[float]]:
    """Scores on the 10 000 test images."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, meta = load_model(folder)
    model.to(device).eval()
    data = load_dataset(Config.model_validate(meta.config).data, meta.normalisation).test
    plain = not bayes_dc.nn.dropconnect_layers(model)
    single, passes = [], []
    for ids in torch.arange(len(data)).split(BATCH):
        x = data.batch(ids, device)
        with torch.no_grad():
            single.append(model(x).double().softmax(dim=1).cpu())
        if not plain:
            predicted = bayes_dc.predict_with_uncertainty(model, x, PASSES, sample_ids=ids)
            passes.append(predicted.mean.cpu())
    if plain:
        return {"plain network": score(torch.cat(single), data.labels)}
    return {
        "MC DropConnect": score(torch.cat(passes), data.labels),
        "its mean-weight network": score(torch.cat(single), data.labels),
    }


def score(probs: Tensor, labels: Tensor) -> list[float]:
    """Error in per cent, NLL in nats, Brier, ECE."""
    error = 100 * (1 - float(accuracy(probs, labels)))
    return [
        error,
        float(nll(probs, labels)),
        float(brier(probs, labels)),
        float(ece(probs, labels)),
    ]


def spread(values: tuple[float, ...]) -> str:
    """Mean ± standard deviation, or the value of a single seed."""
    mean = f"{statistics.mean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
