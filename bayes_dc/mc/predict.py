"""``predict_with_uncertainty``: T stochastic passes of a model, and what they say."""

import math
import time
import warnings

import torch
from torch import Tensor, nn

from bayes_dc.mc.arguments import (
    check_arguments,
    check_count,
    ids_of_rows,
    largest_magnitude,
    nothing_drawn,
    warn_not_finite,
)
from bayes_dc.mc.dropout import Dropout
from bayes_dc.mc.first import check_first_dimension
from bayes_dc.mc.fold import FoldedPasses
from bayes_dc.mc.fold_errors import FirstDimensionMoved, PassesDoNotFit, RowsDoNotFit
from bayes_dc.mc.guards import evaluation_mode, lock_of
from bayes_dc.mc.prediction import Prediction
from bayes_dc.mc.record import Record
from bayes_dc.mc.statistics import PassStatistics, check_probabilities
from bayes_dc.nn import MaskKeys
from bayes_dc.nn.dropout import DropoutRowsError
from bayes_dc.types import Link

ROWS_PER_FORWARD = 1 << 15
"""Rows of one folded forward where ``chunk`` is not given."""
ROWS_PER_CUDA_FORWARD = 1 << 17
"""The same on a GPU, where a forward costs about a millisecond of the host whatever its rows."""
ELEMENTS_PER_LAYER = 1 << 27
"""Elements of the largest tensor of folded rows in such a forward, tokens and pixels included."""

_OUTPUT = """\
The model must return one floating point tensor [rows, classes] with a row for each input; for
{rows} rows ({passes} passes × {batch} inputs) it returned {got}. Wrap a model that returns more in
a module that picks the class scores; if the model mixes or counts rows by hand, pass chunk=1.
"""
_ZERO_VARIANCE = (
    "All {T} passes gave the same probabilities for every input, so the uncertainty is 0 without "
    "meaning. {cause}{kind} layers: {names}."
)
_ZERO_HEAD = (
    "This is so where the weights of the last layer are all zero, as in a freshly initialised head "
    "of a torchvision VisionTransformer, or where a later step forgets its input. "
)
_SILENT = (
    "Dropout layers {names} were not called in the forward, so they add nothing to the uncertainty "
    "(fused attention reads p past the layer)."
)
_ONE_CLASS = (
    "The model returns one number for each input, and the softmax of one number is 1 whatever it "
    "is. For the logit z of a yes-or-no model return the two logits [0, z]; for its probability p "
    "return [1 − p, p] and pass link='identity'. "
)
_NOTE = """\
(raised while {passes} passes were folded into one forward of {rows} rows; if it does not happen
with model.eval()(x), the model fixes its batch size by hand: pass chunk=1)"""


def predict_with_uncertainty(
    model: nn.Module,
    x: Tensor,
    T: int = 100,
    *,
    seed: int = 0,
    sample_ids: Tensor | None = None,
    chunk: int | None = None,
    return_samples: bool = False,
    link: Link = "softmax",
    dropout: bool = True,
) -> Prediction:
    """Predict with T Monte Carlo passes, a weight mask of its own for every input and pass.

    With p_t the class probabilities of pass t: mean p̄ = 1/T Σ p_t, entropy H(p̄), expected entropy
    1/T Σ H(p_t), mutual information their difference.

    What draws masks: DropConnect layers and dropout with p > 0, whatever mode the model is in, also
    after ``model.eval()``. Dropout is ``nn.Dropout``, its 1d, 2d, 3d and alpha forms, and calls of
    ``F.dropout`` and its kin (their ``training`` is not looked at), each with masks keyed by sample
    and pass; and dropout that torch draws itself, in ``nn.MultiheadAttention``,
    ``F.scaled_dot_product_attention`` and layers of ``nn.LSTM``, ``GRU`` and ``RNN``: seeded by the
    first pass of a forward, which depends on batch and chunk and is said in a warning. Stochastic
    depth is off, and so is what a forward guards with ``self.training`` itself (``if
    self.training``, ``dropout_p=self.p if self.training else 0``): it sees evaluation mode. What
    was active is in ``Prediction.dropout``.

    Everything else runs in evaluation mode (BatchNorm uses its running statistics). Passes are
    folded into the rows of a forward; what comes before the first mask runs once on B rows (on all
    rows in a model that takes the number of rows from its input before the first mask and uses it
    after). Modes, buffers and ``x`` are afterwards as before, also after an exception, and so are
    torch's generators, from which no mask is drawn. Other functions of torch that draw
    (``torch.randn_like``, ``F.gumbel_softmax``) are seeded like dropout that torch draws, with a
    draw for every pass and a warning; what draws out of sight (TorchScript, NumPy, a generator of
    the model) is left as it is. Compiled modules run uncompiled. Calls from several threads on one
    model run one after another.

    Args:
        model: Classifier with at least one DropConnect or dropout layer, which treats the rows of
            its input independently and returns ``[rows, C]``.
        x: Inputs ``[B, …]`` on the model's device; B = 0 gives an empty prediction.
        T: Number of passes, 1 … 2**32.
        seed: Unsigned 64-bit seed of the masks.
        sample_ids: int64 ``[B]``, identity of each input, e.g. its index in a data set; default
            0 … B − 1. Masks are keyed by it.
        chunk: Passes per forward. None: as many as keep a forward within 2**15 rows (2**17 on
            CUDA) and its tensors within 2**27 elements, fewer where CUDA memory runs out. Changes
            neither masks nor the order of any sum.
        return_samples: Also return the probabilities of every pass.
        link: ``"softmax"`` for a model that returns logits, ``"identity"`` for probabilities.
        dropout: Whether dropout draws masks. False turns it off: DropConnect layers only.

    Returns:
        ``Prediction``.

    Raises:
        ValueError: If an argument is out of range, nothing in the model draws masks, its output
            does not fit, or it has dropout in TorchScript.
        TypeError: If ``x`` is not a tensor.

    Determinism:
        Masks depend on (seed, layer number, sample id, pass) only (rng/SPEC.md; dropout modules are
        numbered in ``model.modules()`` order, function calls in the order of a forward), so an
        input's result does not depend on batch size, order or chunking as far as the model's other
        layers are row-wise exact (DropConnect layers are, on a GPU those with a mask for every row;
        tensor cores and vendor matrix products may round differently with the batch size). Repeats
        bit for bit, unless the model draws out of sight.

    Source:
        Gal & Ghahramani 2016, *Dropout as a Bayesian approximation*; Wan et al. 2013.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3))
        >>> _ = bayes_dc.convert(model, p=0.5)
        >>> predict_with_uncertainty(model, torch.ones(2, 4), T=8).mean.shape
        torch.Size([2, 3])
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    T = check_count("T", T)
    chunk = None if chunk is None else check_count("chunk", chunk)
    layers = check_arguments(model, x, link, dropout)
    B = x.shape[0]
    ids = ids_of_rows(sample_ids, x)
    started = time.perf_counter()
    keys = MaskKeys(seed)
    calls = Dropout(keys, active=dropout)
    rows = ROWS_PER_CUDA_FORWARD if x.is_cuda else ROWS_PER_FORWARD
    per_forward = min(T, chunk or max(1, rows // max(B, 1)))
    with lock_of(model):
        with evaluation_mode(model), keys.attached(model, dropout=dropout):
            statistics, samples = _run(
                model, x, ids, T, per_forward, calls, link, return_samples, chunk
            )
            summary = statistics.summary()
            flags = [largest_magnitude(x), summary.variance.any().double()]
            judged = link == "identity" and B > 0
            facts = torch.stack([*flags, *statistics.limits()] if judged else flags)
            active, silent = calls.active_layers(), calls.silent_layers()
        p_effective = {name: layer.p_effective for name, layer in layers.items()}
        told = facts.tolist()  # the one wait for the device
    elapsed = time.perf_counter() - started
    if not math.isfinite(told[0]):
        warn_not_finite(x)
    if judged:
        check_probabilities(*told[2:])
    unused = [_SILENT.format(names=", ".join(silent))] if silent else []
    for message in calls.warnings() + unused:
        warnings.warn(message, UserWarning, stacklevel=2)
    if T > 1 and B > 0 and not told[1]:
        drops = {name: layer.p for name, layer in layers.items()}
        cause = _ZERO_HEAD if any((drops or active).values()) else ""
        if link == "softmax" and summary.mean.shape[1] == 1:
            cause = _ONE_CLASS
        kind = "DropConnect" if drops else "Dropout"
        names = ", ".join(f"{n or 'the model'} (p = {p})" for n, p in (drops or active).items())
        message = _ZERO_VARIANCE.format(T=T, cause=cause, kind=kind, names=names)
        warnings.warn(message, UserWarning, stacklevel=2)
    return Prediction(
        *summary,
        samples=samples,
        T=T,
        seed=keys.seed,
        p_effective=p_effective,
        elapsed_seconds=elapsed,
        dropout=active,
    )


def _run(
    model: nn.Module,
    x: Tensor,
    ids: Tensor,
    T: int,
    per_forward: int,
    calls: Dropout,
    link: Link,
    return_samples: bool,
    chunk: int | None,
) -> tuple[PassStatistics, Tensor | None]:
    """All passes, ``per_forward`` at a time; halves that where CUDA memory runs out."""
    statistics: PassStatistics | None = None
    samples: Tensor | None = None
    record = Record(model) if per_forward < T else None
    failure: Exception | None = None
    first = 0
    cleared: frozenset[int] = frozenset()
    while first < T:
        passes = min(per_forward, T - first)
        limit = ELEMENTS_PER_LAYER if chunk is None else None
        repeat = failure is not None
        try:
            output = _forward(model, x, ids, first, passes, calls, record, limit, repeat, cleared)
        except FirstDimensionMoved as moved:
            check_first_dimension(model, x, ids, calls, moved.rows)
            cleared |= {moved.rows}
            if first == 0 and record is not None:
                record = Record(model)
            continue
        except (torch.OutOfMemoryError, PassesDoNotFit) as error:
            if chunk is not None or passes == 1:
                raise
            per_forward = error.fitting if isinstance(error, PassesDoNotFit) else passes // 2
            if first == 0:
                record = Record(model)  # that of a broken first forward is incomplete
            continue
        except (RuntimeError, RowsDoNotFit) as error:
            if first > 0 or passes == 1 or repeat:
                raise (failure or error) from None
            failure, record = error, None  # it may have counted its rows before the first mask
            continue
        if statistics is None:
            statistics = PassStatistics(T, x.shape[0], output.shape[2], x.device, link)
            if return_samples:
                samples = output.new_empty((T, *output.shape[1:]), dtype=torch.float64)
        statistics.update(output, None if samples is None else samples[first : first + passes])
        if link == "identity" and x.shape[0] and not x.is_cuda:  # there no wait is needed to know
            check_probabilities(*statistics.limits().tolist())
        first += passes
    assert statistics is not None
    return statistics, samples


def _forward(
    model: nn.Module,
    x: Tensor,
    ids: Tensor,
    first: int,
    passes: int,
    calls: Dropout,
    record: Record | None,
    max_elements: int | None,
    repeat: bool,
    cleared: frozenset[int],
) -> Tensor:
    """What the model returns for passes first … first + passes − 1, as [passes, B, C]."""
    B = x.shape[0]
    rows = passes * B
    pass_ids = torch.arange(first, first + passes, dtype=torch.int64, device=x.device)
    calls.keys.set(pass_ids=pass_ids, sample_ids=ids)
    calls.start()
    mode = FoldedPasses(B, passes, record, max_elements, calls, repeat=repeat, cleared=cleared)
    marked = mode.start(x)
    try:
        with mode:
            output = model(marked)
    except DropoutRowsError as error:
        raise mode.row_error(error.rows, f"dropout layer {error.name!r}", mask=True) from None
    except Exception as error:
        has_remedy = isinstance(error, RowsDoNotFit) or "chunk=1" in str(error)
        if passes > 1 and not has_remedy:
            error.add_note(_NOTE.format(passes=passes, rows=rows))
        raise
    if isinstance(output, Tensor) and not mode.is_folded(output):
        raise ValueError(nothing_drawn(model, calls.active))
    shape = list(output.shape) if isinstance(output, Tensor) else []
    known = isinstance(output, Tensor) and output.is_floating_point()
    if not known or len(shape) != 2 or shape[0] != rows or shape[1] == 0:
        got = f"{shape} {output.dtype}" if isinstance(output, Tensor) else type(output).__name__
        raise RowsDoNotFit(_OUTPUT.format(rows=rows, passes=passes, batch=B, got=got))
    return output.reshape(passes, B, shape[1])
