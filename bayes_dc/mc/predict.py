"""``predict_with_uncertainty``: T stochastic passes of a model, and what they say."""

import math
import time
import warnings
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bayes_dc.mc.arguments import (
    check_arguments,
    check_count,
    ids_of_rows,
    largest_magnitude,
    warn_not_finite,
    warn_unknown,
)
from bayes_dc.mc.dropout import Dropout
from bayes_dc.mc.engine_cache import passes_by_engine, why_folded
from bayes_dc.mc.folded import Job, passes_folded
from bayes_dc.mc.guards import lock_of
from bayes_dc.mc.passes import EngineChoice, Passes
from bayes_dc.mc.prediction import Prediction
from bayes_dc.mc.statistics import check_probabilities
from bayes_dc.mc.until import StandardErrorOf, Until
from bayes_dc.nn import MaskKeys
from bayes_dc.types import Link

ROWS_PER_FORWARD = 1 << 15
"""Rows of one folded forward where ``chunk`` is not given."""
ROWS_PER_CUDA_FORWARD = 1 << 17
"""The same on a GPU, where a forward costs about a millisecond of the host whatever its rows."""
ELEMENTS_PER_LAYER = 1 << 27
"""Elements of the largest tensor of folded rows in such a forward, tokens and pixels included."""

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
_ENGINE = "engine must be one of {allowed}; got {got!r}."
_NO_PLAN = "The passes ran {why} Pass engine='folded' if that is what you want."


def predict_with_uncertainty(
    model: nn.Module,
    x: Tensor,
    T: int | Literal["auto"] = 100,
    *,
    seed: int = 0,
    sample_ids: Tensor | None = None,
    chunk: int | None = None,
    return_samples: bool = False,
    link: Link = "softmax",
    dropout: bool = True,
    standard_error: float | None = None,
    standard_error_of: StandardErrorOf = "mean",
    standard_error_share: float = 1.0,
    T_max: int = 1000,
    engine: EngineChoice = "auto",
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
        T: Number of passes, 1 … 2**32, or ``"auto"``: as many as ``standard_error`` needs for these
            inputs together; the result is the folded one of the T that ran, to the bit.
        seed: Unsigned 64-bit seed of the masks.
        sample_ids: int64 ``[B]``, identity of each input, e.g. its index in a data set; default
            0 … B − 1. Masks are keyed by it.
        chunk: Passes per forward. None: as many as keep a forward within 2**15 rows (2**17 on
            CUDA) and its tensors within 2**27 elements, fewer where CUDA memory runs out. Changes
            neither masks nor the order of any sum.
        return_samples: Also return the probabilities of every pass.
        link: ``"softmax"`` for a model that returns logits, ``"identity"`` for probabilities.
        dropout: Whether dropout draws masks. False turns it off: DropConnect layers only.
        standard_error: With ``T="auto"``: the Monte Carlo standard error to reach, above 0.
        standard_error_of: Of what: ``"mean"`` (the largest of an input's classes), ``"entropy"`` or
            ``"mutual_information"``.
        standard_error_share: Share of the inputs that must reach it.
        T_max: Most passes with ``T="auto"``; a warning says so if they were not enough.
        engine: ``"engine"``: in memory planned beforehand, by a ``MonteCarloEngine`` that is kept
            for the model, the sizes of ``x`` and T, and made again when the model has changed.
            ``"folded"``: by forwards of the model itself. ``"auto"``: an engine on a GPU, for
            models without hooks, unless ``chunk`` is given or autocast is on; else folded. A model
            that has no plan is folded with a warning: which node, its source line, the remedy.
            ``Prediction.engine`` says which and why. ``T="auto"`` is always folded.

    Returns:
        ``Prediction``.

    Raises:
        PlanError: With ``engine="engine"``, if a part of the model has no plan.
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
    until = Until.of_arguments(T, standard_error, standard_error_of, standard_error_share, T_max)
    T = check_count("T", T) if until is None else until.T_max
    chunk = None if chunk is None else check_count("chunk", chunk)
    if engine not in get_args(EngineChoice):
        raise ValueError(_ENGINE.format(allowed=get_args(EngineChoice), got=engine))
    layers = check_arguments(model, x, link, dropout)
    B = x.shape[0]
    ids = ids_of_rows(sample_ids, x)
    started = time.perf_counter()
    keys = MaskKeys(seed)
    rows = ROWS_PER_CUDA_FORWARD if x.is_cuda else ROWS_PER_FORWARD
    per_forward = min(T, chunk or max(1, rows // max(B, 1)))
    calls = Dropout(keys, active=dropout)
    job = Job(
        model, x, ids, T, calls, link, return_samples, chunk is not None, ELEMENTS_PER_LAYER, until
    )
    with lock_of(model):
        found: Passes | str | None = why_folded(
            engine, model, x, chunk=chunk, auto_T=until is not None
        )
        refused = found is None
        if found is None:
            found = passes_by_engine(
                engine,
                model,
                x,
                None if sample_ids is None else ids,
                T,
                seed=keys.seed,
                chunk=chunk,
                link=link,
                dropout=dropout,
                return_samples=return_samples,
            )
        notes = []
        if isinstance(found, str):
            notes = [_NO_PLAN.format(why=found)] if refused else []
            found = passes_folded(job, per_forward, found)
        summary, T = found.summary, found.T
        judged = found.limits is not None and B > 0
        with torch.inference_mode(False), torch.no_grad():
            facts = [largest_magnitude(x), summary.variance.any().double(), summary.mean.sum()]
            facts += [] if found.limits is None else found.limits
            told = torch.stack(facts).tolist()  # the one wait for the device
        p_effective = {name: layer.p_effective for name, layer in layers.items()}
    elapsed = time.perf_counter() - started
    if not math.isfinite(told[0]):
        warn_not_finite(x)
    if math.isnan(told[2]):
        warn_unknown(x, summary.mean)
    if judged:
        check_probabilities(*told[3:])
    if until is not None:
        until.warn_if_missed(summary, T)
    if found.silent:
        notes.append(_SILENT.format(names=", ".join(found.silent)))
    for message in found.said + notes:
        warnings.warn(message, UserWarning, stacklevel=2)
    if T > 1 and B > 0 and not told[1]:
        drops = {name: layer.p for name, layer in layers.items()}
        cause = _ZERO_HEAD if any((drops or found.dropout).values()) else ""
        if link == "softmax" and summary.mean.shape[1] == 1:
            cause = _ONE_CLASS
        kind = "DropConnect" if drops else "Dropout"
        drew = (drops or found.dropout).items()
        names = ", ".join(f"{n or 'the model'} (p = {p})" for n, p in drew)
        message = _ZERO_VARIANCE.format(T=T, cause=cause, kind=kind, names=names)
        warnings.warn(message, UserWarning, stacklevel=2)
    return Prediction(
        *summary,
        samples=found.samples,
        T=T,
        seed=keys.seed,
        p_effective=p_effective,
        elapsed_seconds=elapsed,
        dropout=found.dropout,
        engine=found.engine,
    )
