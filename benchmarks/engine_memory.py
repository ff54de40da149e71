"""How much memory a planned forward takes: ``python -m benchmarks.engine_memory``.

Nothing is computed: plans only, for the CPU and, also on a machine without one, for a GPU. Columns:
*tensors* is the sum of all buffers, each in memory of its own; *largest* the largest of them;
*bound* the most bytes in use at one step, below which no arrangement can go; *arena* what the
engine allocates; *eager* what the same passes hold at once without a plan, where every result has
memory of its own until its last reader. Bytes are at the capacity; parameters are not among them.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import bayes_dc
from bayes_dc.mc.lowering.context import Mode
from bayes_dc.mc.plan import Plan, build_plan
from bayes_dc.mc.plan_errors import PlanError
from bayes_dc.mc.plan_report import amount, table

TARGET = 1.05
"""Most that an arena may be over its lower bound."""

HEAD: tuple[str, ...] = (
    "network",
    "inputs",
    "passes",
    "device",
    "mode",
    "steps",
    "in place",
    "scratch",
)
HEAD += ("tensors", "largest", "bound", "arena", "eager", "arena / bound", "tensors / arena")


@dataclass(frozen=True)
class Case:
    """A network to plan: what makes it, the shape of an input, inputs and passes of a chunk."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    capacity: int
    passes: int


def vit() -> nn.Module:
    """ViT-B/16 of torchvision."""
    import torchvision

    return torchvision.models.vit_b_16(num_classes=1000)


models = bayes_dc.models
CASES = {
    "MLP 784-1024-1024-10": Case(lambda: models.mlp(784, 10, (1024, 1024)), (784,), 256, 100),
    "LeNet-5": Case(lambda: models.lenet5((1, 28, 28), 10), (1, 28, 28), 256, 100),
    "ResNet-18, 224²": Case(lambda: models.resnet18((3, 224, 224), 1000), (3, 224, 224), 4, 10),
    "VGG-16, 224²": Case(lambda: models.vgg16_bn((3, 224, 224), 1000), (3, 224, 224), 4, 10),
    "ViT-B/16, 224²": Case(vit, (3, 224, 224), 4, 10),
}


def plan_of(case: Case, device: str, mode: Mode) -> Plan:
    """The plan of a network whose linear layers and convolutions all draw masks."""
    model = case.make().requires_grad_(False)
    bayes_dc.convert(model, p=0.5)
    example = torch.empty(1, *case.shape)
    rows = case.capacity * case.passes
    return build_plan(
        model, example, case.passes, case.capacity, rows=rows, mode=mode, device=device
    )


def row(name: str, plan: Plan) -> tuple[str, ...]:
    """A line of the table."""
    scratch = sum(s.nbytes for s in plan.storages if s.kind == "scratch")
    return (
        name,
        str(plan.capacity),
        str(plan.passes),
        plan.device.type,
        plan.mode,
        str(len(plan.steps)),
        str(plan.in_place),
        amount(scratch),
        amount(plan.sum_bytes),
        amount(max(s.nbytes for s in plan.storages)),
        amount(plan.lower_bound),
        amount(plan.arena_bytes),
        amount(plan.eager_bytes),
        f"{plan.arena_bytes / plan.lower_bound:.3f}",
        f"{plan.sum_bytes / plan.arena_bytes:.1f}",
    )


def main() -> None:
    """Print the table; the exit status is 1 where an arena misses the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NETWORK")
    parser.add_argument("--devices", nargs="+", choices=["cpu", "cuda"], default=["cpu", "cuda"])
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = [HEAD]
    missing, above = [], []
    modes: tuple[Mode, ...] = ("strict", "workspace")
    for name in arguments.only:
        for device in arguments.devices:
            for mode in modes:
                try:
                    plan = plan_of(CASES[name], device, mode)
                except (PlanError, ImportError) as error:
                    missing.append(f"{name} on {device}, {mode}: {error}")
                    continue
                rows.append(row(name, plan))
                if plan.arena_bytes > TARGET * plan.lower_bound:
                    above.append(f"{name} on {device}, {mode}")
    print(table(rows))
    for line in missing:
        print(f"no plan: {line}")
    for line in above:
        print(f"above {TARGET} times the bound: {line}")
    if missing or above:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
