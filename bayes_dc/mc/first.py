"""Whether masks are keyed by inputs where another dimension of a tensor has as many entries."""

import warnings

import torch
from torch import Tensor, nn

from bayes_dc.mc import fold_errors as errors
from bayes_dc.mc.dropout import Dropout
from bayes_dc.mc.fold import FoldedPasses
from bayes_dc.nn.dropout import DropoutRowsError


def check_first_dimension(
    model: nn.Module, x: Tensor, ids: Tensor, calls: Dropout, rows: int
) -> None:
    """Run one pass of more inputs: the rows of every layer with masks must become more too.

    Where the model does not run with more inputs, a warning says that nothing could be told.

    Args:
        model: The model, with the keys of the run attached.
        x: Its input ``[B, …]``.
        ids: int64 ``[B]``.
        calls: Draws the masks of dropout functions.
        rows: Entries of the first dimension that may be no inputs.

    Raises:
        ValueError: If a layer gets other rows than the inputs.
    """
    more = 2 if len(x) + 1 == rows else 1
    batch = len(x) + more
    padded = torch.cat([x, x[-1:].expand(more, *x.shape[1:])])
    first = torch.zeros(1, dtype=torch.int64, device=x.device)
    calls.keys.set(pass_ids=first, sample_ids=torch.cat([ids, ids[-1:].expand(more)]))
    calls.start()
    mode = FoldedPasses(batch, 1, dropout=calls, cleared=frozenset({batch}))
    marked = mode.start(padded)
    try:
        with mode:
            model(marked)
    except (DropoutRowsError, errors.RowsDoNotFit):
        raise ValueError(errors.MOVED.format(rows=rows, more=batch)) from None
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        kind = type(error).__name__
        message = errors.MAYBE_MOVED.format(rows=rows, more=batch, error=kind)
        warnings.warn(message, UserWarning, stacklevel=2)
