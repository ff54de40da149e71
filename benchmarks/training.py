"""A step of training of a whole network, plain and converted."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

import bayes_dc
from benchmarks import conv, harness
from benchmarks.cases import OURS, Case, Sizes

PLAIN = "plain"
CONVOLUTIONS, RECIPE = f"{OURS}, every convolution", f"{OURS}, as in its recipe"
CONFIGS = Path(__file__).parents[1] / "configs"
P = 0.5


@dataclass(frozen=True)
class Shape:
    """An entry of ``train`` in shapes.yaml: B images of ``size`` × ``size`` and ``classes``.

    bfloat16 and float16 mean autocast. ``recipe``: file of ``configs/`` whose layers and drop
    probability are timed too.
    """

    B: int
    model: str = "resnet18"
    recipe: str = ""
    size: int = 32
    classes: int = 10
    dtypes: tuple[str, ...] = ("float32",)
    quick: bool = False


def train(shape: Shape, device: str) -> Iterator[Case]:
    """Forward, backward and SGD, channels last; masks are drawn anew in every step."""
    torch.manual_seed(0)
    plain = getattr(bayes_dc.models, shape.model)((3, shape.size, shape.size), shape.classes)
    plain = plain.to(device, memory_format=torch.channels_last)
    x = torch.randn(shape.B, 3, shape.size, shape.size, device=device)
    x = x.to(memory_format=torch.channels_last)
    labels = torch.randint(shape.classes, (shape.B,), device=device)
    weights = multiply_adds(plain, x[:1])
    for name, options in kinds(shape).items():
        for dtype in shape.dtypes:
            model = deepcopy(plain)
            if options is not None:
                bayes_dc.convert(model, **options)
            call = step(model, x, labels, dtype)
            p = 0.0 if options is None else options["p"]
            sizes = Sizes(shape.B, 1, weights, 1)
            case = Case("train", "step", name, sizes, dtype, call, 3 * shape.B * weights, PLAIN, p)
            yield case
            if x.is_cuda:  # without the host, as scripts/train.py runs
                yield replace(case, timing="graph")


def kinds(shape: Shape) -> dict[str, dict[str, Any] | None]:
    """Arguments of ``convert`` by name; None: left plain."""
    found: dict[str, dict[str, Any] | None] = {
        PLAIN: None,
        CONVOLUTIONS: {"p": P, "select": nn.Conv2d},
    }
    if shape.recipe:
        model = yaml.safe_load((CONFIGS / shape.recipe).read_text(encoding="utf-8"))["model"]
        found[RECIPE] = {"p": model["p"], "select": model.get("select")}
    return found


def step(model: nn.Module, x: Tensor, labels: Tensor, dtype: str) -> Callable[[], object]:
    """One step of SGD on one batch; the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    model.train()

    def precision() -> AbstractContextManager[object]:
        if dtype in ("float32", "tf32"):
            return nullcontext()
        return torch.autocast(x.device.type, dtype=getattr(torch, dtype))

    def once() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with precision():
            loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lambda: conv.searched(once)


def multiply_adds(model: nn.Module, x: Tensor) -> int:
    """Of the linear and convolutional layers in one forward of x."""
    counts: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer.weight, Tensor)
        counts.append(output.numel() * layer.weight[0].numel())

    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        model.eval()(x)
    for hook in hooks:
        hook.remove()
    return sum(counts)


def check(device: str) -> None:
    """The convolution's gates, and the loss of a network whose layers drop nothing."""
    conv.check(device)
    torch.manual_seed(0)
    plain = bayes_dc.models.resnet20((3, 8, 8), 10).to(device)
    x, labels = torch.randn(8, 3, 8, 8, device=device), torch.arange(8, device=device)
    converted = deepcopy(plain)
    bayes_dc.convert(converted, p=0.0)
    losses = [F.cross_entropy(model.train()(x), labels).item() for model in (plain, converted)]
    harness.gate(abs(losses[0] - losses[1]), 0.0, "a converted network at p = 0: loss")
