"""Start the ranks of a run as forks of one process: torch is imported once, not once a rank.

    python rank_processes.py FOLDER TASK WORLD…

Every rank of a world of W processes does TASK in FOLDER/W; what it raises is printed.
"""

import os
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from conftest import Run

from bayes_dc.train import TrainingError, joined_ranks
from bayes_dc.train.step import TrainingStep

OPTIONS = {"samples": 23, "p": 0.5, "dropout": 0.25, "hidden": (8,)}
SETTINGS = {"epochs": 2, "batch_size": 5, "device": "cpu", "augment": {"shift": 1, "flip": True}}


def train(folder, rank, *, resume=False, epochs=2):
    """23 samples in batches of 5: the last batch has 3, fewer than four ranks."""
    with joined_ranks("cpu", 30) as ranks:
        assert (ranks.rank, ranks.size) == (rank, int(os.environ["WORLD_SIZE"]))
        run = Run(folder, **OPTIONS, **(SETTINGS | {"epochs": epochs}))
        run.fit(ranks=ranks, resume=resume)
        torch.save(run.model.state_dict(), f"{folder}-rank{rank}.pt")


def begin(folder, rank):
    train(folder, rank, epochs=1)


def resume(folder, rank):
    train(folder, rank, resume=True)


def share(folder, rank):
    """Weights of rank 0 for all, also where channels are last in memory."""
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    model = model.to(memory_format=torch.channels_last)
    with joined_ranks("cpu", 30) as ranks:
        ranks.same_weights(model)
    torch.save(model.state_dict(), f"{folder}-rank{rank}.pt")


def die(folder, rank):
    """Rank 1 dies at its seventh step."""
    step = TrainingStep.__call__

    def mortal(self, x, y, number, *where):
        if number == 6 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, x, y, number, *where)

    TrainingStep.__call__ = mortal
    train(folder, rank)


def fork(task, folder, rank, world, port):
    pid = os.fork()
    if pid:
        return pid
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    code = 0
    try:
        task(folder, rank)
    except TrainingError as error:
        os.write(1, f"rank {rank}: {error}\n".encode())  # in one piece, unlike print
        code = 2
    except BaseException as error:
        os.write(1, f"rank {rank}: {type(error).__name__} {error}\n".encode())
        code = 3
    os._exit(code)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


if __name__ == "__main__":
    place, name, *worlds = sys.argv[1:]
    for world in map(int, worlds):
        port = free_port()
        pids = [
            fork(globals()[name], Path(place) / str(world), rank, world, port)
            for rank in range(world)
        ]
        print(world, [os.waitpid(pid, 0)[1] for pid in pids], flush=True)
