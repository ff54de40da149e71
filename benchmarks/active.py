"""Labels to an accuracy by active learning: ``python -m benchmarks.active --seeds 0 1 2 --jobs 6``.

Every run starts from a few labels, the same number of every class, trains a network on what is
labelled, tests it, chooses what to label next, and so on until the target or the budget is reached:

    train    from new initial weights, on full batches of the labelled images in random order
    test     Monte Carlo mean on the whole test set, masks of its own for every image
    choose   bayes_dc.acquire.choose on joint samples of candidates drawn from the unlabelled images

**Labels are counted as all that the network was trained on when its test first reaches the
accuracy, the initial ones included.** The authors of BatchBALD print the size before the last batch
instead. Shown are the quartiles over seeds; a run that ends without the accuracy counts as beyond
its budget.

Runs go side by side in --jobs processes. Each is written to the results as soon as it ends, so that
a stopped program goes on where it was.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

import bayes_dc
from bayes_dc.acquire import Method, choose, joint_samples, labels_to_reach
from bayes_dc.config import ActiveConfig, ConfigError, load_active_config
from bayes_dc.datasets import DatasetBundle, DatasetError, Split, load_dataset
from bayes_dc.metrics import accuracy
from bayes_dc.nn import MaskKeys
from bayes_dc.train import TrainingError, build_model, resolve_device
from bayes_dc.train.schedule import make_optimizer
from bayes_dc.train.step import TrainingStep
from bayes_dc.types import torch_seed

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/active.json"
CONFIG = ROOT / "configs/active_mnist.yaml"
BATCH = 1000
MARKS = (0.90, 0.95)
USER_ERRORS = (ConfigError, DatasetError, TrainingError, OSError)


def main() -> int:
    """Do the runs without a result, print the table; return the exit code."""
    arguments = parse_arguments()
    try:
        wanted = [
            load_active_config(
                arguments.config,
                [*arguments.overrides, f"acquire.method={method}", f"seed={seed}"],
            )
            for method in arguments.methods
            for seed in arguments.seeds
        ]
        results = execute(wanted, arguments.results, arguments.jobs)
    except USER_ERRORS as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(table(wanted, results))
    return int(any(key(config) not in results for config in wanted))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    methods = get_args(Method)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--methods", nargs="+", choices=methods, default=list(methods))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    return parser.parse_args()


def key(config: ActiveConfig) -> str:
    """Name of a run among the results."""
    return f"{config.acquire.method}_seed{config.seed}"


def execute(wanted: list[ActiveConfig], path: Path, jobs: int) -> dict[str, dict[str, Any]]:
    """Do what has no result with these settings; return all. A run that fails has none."""
    results = json.loads(path.read_bytes()) if path.exists() else {}
    missing = []
    for config in wanted:
        found = results.get(key(config), {})
        if found.get("config") != config.model_dump(mode="json"):
            results.pop(key(config), None)
            missing.append(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        running: dict[Future[dict[str, Any]], ActiveConfig] = {
            pool.submit(one, config): config for config in missing
        }
        for future in as_completed(running):
            name = key(running[future])
            try:
                results[name] = future.result()
            except Exception as error:  # one run that fails leaves the others
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
            os.replace(partial, path)
            curve = " ".join(f"{n}:{a:.3f}" for n, a in results[name]["curve"])
            print(f"{name} {results[name]['seconds']:.0f} s {curve}", file=sys.stderr, flush=True)
    return results


def one(config: ActiveConfig) -> dict[str, Any]:
    """One run, in a process of its own."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 8))
    device = resolve_device(config.train.device)
    started = time.perf_counter()
    curve = []
    for labels, reached in rounds(config, load_dataset(config.data), device):
        curve.append((labels, reached))
        seconds = f"{time.perf_counter() - started:.1f} s"
        print(f"{key(config)}: {labels} labels, {reached:.2%}, {seconds}", file=sys.stderr)
    return {
        "config": config.model_dump(mode="json"),
        "curve": curve,
        "seconds": time.perf_counter() - started,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def rounds(
    config: ActiveConfig, data: DatasetBundle, device: torch.device
) -> Iterator[tuple[int, float]]:
    """Labels in the training set and test accuracy, round after round."""
    acquire = config.acquire
    generator = torch.Generator().manual_seed(torch_seed(config.seed))
    labelled = first_labels(data.train.labels, acquire.initial, generator)
    for number in range(acquire.budget):
        model = train(config, data, labelled, device, seed=1000 * config.seed + number)
        reached = test(model, data.test, acquire.test_passes, device)
        yield len(labelled), reached
        count = min(acquire.count, acquire.budget - len(labelled))
        if reached >= acquire.target or count == 0:
            return
        free = torch.ones(len(data.train), dtype=torch.bool)
        free[labelled] = False
        candidates = free.nonzero()[:, 0]
        order = torch.randperm(len(candidates), generator=generator)
        candidates = candidates[order[: acquire.candidates]]
        if acquire.method == "random":
            chosen = torch.arange(count)
        else:
            samples = pool_samples(model, data.train, candidates, config, device, seed=number)
            options = {"seed": number, "configurations": acquire.configurations}
            chosen = choose(samples, count, acquire.method, **options).cpu()
        labelled = torch.cat([labelled, candidates[chosen]])


def first_labels(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Positions of the first labelled images: of every class as many, as far as it divides."""
    order = torch.randperm(len(labels), generator=generator)
    classes = labels[order]
    # The k-th image of every class comes before the k + 1-th of any.
    nth = torch.stack([(classes == c).cumsum(0) * (classes == c) for c in classes.unique()]).sum(0)
    return order[nth.argsort(stable=True)[:count]]


def train(
    config: ActiveConfig, data: DatasetBundle, labelled: Tensor, device: torch.device, seed: int
) -> nn.Module:
    """A new network, trained on the labelled images."""
    settings = config.train
    model = build_model(config.model, data.input_shape, len(data.class_names), seed=seed)
    model.to(device).train()
    x, y = data.train.batch(labelled, device), data.train.labels[labelled].to(device)
    size = settings.batch_size
    steps = -(-settings.epochs * len(labelled) // size)
    generator = torch.Generator().manual_seed(torch_seed(seed))
    passes = -(-steps * size // len(labelled))
    order = torch.cat([torch.randperm(len(labelled), generator=generator) for _ in range(passes)])
    batches = order[: steps * size].view(steps, size).to(device)
    keys = MaskKeys(seed)
    step = TrainingStep(model, make_optimizer(settings.optimizer, model), keys, settings, device)
    with keys.attached(model):
        for number, batch in enumerate(batches):
            step(x[batch], y[batch], number, 0, size)
    return model.eval()


def test(model: nn.Module, split: Split, passes: int, device: torch.device) -> float:
    """Share of right predictions of the Monte Carlo mean."""
    means = []
    for ids in torch.arange(len(split)).split(BATCH):
        x = split.batch(ids, device)
        prediction = bayes_dc.predict_with_uncertainty(
            model, x, passes, sample_ids=ids, engine="folded"
        )
        means.append(prediction.mean)
    return float(accuracy(torch.cat(means).cpu(), split.labels))


def pool_samples(
    model: nn.Module,
    split: Split,
    candidates: Tensor,
    config: ActiveConfig,
    device: torch.device,
    seed: int,
) -> Tensor:
    """Joint samples [T, N, C] of the candidates: batches meet the same functions."""
    passes = config.acquire.passes
    parts = [
        joint_samples(model, split.batch(ids, device), passes, seed=seed, engine="folded")
        for ids in candidates.split(BATCH)
    ]
    return torch.cat(parts, dim=1)


def table(wanted: list[ActiveConfig], results: dict[str, dict[str, Any]]) -> str:
    """Quartiles over seeds of the labels to each mark, one row for a method."""
    rows: dict[str, list[ActiveConfig]] = {}
    for config in wanted:
        if key(config) in results:
            rows.setdefault(config.acquire.method, []).append(config)
        else:
            print(f"no result of {key(config)}", file=sys.stderr)
    lines = [
        "labels in the training set when the test first reaches the mark, 25/50/75 % over runs"
    ]
    lines.append(f"{'':18}{'runs':>5}" + "".join(f"{f'{100 * m:.0f} %':>16}" for m in MARKS))
    for method, configs in rows.items():
        cells = []
        for mark in MARKS:
            found = [labels_to_reach(results[key(c)]["curve"], mark) for c in configs]
            cells.append(f"{quartiles(found, configs[0].acquire.budget):>16}")
        seconds = max(results[key(c)]["seconds"] for c in configs)
        lines.append(
            f"{method:18}{len(configs):>5}{''.join(cells)}   at most {seconds:.0f} s a run"
        )
    return "\n".join(lines)


def quartiles(found: list[int | None], budget: int) -> str:
    """Nearest ranks of a quarter, half and three quarters; runs without the mark come last."""
    ordered = sorted(budget + 1 if n is None else n for n in found)
    ranks = [
        ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))] for q in (0.25, 0.5, 0.75)
    ]
    return "/".join(f">{budget}" if n > budget else str(n) for n in ranks)


if __name__ == "__main__":
    sys.exit(main())
