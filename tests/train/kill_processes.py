"""Train in forked processes that are killed at random instants, then to the end.

    python kill_processes.py FOLDER KILLS SEED      kill so often, end two epochs later
    python kill_processes.py FOLDER 0 EPOCHS        train straight for so many epochs

The run is started again and again with resume. After every kill the folder must hold a checkpoint
that loads, or none. Prints the kills, those that came while a checkpoint was being written, and the
epochs.
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

ENDLESS = 100_000


def run_in(folder, epochs):
    return Run(folder, samples=23, p=0.5, hidden=(8,), epochs=epochs, batch_size=8)


def start(folder, epochs):
    """Train in a process of its own."""
    pid = os.fork()
    if pid == 0:
        run_in(folder, epochs).fit(resume=True)
        os._exit(0)
    return pid


def check(folder):
    """What is there can be loaded; return the epoch, and whether a half-written folder is there."""
    run, epoch = run_in(folder, ENDLESS), 0
    if run.folder.has_checkpoint():
        meta, _ = load_checkpoint(run.folder.last)
        load_train_state(run.folder.last)
        epoch = meta.epoch
    names = {p.name for p in run.folder.path.iterdir()} if run.folder.path.exists() else set()
    return epoch, bool(names - {"last", "best", "metrics.jsonl", "config.yaml"})


if __name__ == "__main__":
    folder, kills, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    choose = random.Random(number)
    torch.set_num_threads(1)
    run_in(folder.with_name("warm"), 1).fit()  # the forks find their kernels compiled
    epoch = writing = 0
    for _ in range(kills):
        pid = start(folder, ENDLESS)
        time.sleep(choose.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status), status
        epoch, half = check(folder)
        writing += half
    epochs = epoch + 2 if kills else number
    status = os.waitpid(start(folder, epochs), 0)[1]
    assert status == 0, status
    print(kills, writing, epochs)
