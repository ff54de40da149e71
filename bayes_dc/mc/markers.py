"""Operators that stand for places that draw masks in an exported graph; see ``trace_mode.py``."""

from typing import NoReturn

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("bayes_dc", "FRAGMENT")
_LIBRARY.define("planned_linear(Tensor x, Tensor w, Tensor? bias, int site) -> Tensor")
_LIBRARY.define(
    "planned_conv2d(Tensor x, Tensor w, Tensor? bias, int[] shape, bool last, int site) -> Tensor"
)
_LIBRARY.define("planned_dropout(Tensor x, int site) -> Tensor")
_NOT_RUN = "{name} stands for a layer in a graph to be planned; it computes nothing."


def _linear(x: Tensor, w: Tensor, bias: Tensor | None, site: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]))


def _conv2d(
    x: Tensor, w: Tensor, bias: Tensor | None, shape: list[int], last: bool, site: int
) -> Tensor:
    order = torch.channels_last if last else torch.contiguous_format
    out = x.new_empty((x.shape[0], *shape))
    return torch.empty_like(out, memory_format=order)


def _dropout(x: Tensor, site: int) -> Tensor:
    return torch.empty_like(x)


def _refuse(name: str) -> None:
    def run(*args: object) -> NoReturn:
        raise RuntimeError(_NOT_RUN.format(name=name))

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")


for _name, _fake in (
    ("planned_linear", _linear),
    ("planned_conv2d", _conv2d),
    ("planned_dropout", _dropout),
):
    torch.library.register_fake(f"bayes_dc::{_name}", _fake, lib=_LIBRARY)
    _refuse(_name)

planned_linear = torch.ops.bayes_dc.planned_linear.default
planned_conv2d = torch.ops.bayes_dc.planned_conv2d.default
planned_dropout = torch.ops.bayes_dc.planned_dropout.default
