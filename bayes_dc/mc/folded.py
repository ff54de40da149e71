"""The folded path: T passes in forwards of the model itself, as many at a time as fit."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bayes_dc.mc.arguments import nothing_drawn
from bayes_dc.mc.dropout import Dropout
from bayes_dc.mc.first import check_first_dimension
from bayes_dc.mc.fold import FoldedPasses
from bayes_dc.mc.fold_errors import FirstDimensionMoved, PassesDoNotFit, RowsDoNotFit
from bayes_dc.mc.guards import evaluation_mode
from bayes_dc.mc.passes import Passes
from bayes_dc.mc.record import Record
from bayes_dc.mc.statistics import PassStatistics, check_probabilities
from bayes_dc.mc.until import FIRST_LOOK, Until
from bayes_dc.nn.dropout import DropoutRowsError
from bayes_dc.types import Link

_OUTPUT = """\
The model must return one floating point tensor [rows, classes] with a row for each input; for
{rows} rows ({passes} passes × {batch} inputs) it returned {got}. Wrap a model that returns more in
a module that picks the class scores; if the model mixes or counts rows by hand, pass chunk=1.
"""
_NOTE = """\
(raised while {passes} passes were folded into one forward of {rows} rows; if it does not happen
with model.eval()(x), the model fixes its batch size by hand: pass chunk=1)"""


class Job(NamedTuple):
    """What is to be run.

    Attributes:
        model: The model.
        x: Inputs ``[B, …]``.
        ids: int64 ``[B]``.
        T: Passes; the most of them where ``until`` is given.
        calls: Draws the masks of dropout functions.
        link: What turns outputs into probabilities.
        return_samples: Whether the probabilities of all passes are kept.
        fixed: Whether the number of passes in a forward was given, so that nothing may change it.
        max_elements: Largest tensor of folded rows, if it was not given.
        until: Says when enough passes have run, or None.
    """

    model: nn.Module
    x: Tensor
    ids: Tensor
    T: int
    calls: Dropout
    link: Link
    return_samples: bool
    fixed: bool
    max_elements: int
    until: Until | None = None


def passes_folded(job: Job, per_forward: int, why: str) -> Passes:
    """All passes, with the model in evaluation mode and the keys of the job attached to it.

    Args:
        job: What is to be run.
        per_forward: Passes of one forward.
        why: Why they are folded, for ``Prediction.engine``.

    Returns:
        What they gave.
    """
    model, calls = job.model, job.calls
    with evaluation_mode(model), calls.keys.attached(model, dropout=calls.active):
        statistics, samples = run_folded(job, per_forward)
        return Passes(
            summary=statistics.summary(),
            samples=samples,
            limits=statistics.limits() if job.link == "identity" else None,
            T=statistics.passes,
            dropout=calls.active_layers(),
            silent=calls.silent_layers(),
            said=calls.warnings(),
            engine=why,
        )


def run_folded(job: Job, per_forward: int) -> tuple[PassStatistics, Tensor | None]:
    """All passes, ``per_forward`` at a time; fewer where CUDA memory runs out.

    Args:
        job: What is to be run.
        per_forward: Passes of one forward.

    Returns:
        Statistics of the passes that ran, and their samples ``[T, B, C]`` if they are to be kept.

    Raises:
        OutOfMemoryError: If not even one pass fits, or ``job.fixed``.
        PassesDoNotFit: As ``OutOfMemoryError``, of the limit of elements.
        Exception: What the model raises, and what folding refuses.
    """
    x, T, calls, until = job.x, job.T, job.calls, job.until
    statistics: PassStatistics | None = None
    samples: Tensor | None = None
    stop = T if until is None else FIRST_LOOK
    record = Record(job.model) if per_forward < T or stop < T else None
    failure: Exception | None = None
    first = 0
    cleared: frozenset[int] = frozenset()
    while first < stop:
        passes = min(per_forward, stop - first)
        repeat = failure is not None
        try:
            output = _forward(job, first, passes, record, repeat, cleared)
        except FirstDimensionMoved as moved:
            check_first_dimension(job.model, x, job.ids, calls, moved.rows)
            cleared |= {moved.rows}
            if first == 0 and record is not None:
                record = Record(job.model)
            continue
        except (torch.OutOfMemoryError, PassesDoNotFit) as error:
            if job.fixed or passes == 1:
                raise
            per_forward = error.fitting if isinstance(error, PassesDoNotFit) else passes // 2
            if first == 0:
                record = Record(job.model)  # that of a broken first forward is incomplete
            continue
        except (RuntimeError, RowsDoNotFit) as error:
            if first > 0 or passes == 1 or repeat:
                raise (failure or error) from None
            failure, record = error, None  # it may have counted its rows before the first mask
            continue
        if statistics is None:
            statistics = PassStatistics(T, x.shape[0], output.shape[2], x.device, job.link)
            if job.return_samples:
                samples = output.new_empty((stop, *output.shape[1:]), dtype=torch.float64)
        statistics.update(output, None if samples is None else samples[first : first + passes])
        if job.link == "identity" and x.shape[0] and not x.is_cuda:  # to know takes no wait there
            check_probabilities(*statistics.limits().tolist())
        first += passes
        if until is not None and first == stop:
            stop = until.next_look(statistics)
            if samples is not None and stop > first:
                more = samples.new_empty((stop - first, *samples.shape[1:]))
                samples = torch.cat([samples, more])
    assert statistics is not None
    return statistics, samples


def _forward(
    job: Job, first: int, passes: int, record: Record | None, repeat: bool, cleared: frozenset[int]
) -> Tensor:
    """What the model returns for passes first … first + passes − 1, as [passes, B, C]."""
    x, calls = job.x, job.calls
    B = x.shape[0]
    rows = passes * B
    pass_ids = torch.arange(first, first + passes, dtype=torch.int64, device=x.device)
    calls.keys.set(pass_ids=pass_ids, sample_ids=job.ids)
    calls.start()
    limit = None if job.fixed else job.max_elements
    mode = FoldedPasses(B, passes, record, limit, calls, repeat=repeat, cleared=cleared)
    marked = mode.start(x)
    try:
        with mode:
            output = job.model(marked)
    except DropoutRowsError as error:
        raise mode.row_error(error.rows, f"dropout layer {error.name!r}", mask=True) from None
    except Exception as error:
        has_remedy = isinstance(error, RowsDoNotFit) or "chunk=1" in str(error)
        if passes > 1 and not has_remedy:
            error.add_note(_NOTE.format(passes=passes, rows=rows))
        raise
    if isinstance(output, Tensor) and not mode.is_folded(output):
        raise ValueError(nothing_drawn(job.model, calls.active))
    shape = list(output.shape) if isinstance(output, Tensor) else []
    known = isinstance(output, Tensor) and output.is_floating_point()
    if not known or len(shape) != 2 or shape[0] != rows or shape[1] == 0:
        got = f"{shape} {output.dtype}" if isinstance(output, Tensor) else type(output).__name__
        raise RowsDoNotFit(_OUTPUT.format(rows=rows, passes=passes, batch=B, got=got))
    return output.reshape(passes, B, shape[1])
