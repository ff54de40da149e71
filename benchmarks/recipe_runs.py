"""One run of a recipe: train, evaluate, keep the scores; and many side by side."""

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bayes_dc
from bayes_dc.config import Config, ConfigError, dump_config, load_config
from bayes_dc.datasets import DataConfig, DatasetBundle, DatasetError, load_dataset
from bayes_dc.metrics import accuracy, brier, ece, nll
from bayes_dc.train import (
    CheckpointError,
    CheckpointMeta,
    RunFolder,
    TrainingError,
    build_model,
    fit,
    load_model,
    start_from,
)
from benchmarks import step_time

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/recipes.json"
PASSES, BATCH = 100, 512
Measure = Callable[[nn.Module, Config, DatasetBundle, "Run"], dict[str, Any]]
USER_ERRORS = (CheckpointError, ConfigError, DatasetError, TrainingError, OSError)
"""What the command, a configuration, the data or a folder is to blame for: a line says it all."""
INDIFFERENT = ("cuda_graph", "device", "log_every", "rank_timeout_seconds")
"""Settings of training that change no result; some are missing in older results."""


class Run(NamedTuple):
    """What to train and how it is shown.

    Attributes:
        name: Its folder and its key in the results.
        row: Its row of the table, shared by its seeds.
        config: File of configs/, without the ending.
        seed: Seed.
        overrides: Settings that differ from the file.
        passes: T of the evaluation.
        needs: Name of a run that must be there before.
        speed: Only time its steps.
        untrained: Evaluate it as it was converted.
        amp: Evaluate under bf16 autocast.
    """

    name: str
    row: str
    config: str
    seed: int
    overrides: tuple[str, ...]
    passes: int = PASSES
    needs: str | None = None
    speed: bool = False
    untrained: bool = False
    amp: bool = False

    def settings(self, out: Path) -> Config:
        """Its configuration."""
        changes = [f"seed={self.seed}", f"output_dir={out / self.name}", *self.overrides]
        return load_config(ROOT / f"configs/{self.config}.yaml", changes)


def execute(
    runs: list[Run],
    *,
    out: Path,
    results: Path,
    jobs: int,
    devices: list[str],
    overwrite: bool,
    measure: Measure | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Do the runs without a result, ``jobs`` at a time; return all. Failed runs have no result.

    ``measure`` scores a trained network in place of ``evaluate``; ``options`` are what it depends
    on besides the run.
    """
    measure, options = measure or evaluate, options or {}
    done = _read(results)
    waiting = []
    for run in runs:
        config = run.settings(out).model_dump(mode="json")
        wanted = {"passes": run.passes, "amp": run.amp, **options}
        found = done.get(run.name, {})
        same = all(found.get(key) == value for key, value in wanted.items())
        if overwrite or not (same and _decisive(found["config"]) == _decisive(config)):
            done.pop(run.name, None)
            waiting.append(run)
    _check(waiting, out, overwrite)
    results.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for number in range(jobs):
        queue.put(devices[number % len(devices)] if devices else "")
    running: dict[Future[dict[str, Any]], Run] = {}
    failed = []
    with ProcessPoolExecutor(jobs, context, _start_worker, (queue,)) as pool:
        while waiting or running:
            names = {run.name for run in waiting} | {run.name for run in running.values()}
            for run in [r for r in waiting if r.needs not in names]:
                waiting.remove(run)
                running[pool.submit(_one, run, out, overwrite, measure, options)] = run
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(future)
                try:
                    done[run.name] = future.result()
                except Exception as error:  # one run that fails leaves the others
                    failed.append(f"{run.name}: {type(error).__name__}: {error}")
                    if not isinstance(error, USER_ERRORS):
                        traceback.print_exception(error)
                    print(failed[-1], file=sys.stderr, flush=True)
                    continue
                _write(results, done)
                print(_line(run, done[run.name]), file=sys.stderr, flush=True)
    if failed:
        print(f"{len(failed)} runs failed", file=sys.stderr)
    return done


def _decisive(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that a result depends on."""
    train = {k: v for k, v in config["train"].items() if k not in INDIFFERENT}
    return {**config, "train": train}


def _check(runs: list[Run], out: Path, overwrite: bool) -> None:
    """Raise one of ``USER_ERRORS`` for what would stop a run before its first step."""
    for run in runs:
        config = run.settings(out)
        if not run.speed:
            RunFolder(out / run.name).check(resume=not overwrite, overwrite=overwrite)
        data = step_time.noise(config) if run.speed else _data(config.data)
        try:
            _untrained(config, data)
        except ValueError as error:  # what the types of the settings cannot know, e.g. p = 1e-9
            raise ConfigError(f"{run.name}: model: {error}") from error
    _data.cache_clear()  # the processes read their own


def _start_worker(queue: "Queue[str]") -> None:
    """Give a process its GPU, before it looks for one."""
    device = queue.get()
    if device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Results so far."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"--results {path} holds no results of recipes. Name another file.")
    return found


def _write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """Replace the results, whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    os.replace(partial, path)


def _line(run: Run, result: dict[str, Any]) -> str:
    """What a finished run says."""
    if run.speed:
        return f"{run.name}: {result['step_ms']:.2f} ms per step"
    scores = "; ".join(
        f"{kind} {' '.join(f'{v:.4f}' for v in values)}"
        for kind, values in result["scores"].items()
        if isinstance(values, list)
    )
    seconds = f"{result['train_seconds']:.1f} s + {result['predict_seconds']:.1f} s"
    return f"{run.name}: {scores} ({seconds})"


def _one(
    run: Run, out: Path, overwrite: bool, measure: Measure, options: dict[str, Any]
) -> dict[str, Any]:
    """Train, or go on with, one run and evaluate it; in a process of its own."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 8))
    torch.backends.cudnn.benchmark = True
    config = run.settings(out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = {
        "config": config.model_dump(mode="json"),
        "passes": run.passes,
        "amp": run.amp,
        **options,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    if run.speed:
        started_from = _untrained(config, step_time.noise(config))
        return about | {"step_ms": step_time.step_ms(config, *started_from)}
    data = _data(config.data)
    history: list[dict[str, Any]] = []
    if run.untrained:
        model, meta = _untrained(config, data)
        start_from(config.init_from or "", model, meta)
    else:
        history = _train(config, data, overwrite)
        model, _ = load_model(config.output_dir)
    started = time.perf_counter()
    scores = measure(model.to(device), config, data, run)
    return about | {
        "scores": scores,
        "train_seconds": sum(row["seconds"] for row in history),
        "predict_seconds": time.perf_counter() - started,
    }


@lru_cache(maxsize=2)
def _data(settings: DataConfig) -> DatasetBundle:
    """The data set, read once for a process."""
    return load_dataset(settings)


def _untrained(config: Config, data: DatasetBundle) -> tuple[nn.Module, CheckpointMeta]:
    """The network of a configuration and what its run is."""
    classes = len(data.class_names)
    model = build_model(config.model, data.input_shape, classes, seed=config.seed)
    meta = CheckpointMeta(
        config=config.model_dump(mode="json"),
        seed=config.seed,
        class_names=data.class_names,
        input_shape=data.input_shape,
        normalisation=data.normalisation,
    )
    return model, meta


def _train(config: Config, data: DatasetBundle, overwrite: bool) -> list[dict[str, Any]]:
    """What scripts/train.py does; a run that is there already goes on, or is refused if another."""
    folder = RunFolder(Path(config.output_dir))

    model, meta = _untrained(config, data)
    if config.init_from is not None and (overwrite or not folder.has_checkpoint()):
        start_from(config.init_from, model, meta)
    text = dump_config(config)
    try:
        return fit(
            model,
            data,
            config.train,
            folder,
            meta,
            config_text=text,
            resume=not overwrite,
            overwrite=overwrite,
        )
    except TrainingError as error:
        hint = " Here --overwrite trains it again, and --out names another folder."
        raise TrainingError(f"{error}{hint if 'cannot resume' in str(error) else ''}") from error


def evaluate(
    model: nn.Module, config: Config, data: DatasetBundle, run: Run
) -> dict[str, list[float]]:
    """Scores on the test set: Monte Carlo, where there is something to draw, and one pass."""
    device = next(model.parameters()).device
    if config.train.channels_last:
        model.to(memory_format=torch.channels_last)
    model.eval()
    kinds = {
        (False, False): ("", "plain network"),
        (True, False): ("MC DropConnect", "mean weights"),
    }
    drawn, single = kinds.get(
        (config.model.p > 0, config.model.dropout > 0), ("MC dropout", "without dropout")
    )
    split = data.test
    outputs: dict[str, list[Tensor]] = {drawn: [], single: []}
    for ids in torch.arange(len(split)).split(BATCH):
        x = split.batch(ids, device)
        if config.train.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=run.amp):
            outputs[single].append(model(x).double().softmax(dim=1).cpu())
            if drawn:
                predicted = bayes_dc.predict_with_uncertainty(model, x, run.passes, sample_ids=ids)
                outputs[drawn].append(predicted.mean.cpu())
    return {kind: score(torch.cat(o), split.labels) for kind, o in outputs.items() if o}


def score(probs: Tensor, labels: Tensor) -> list[float]:
    """Error in per cent, NLL in nats, Brier, ECE."""
    error = 100 * (1 - float(accuracy(probs, labels)))
    return [error, *(float(metric(probs, labels)) for metric in (nll, brier, ece))]
