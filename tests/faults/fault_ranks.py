"""Two ranks that do what users of other tools have met faults with; forks of one process.

    python fault_ranks.py FOLDER

Tasks run in FOLDER/0, those that draw again in FOLDER/1. What rank r found is in <task>-<r>.pt.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import rank_processes
import torch
from conftest import UNIT, Run
from torch import nn

from bayes_dc.datasets import ArraySplit
from bayes_dc.train import evaluate, joined_ranks, load_checkpoint, save_checkpoint
from bayes_dc.train import folder as folder_module
from bayes_dc.train.step import TrainingStep

SETTINGS = {"epochs": 1, "batch_size": 8, "device": "cpu"}
SECONDS = 1.0


def first_step(run, ranks):
    """Train; return the first weights, and images and hidden activations of the first step."""
    real, found = TrainingStep.__call__, {}

    def step(self, x, y, number, *where):
        if number > 0:
            return real(self, x, y, number, *where)
        state = run.model.state_dict()
        found.update(weights={name: t.clone() for name, t in state.items()}, images=x.clone())
        layer = next(m for m in run.model.modules() if isinstance(m, nn.Linear))
        handle = layer.register_forward_hook(lambda *args: found.update(hidden=args[2].detach()))
        try:
            return real(self, x, y, number, *where)
        finally:
            handle.remove()

    TrainingStep.__call__ = step
    try:
        run.fit(ranks=ranks)
    finally:
        TrainingStep.__call__ = real
    return found


def masks(folder, ranks):
    """The same image sixteen times, eight in a batch, four for each rank."""
    run = Run(folder / "run-masks", samples=16, seed=40, hidden=(32,), **SETTINGS)
    train = run.data.train
    one = train.images[:1].expand(train.images.shape).contiguous()
    run.data = replace(run.data, train=replace(train, images=one))
    return first_step(run, ranks)


def images(folder, ranks):
    """Images that are moved at random."""
    settings = SETTINGS | {"augment": {"shift": 2, "flip": True}}
    return first_step(Run(folder / "run-images", samples=16, seed=40, **settings), ranks)


def scores(folder, ranks):
    """Five samples, of which the first is taken for another class."""
    pixels = torch.zeros(5, 1, 1, 3, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 0, 1])
    pixels[torch.arange(5), 0, 0, labels] = 255
    pixels[0] = torch.tensor([0, 255, 0])
    split = ArraySplit(pixels, labels, ("a", "b", "c"), UNIT, "five samples")
    return evaluate(nn.Flatten(), split, 2, torch.device("cpu"), ranks)._asdict()


def folders(folder, ranks):
    """Rank 1 saves where there is no folder yet."""
    place = folder / "not" / "there" / "yet"
    run = Run(place / "run", samples=16, **SETTINGS)
    if ranks.rank == 1:
        save_checkpoint(place / "by rank 1", run.model, run.meta)
    ranks.wait()
    epoch = load_checkpoint(place / "by rank 1")[0].epoch
    run.fit(ranks=ranks)
    return {"epoch": epoch, "trained": load_checkpoint(run.folder.last)[0].epoch}


def slow(folder, ranks):
    """Rank 0 takes long to write; rank 1 loads as soon as it is told that the run is done."""
    real = folder_module._write_durably

    def write(path, content):
        real(path, content[: len(content) // 2])
        time.sleep(SECONDS if path.name == "model.safetensors" else 0)
        real(path, content)

    folder_module._write_durably = write
    run = Run(folder / "run-slow", samples=16, validation=False, **SETTINGS)
    started = time.monotonic()
    run.fit(ranks=ranks)
    epoch = load_checkpoint(run.folder.last)[0].epoch
    return {"epoch": epoch, "seconds": time.monotonic() - started}


def every_task(folder, rank):
    with joined_ranks("cpu", 30) as ranks:
        for task in (masks, images, scores, folders, slow):
            torch.save(task(folder, ranks), folder / f"{task.__name__}-{rank}.pt")


def those_that_draw(folder, rank):
    with joined_ranks("cpu", 30) as ranks:
        for task in (masks, images):
            torch.save(task(folder, ranks), folder / f"{task.__name__}-{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm = {"hidden": (32,), **SETTINGS}
    Run(Path(sys.argv[1]) / "warm", samples=16, **warm).fit()  # the forks find kernels compiled
    for name, tasks in (("0", every_task), ("1", those_that_draw)):
        place, port = Path(sys.argv[1]) / name, rank_processes.free_port()
        place.mkdir()
        pids = [rank_processes.fork(tasks, place, rank, 2, port) for rank in range(2)]
        print([os.waitpid(pid, 0)[1] for pid in pids], flush=True)
