"""``predict_with_uncertainty``: T stochastic passes of a model, and what they say."""

import math
import operator
import time
import warnings
from typing import Any, get_args

import torch
from torch import Tensor, nn

from bayes_dc.mc.fold import FoldedPasses, PassesDoNotFit
from bayes_dc.mc.guards import evaluation_mode, lock_of, refuse_batch_statistics
from bayes_dc.mc.prediction import Prediction
from bayes_dc.mc.statistics import PassStatistics, check_probabilities
from bayes_dc.nn import DropConnectModule, MaskKeys, dropconnect_layers
from bayes_dc.types import Link

ROWS_PER_FORWARD = 1 << 15
"""Rows of one folded forward where ``chunk`` is not given."""
ROWS_PER_CUDA_FORWARD = 1 << 17
"""The same on a GPU, where a forward costs about a millisecond of the host whatever its rows."""
ELEMENTS_PER_LAYER = 1 << 27
"""Elements of a DropConnect layer's input and of its output in such a forward, tokens included."""

_PASSES = "{name} must be an integer of at least 1; got {got!r}."
_MOST_PASSES = 1 << 32
_TOO_MANY = "T must be at most 2**32, the number of pass ids; got {got}."
_INPUT = "x must be a tensor with the inputs along its first dimension; got {got}."
_SAMPLE_IDS = """\
sample_ids must be an int64 tensor of shape [{rows}], one id per row of x {x_shape}; got {got}.
For rows 0…{last} of a data set pass torch.arange({rows}), or leave it out.
"""
_LINK = "link must be one of {allowed}; got {got!r}."
_NO_LAYER = """\
The model has no DropConnect layer, so every pass would be equal.
Convert it (bayes_dc.convert(model, p=0.5)) and train or fine-tune it, or build it with
bayes_dc.DropConnectLinear.
"""
_OUTPUT = """\
The model must return one floating point tensor [rows, classes] with a row for each input; for
{rows} rows ({passes} passes × {batch} inputs) it returned {got}. Wrap a model that returns more in
a module that picks the class scores; if the model mixes or counts rows by hand, pass chunk=1.
"""
_NOT_FOLDED = (
    "The model's output does not depend on any of its DropConnect layers ({names}): they are not "
    "called in its forward."
)
_ZERO_VARIANCE = (
    "All {T} passes gave the same probabilities for every input, so the uncertainty is 0 without "
    "meaning. {cause}DropConnect layers: {names}."
)
_ONE_CLASS = (
    "The model returns one number for each input, and the softmax of one number is 1 whatever it "
    "is. For the logit z of a yes-or-no model return the two logits [0, z]; for its probability p "
    "return [1 − p, p] and pass link='identity'. "
)
_NOT_FINITE = (
    "{count} of {batch} inputs hold NaN or infinite values (first row: {first}); their statistics "
    "are what the model makes of them."
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
) -> Prediction:
    """Predict with T Monte Carlo passes, a weight mask of its own for every input and pass.

    With p_t the class probabilities of pass t: mean p̄ = 1/T Σ p_t, entropy H(p̄), expected entropy
    1/T Σ H(p_t), mutual information their difference.

    The model runs in evaluation mode (BatchNorm uses its running statistics, ``nn.Dropout`` is
    off) with only its DropConnect layers drawing masks. Passes are folded into the rows of a
    forward; what comes before the first DropConnect layer runs once on B rows. Modes, buffers and
    ``x`` are afterwards as before, also after an exception, and no global generator is touched.
    Compiled modules run uncompiled. Calls from several threads on one model run one after another.

    Args:
        model: Classifier with at least one DropConnect layer, which treats the rows of its input
            independently and returns ``[rows, C]``.
        x: Inputs ``[B, …]`` on the model's device; B = 0 gives an empty prediction.
        T: Number of passes, 1 … 2**32.
        seed: Unsigned 64-bit seed of the masks.
        sample_ids: int64 ``[B]``, identity of each input, e.g. its index in a data set; default
            0 … B − 1. Masks are keyed by it.
        chunk: Passes per forward. None: as many as keep a forward within 2**15 rows (2**17 on
            CUDA) and each DropConnect layer's input and output within 2**27 elements, fewer where
            CUDA memory runs out. Changes neither masks nor the order of any sum.
        return_samples: Also return the probabilities of every pass.
        link: ``"softmax"`` for a model that returns logits, ``"identity"`` for probabilities.

    Returns:
        ``Prediction``.

    Raises:
        ValueError: If an argument is out of range, the model has no DropConnect layer, or its
            output does not fit.
        TypeError: If ``x`` is not a tensor.

    Determinism:
        Masks depend on (seed, layer number, sample id, pass) only, so an input's result does not
        depend on batch size, order or chunking as far as the model's other layers are row-wise
        exact (DropConnect layers are, on a GPU those with a mask for every row; tensor cores and
        vendor matrix products may round differently with the batch size). Repeats bit for bit.

    Source:
        Gal & Ghahramani 2016, *Dropout as a Bayesian approximation*; Wan et al. 2013.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3))
        >>> _ = bayes_dc.convert(model, p=0.5)
        >>> predict_with_uncertainty(model, torch.ones(2, 4), T=8).mean.shape
        torch.Size([2, 3])
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    T, chunk = _count("T", T), None if chunk is None else _count("chunk", chunk)
    if T > _MOST_PASSES:
        raise ValueError(_TOO_MANY.format(got=T))
    layers = _check_arguments(model, x, link)
    B = x.shape[0]
    ids = _sample_ids(sample_ids, x)
    started = time.perf_counter()
    keys = MaskKeys(seed)
    rows = ROWS_PER_CUDA_FORWARD if x.is_cuda else ROWS_PER_FORWARD
    per_forward = min(T, chunk or max(1, rows // max(B, 1)))
    with lock_of(model):
        with evaluation_mode(model), keys.attached(model):
            statistics, samples = _run(
                model, x, ids, T, per_forward, keys, link, return_samples, chunk
            )
            summary = statistics.summary()
            flags = [_largest_magnitude(x), summary.variance.any().double()]
            judged = link == "identity" and B > 0
            facts = torch.stack([*flags, *statistics.limits()] if judged else flags)
        p_effective = {name: layer.p_effective for name, layer in layers.items()}
        told = facts.tolist()  # the one wait for the device
    elapsed = time.perf_counter() - started
    if not math.isfinite(told[0]):
        _warn_not_finite(x)
    if judged:
        check_probabilities(*told[2:])
    if T > 1 and B > 0 and not told[1]:
        cause = _ONE_CLASS if link == "softmax" and summary.mean.shape[1] == 1 else ""
        message = _ZERO_VARIANCE.format(T=T, cause=cause, names=_describe(layers))
        warnings.warn(message, UserWarning, stacklevel=2)
    return Prediction(
        *summary,
        samples=samples,
        T=T,
        seed=keys.seed,
        p_effective=p_effective,
        elapsed_seconds=elapsed,
    )


def _run(
    model: nn.Module,
    x: Tensor,
    ids: Tensor,
    T: int,
    per_forward: int,
    keys: MaskKeys,
    link: Link,
    return_samples: bool,
    chunk: int | None,
) -> tuple[PassStatistics, Tensor | None]:
    """All passes, ``per_forward`` at a time; halves that where CUDA memory runs out."""
    statistics: PassStatistics | None = None
    samples: Tensor | None = None
    record: list[Any] | None = [] if per_forward < T else None
    first = 0
    while first < T:
        passes = min(per_forward, T - first)
        limit = ELEMENTS_PER_LAYER if chunk is None else None
        try:
            output, record = _forward(model, x, ids, first, passes, keys, record, limit)
        except (torch.OutOfMemoryError, PassesDoNotFit) as error:
            if chunk is not None or passes == 1:
                raise
            per_forward = error.fitting if isinstance(error, PassesDoNotFit) else passes // 2
            record = record if first else []  # that of a broken first forward is incomplete
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
    keys: MaskKeys,
    record: list[Any] | None,
    max_elements: int | None,
) -> tuple[Tensor, list[Any] | None]:
    """What the model returns for passes first … first + passes − 1, as [passes, B, C]."""
    B = x.shape[0]
    rows = passes * B
    pass_ids = torch.arange(first, first + passes, dtype=torch.int64, device=x.device)
    keys.set(pass_ids=pass_ids, sample_ids=ids)
    mode = FoldedPasses(B, passes, record, max_elements)
    marked = mode.start(x)
    try:
        with mode:
            output = model(marked)
    except Exception as error:
        if passes > 1:
            error.add_note(_NOTE.format(passes=passes, rows=rows))
        raise
    if isinstance(output, Tensor) and not mode.is_folded(output):
        raise ValueError(_NOT_FOLDED.format(names=", ".join(dropconnect_layers(model))))
    shape = list(output.shape) if isinstance(output, Tensor) else []
    known = isinstance(output, Tensor) and output.is_floating_point()
    if not known or len(shape) != 2 or shape[0] != rows or shape[1] == 0:
        got = f"{shape} {output.dtype}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(_OUTPUT.format(rows=rows, passes=passes, batch=B, got=got))
    return output.reshape(passes, B, shape[1]), mode.record


def _count(name: str, value: object) -> int:
    """An integer of at least 1."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(_PASSES.format(name=name, got=value))
    return count


def _check_arguments(model: nn.Module, x: Tensor, link: Link) -> dict[str, DropConnectModule]:
    """Refuse what cannot work; returns the DropConnect layers by name."""
    if not isinstance(x, Tensor) or x.ndim == 0:
        got = "a scalar" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(_INPUT.format(got=got))
    if link not in get_args(Link):
        raise ValueError(_LINK.format(allowed=get_args(Link), got=link))
    layers = dropconnect_layers(model)
    if not layers:
        raise ValueError(_NO_LAYER)
    refuse_batch_statistics(model)
    return layers


def _sample_ids(sample_ids: Tensor | None, x: Tensor) -> Tensor:
    """The ids on the device of x."""
    rows = x.shape[0]
    if sample_ids is None:
        return torch.arange(rows, dtype=torch.int64, device=x.device)
    is_tensor = isinstance(sample_ids, Tensor)
    if not is_tensor or sample_ids.shape != (rows,) or sample_ids.dtype != torch.int64:
        got = type(sample_ids).__name__
        if is_tensor:
            got = f"{sample_ids.dtype} {list(sample_ids.shape)}"
        raise ValueError(
            _SAMPLE_IDS.format(rows=rows, x_shape=list(x.shape), got=got, last=max(rows - 1, 0))
        )
    return sample_ids.to(x.device)


def _largest_magnitude(x: Tensor) -> Tensor:
    """Largest magnitude in the input, float64: infinite or NaN where one is."""
    if not x.is_floating_point() or x.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=x.device)
    if x.element_size() == 1:
        x = x.float()
    return torch.linalg.vector_norm(x, torch.inf).double()


def _warn_not_finite(x: Tensor) -> None:
    """NaN and inf inputs are used as they are, and said."""
    bad = ~torch.isfinite(x.reshape(x.shape[0], -1)).all(dim=1)
    count, first = int(bad.sum()), int(bad.nonzero()[0])
    message = _NOT_FINITE.format(count=count, batch=x.shape[0], first=first)
    warnings.warn(message, UserWarning, stacklevel=3)


def _describe(layers: dict[str, DropConnectModule]) -> str:
    """Names and drop probabilities, for a warning."""
    return ", ".join(f"{n or 'the model'} (p = {m.p})" for n, m in layers.items())
