"""Train in forked processes that are killed at random instants, until the run is done.

    python kill_processes.py FOLDER KILLS SEED

The run is started again and again with resume. After every kill the folder must hold a checkpoint
that loads, or none. Prints the kills, and those that came while a checkpoint was being written.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from conftest import Run

from bayes_dc.train import load_checkpoint, load_train_state

EPOCHS = 150


def run_in(folder, epochs=EPOCHS):
    return Run(folder, samples=23, p=0.5, hidden=(8,), epochs=epochs, batch_size=8)


def train(folder):
    run_in(folder).fit(resume=True)
    os._exit(0)


def check(run):
    """What is there can be loaded; return whether a half-written folder lies beside it."""
    if run.folder.has_checkpoint():
        meta, _ = load_checkpoint(run.folder.last)
        assert meta.epoch >= 1
        load_train_state(run.folder.last)
    names = {p.name for p in run.folder.path.iterdir()} if run.folder.path.exists() else set()
    return bool(names - {"last", "best", "metrics.jsonl", "config.yaml"})


if __name__ == "__main__":
    folder, wanted, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    choose = random.Random(seed)
    torch.set_num_threads(1)
    run_in(folder.with_name("warm"), epochs=1).fit()  # the forks find their kernels compiled
    killed = writing = 0
    while True:
        pid = os.fork()
        if pid == 0:
            train(folder)
        if killed < wanted:
            time.sleep(choose.uniform(0.0, 0.12))
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            killed += 1
            writing += check(run_in(folder))
            continue
        assert status == 0, status
        break
    print(killed, writing)
