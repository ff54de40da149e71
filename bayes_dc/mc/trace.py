"""A forward as a graph: exported at two numbers of rows, which tell the sizes that follow them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from bayes_dc.mc import plan_errors
from bayes_dc.mc.dropout import refuse_scripted
from bayes_dc.mc.guards import evaluation_mode, refuse_batch_statistics
from bayes_dc.mc.plan_types import Site
from bayes_dc.mc.trace_merge import ROWS, STRUCTURE, Merger
from bayes_dc.mc.trace_mode import TraceMode, planned_keys
from bayes_dc.mc.trace_types import Trace
from bayes_dc.nn.dropout import DropoutRowsError

_NOT_EXPORTED = "torch.export cannot trace it ({kind}: {error})"
_AUTOCAST = (
    "autocast is on, which would be frozen into the plan",
    "Build it outside torch.autocast, with the model and its input in the dtype to compute in.",
)


def trace(model: nn.Module, example: Tensor, *, dropout: bool, channels_last: bool) -> Trace:
    """Trace one pass of a model, with marker operators where masks are drawn.

    Args:
        model: The model; its modes and buffers are afterwards as before.
        example: Input ``[B, …]`` whose sizes but the first, dtype, device and memory format are
            taken.
        dropout: Whether dropout draws.
        channels_last: Whether convolutions with masks shall write channels last.

    Returns:
        The trace.

    Raises:
        PlanError: If there is no plan for the model.
    """
    if torch.is_autocast_enabled(example.device.type):
        plan_errors.refuse("torch.autocast", "the model", "", *_AUTOCAST)
    refuse_batch_statistics(model)
    if dropout:
        refuse_scripted(model)
    with evaluation_mode(model):
        (one, sites), (two, others) = (
            _export(model, example, rows, dropout, channels_last) for rows in ROWS
        )
    if sites != others or len(one.graph.nodes) != len(two.graph.nodes):
        plan_errors.refuse("the forward", "the model", "", *STRUCTURE)
    return Merger(model, one, two, sites).trace()


class _Wrapper(nn.Module):
    """The model within a function mode."""

    def __init__(self, model: nn.Module, mode: TraceMode) -> None:
        super().__init__()
        self.model = model
        self.__dict__["mode"] = mode

    def forward(self, x: Tensor) -> Any:
        with self.__dict__["mode"]:
            return self.model(x.clone())  # which it may write into


@contextmanager
def _decomposed_attention() -> Iterator[None]:
    """Attention by operators, not by one that reads the weights of its layers."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


@contextmanager
def _one_tensor_float32_switch() -> Iterator[None]:
    """Export reads cuDNN's old switch, which has no answer where the new ones differ from it."""
    cudnn: Any = torch.backends.cudnn
    try:
        cudnn.allow_tf32  # noqa: B018
    except RuntimeError:
        was = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
        cudnn.allow_tf32 = was[0] == "tf32"
        try:
            yield
        finally:
            cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = was
    else:
        yield


def _export(
    model: nn.Module, example: Tensor, rows: int, dropout: bool, channels_last: bool
) -> tuple[ExportedProgram, list[Site]]:
    """One pass of ``rows`` rows, functional."""
    x = torch.empty((rows, *example.shape[1:]), dtype=example.dtype, device=example.device)
    if example.ndim == 4 and not example.is_contiguous():
        x = x.contiguous(memory_format=torch.channels_last)
    with planned_keys(model, rows, dropout=dropout) as keys:
        mode = TraceMode(keys, rows, dropout=dropout, channels_last=channels_last)
        wrapper = _Wrapper(model, mode).eval()
        try:
            with (
                _decomposed_attention(),
                _one_tensor_float32_switch(),
                warnings.catch_warnings(),
                torch.no_grad(),
            ):
                warnings.simplefilter("ignore")
                program = torch.export.export(wrapper, (x,), strict=False)
                program = program.run_decompositions({})
        except plan_errors.PlanError:
            raise
        except DropoutRowsError as error:
            plan_errors.refuse("dropout", error.name, "", str(error).rstrip("."))
        except Exception as error:  # what export may raise is not documented
            first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
            why = _NOT_EXPORTED.format(kind=type(error).__name__, error=first)
            plan_errors.refuse("the forward", "the model", "", why)
    return program, mode.sites
