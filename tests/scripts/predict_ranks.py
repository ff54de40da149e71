"""Run scripts/mc_predict.py in forked ranks: torch is imported once.

python predict_ranks.py WORLD DEAD ARGUMENTS…     DEAD: a rank that is killed, or -
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import mc_predict
from rank_processes import fork, free_port

from bayes_dc.train import ranks as ranks_module


def predict(arguments, rank):
    arguments, dead = arguments
    if dead == str(rank):
        gather = ranks_module.Ranks.gather

        def dying(self, mine):
            os.kill(os.getpid(), signal.SIGKILL)
            return gather(self, mine)

        ranks_module.Ranks.gather = dying
    os._exit(mc_predict.main(arguments))


if __name__ == "__main__":
    world, dead, *arguments = sys.argv[1:]
    port = free_port()
    task = (arguments, dead)
    pids = [fork(predict, task, rank, int(world), port) for rank in range(int(world))]
    print([os.waitpid(pid, 0)[1] for pid in pids], flush=True)
