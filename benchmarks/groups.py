"""The groups of the benchmark: their shapes, their cases, and the gates before them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from benchmarks import (
    baselines,
    conv,
    engine,
    gates,
    gaussian,
    predict,
    row_masks,
    shared_masks,
    training,
)
from benchmarks.cases import Case

SHAPES = Path(__file__).with_name("shapes.yaml")
DEVICES = ("cpu", "cuda")

_BAD_ENTRY = (
    "{file}: {device}.{group}: {entry}: {cause}. Correct the entry; its keys are {known}, "
    "those without a default are {needed}."
)
_UNKNOWN = "{file}: {where} has the unknown key {got!r}. Rename it; known keys are {known}."
_NO_DEVICE = "{file} has no entries for {device}. Add the key {device}, or use --device {other}."


class Group(NamedTuple):
    """What an entry of shapes.yaml is, the cases of one, and what must hold before."""

    shape: type
    cases: Callable[[Any, str], Iterator[Case]]
    check: Callable[[str], None]


def exact_cases(name: str, device: str) -> list[tuple[str, int, float]]:
    """Dtype, rows for each mask and p of the integer gates of a group."""
    every_p = [("float32", 1, p) for p in (0.5, 0.25, 0.1)]
    half = ("bfloat16", "float16") if device == "cuda" else ()
    shared = ("float32", "tf32", *half) if device == "cuda" else ("float32",)
    return {
        "rows": every_p + [(dtype, 1, 0.5) for dtype in half],
        "small": every_p,
        "memory": every_p,
        "shared": [(dtype, 32, 0.5) for dtype in shared],
    }.get(name, [])


def check_exact(name: str, device: str) -> None:
    """Ours on integers."""
    for dtype, rows, p in exact_cases(name, device):
        gates.linear_is_exact(device, dtype, rows, p)


def check_rows(device: str) -> None:
    """Ours and the published style on integers, copies of W by their moments."""
    check_exact("rows", device)
    gates.moments_are_right(baselines.broadcast, device, row_masks.BROADCAST)
    if device == "cuda":
        gates.published_is_exact(device)


def check_shared(device: str) -> None:
    """Ours on integers, what draws with torch's or Triton's generator by its moments."""
    check_exact("shared", device)
    drawn = {
        shared_masks.EXPANDED: baselines.expanded,
        shared_masks.LOOP: baselines.loop(baselines.one_mask),
    }
    if device == "cuda":
        from benchmarks import expand

        drawn[shared_masks.BY_KERNEL] = lambda x, w: expand.forward(x, w, gates.SEED)
    for name, function in drawn.items():
        gates.moments_are_right(gates.groups_as_rows(function), device, name)


def check_gaussian(device: str) -> None:
    """Ours and the eager form by their moments."""
    gates.moments_are_right(baselines.two_products, device, gaussian.EAGER)
    ours = gaussian.our_layer(torch.empty(gates.DRAWS, 0, device=device))
    gates.moments_are_right(ours, device, "bayes_dc, sampler gaussian")


GROUPS = {
    "rows": Group(row_masks.Shape, row_masks.rows, check_rows),
    "small": Group(row_masks.Shape, row_masks.small, partial(check_exact, "small")),
    "shared": Group(shared_masks.Shape, shared_masks.shared, check_shared),
    "gaussian": Group(row_masks.Shape, gaussian.gaussian, check_gaussian),
    "predict": Group(predict.Shape, predict.predict, predict.check),
    "memory": Group(row_masks.Shape, row_masks.memory, partial(check_exact, "memory")),
    "conv": Group(conv.Shape, conv.conv, conv.check),
    "engine": Group(engine.Shape, engine.engine, engine.check),
    "train": Group(training.Shape, training.train, training.check),
}

Shapes = dict[str, list[Any]]


def load(path: Path, device: str, *, quick: bool = False) -> Shapes:
    """The entries of a device by group, as the shapes of their groups."""
    devices = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    _refuse_unknown(path, "the file", devices, DEVICES)
    if device not in devices:
        other = next(d for d in DEVICES if d != device)
        raise SystemExit(_NO_DEVICE.format(file=path.name, device=device, other=other))
    entries = devices[device] or {}
    _refuse_unknown(path, device, entries, tuple(GROUPS))
    found: Shapes = {}
    for name, group in GROUPS.items():
        shapes = []
        for entry in entries.get(name) or []:
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
            try:
                shapes.append(group.shape(**values))
            except TypeError as cause:
                raise SystemExit(_bad_entry(path, device, name, entry, cause)) from cause
        found[name] = [shape for shape in shapes if shape.quick or not quick]
    return found


def _refuse_unknown(path: Path, where: str, names: Iterable[str], known: tuple[str, ...]) -> None:
    """Refuse a misspelt device or group, which would be left out in silence."""
    for name in names:
        if name not in known:
            parts = {"where": where, "got": name, "known": ", ".join(known)}
            raise SystemExit(_UNKNOWN.format(file=path.name, **parts))


def _bad_entry(path: Path, device: str, group: str, entry: Any, cause: TypeError) -> str:
    """What is wrong with an entry, and what one may hold."""
    known = fields(GROUPS[group].shape)
    needed = [field.name for field in known if field.default is MISSING]
    return _BAD_ENTRY.format(
        file=path.name,
        device=device,
        group=group,
        entry=entry,
        cause=cause,
        known=", ".join(field.name for field in known),
        needed=", ".join(needed),
    )
