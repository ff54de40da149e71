"""Measure how prediction gets faster with more GPUs, or processes on a CPU.

    python scripts/scaling.py                                # 1 … all GPUs of this machine
    python scripts/scaling.py --device cpu --ranks 1 2 --model lenet5 --inputs 256 --passes 20

The same inputs are predicted by every number of ranks, started with torchrun; a rank takes its part
of them. Passes/s counts passes of single inputs: T times the inputs, by the time of the slowest
rank, the best of --repeats. The network is untrained, which costs the same.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

import bayes_dc
from bayes_dc.command_line import positive_integer
from bayes_dc.train import Ranks, TrainingError, joined_ranks, resolve_device

SHAPES = {"mlp": (1, 28, 28), "lenet5": (1, 28, 28), "cnn": (1, 28, 28)}
TIMEOUT_SECONDS = 600


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure prediction by several ranks.")
    add = parser.add_argument
    models = ("mlp", "lenet5", "cnn", "resnet18", "resnet20", "vgg16_bn")
    add("--model", choices=models, default="resnet18")
    add("--p", type=float, default=0.5, help="drop probability of every layer")
    add("--inputs", type=positive_integer, default=1024, metavar="N")
    add("--passes", type=positive_integer, default=100, metavar="T")
    add("--batch-size", type=positive_integer, default=128, metavar="B", help="inputs of a call")
    add("--repeats", type=positive_integer, default=3)
    add(
        "--ranks",
        type=positive_integer,
        nargs="+",
        help="numbers of ranks; default: 1 … all GPUs, CPU: 1 2",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def measure(arguments: argparse.Namespace, ranks: Ranks) -> float:
    """Seconds of the slowest rank, the best of some repeats."""
    device = resolve_device(arguments.device)
    torch.manual_seed(0)
    shape = SHAPES.get(arguments.model, (3, 32, 32))
    model = getattr(bayes_dc.models, arguments.model)(shape, 10)
    bayes_dc.convert(model, p=arguments.p)
    model.eval().to(device)
    first, last = ranks.part(0, arguments.inputs)
    x = torch.randn(arguments.inputs, *shape)[first:last].to(device)
    ids = torch.arange(first, last, device=device)
    size = arguments.batch_size

    def once() -> None:
        for batch, batch_ids in zip(x.split(size), ids.split(size), strict=True):
            if len(batch):
                bayes_dc.predict_with_uncertainty(
                    model, batch, arguments.passes, sample_ids=batch_ids
                )
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    once()
    best = float("inf")
    for _ in range(arguments.repeats):
        ranks.wait()
        started = time.perf_counter()
        once()
        best = min(best, max(ranks.gather(time.perf_counter() - started)))
    return best


def start(arguments: argparse.Namespace, count: int, argv: Sequence[str]) -> float:
    """Seconds with ``count`` ranks, each a process of torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", str(count), __file__, *argv, "--worker"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise TrainingError(f"{count} ranks failed:\n{done.stderr.strip()[-2000:]}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return float(json.loads(line)["seconds"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    given = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(given)
    try:
        if arguments.worker:
            with joined_ranks(arguments.device, TIMEOUT_SECONDS) as ranks:
                seconds = measure(arguments, ranks)
                if ranks.is_main:
                    print(json.dumps({"seconds": seconds}), flush=True)
            return 0
        gpus = torch.cuda.device_count() if arguments.device != "cpu" else 0
        counts = arguments.ranks or (list(range(1, gpus + 1)) if gpus else [1, 2])
        work = arguments.inputs * arguments.passes
        print(f"{arguments.model}, {arguments.inputs} inputs, T = {arguments.passes}")
        print("ranks   passes/s   speed-up   efficiency")
        alone: tuple[int, float] | None = None
        for count in counts:
            seconds = start(arguments, count, given)
            alone = alone or (count, seconds)
            gain = alone[1] / seconds * alone[0]
            print(f"{count:5}   {work / seconds:8.4g}   {gain:8.2f}   {gain / count:10.0%}")
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
