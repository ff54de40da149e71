"""Engines of ``predict_with_uncertainty``: one for a model, the sizes of its input and T."""

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bayes_dc.mc.engine import MonteCarloEngine
from bayes_dc.mc.engine_guard import Guard
from bayes_dc.mc.guards import lock_of
from bayes_dc.mc.passes import EngineChoice, Passes
from bayes_dc.mc.plan_errors import PlanError
from bayes_dc.nn.module import call_forward
from bayes_dc.types import Link

MOST_ENGINES = 4
"""Engines kept for a model; each holds an arena."""

_ASKED = "folded: asked for"
_ON_CPU = "folded: on a CPU an engine is made only when asked for (engine='engine')"
_CHUNK = "folded: chunk is given"
_AUTO_T = "folded: T='auto' looks at the passes while they run"
_AUTOCAST = "folded: inside an autocast block, which a plan knows nothing of"
_HOOKS = "folded: {where} has hooks, which an engine would not call"
_EMPTY = "folded: there are no inputs"
_REFUSED = "folded: {error}"


class _Refusal(NamedTuple):
    """A model that has no plan, as it was then."""

    text: str
    guard: Guard


_engines: weakref.WeakKeyDictionary[
    nn.Module, OrderedDict[Hashable, MonteCarloEngine | _Refusal]
] = weakref.WeakKeyDictionary()


def why_folded(
    choice: EngineChoice, model: nn.Module, x: Tensor, *, chunk: int | None, auto_T: bool
) -> str | None:
    """Why a prediction does not try for an engine.

    It does not depend on earlier predictions, so that equal arguments give equal bits.

    Args:
        choice: As asked for.
        model: The model.
        x: Inputs.
        chunk: Passes per forward, or None.
        auto_T: Whether the number of passes is found while they run.

    Returns:
        None if it does.
    """
    if choice == "folded":
        return _ASKED
    if auto_T:
        return _AUTO_T
    if len(x) == 0:
        return _EMPTY
    if choice == "engine":
        return None
    if not x.is_cuda:
        return _ON_CPU
    if chunk is not None:
        return _CHUNK
    if torch.is_autocast_enabled(x.device.type):
        return _AUTOCAST
    hooked = first_hooked(model)
    return None if hooked is None else _HOOKS.format(where=hooked)


def first_hooked(model: nn.Module) -> str | None:
    """A module whose call does more than its forward.

    Args:
        model: The model.

    Returns:
        The first with hooks of the user, in words; None if there is none.
    """
    for name, module in model.named_modules():
        before = [h for h in module._forward_pre_hooks.values() if h is not call_forward]
        if before or module._forward_hooks:
            return f"module {name!r}" if name else "the model"
    return None


def passes_by_engine(
    choice: EngineChoice,
    model: nn.Module,
    x: Tensor,
    ids: Tensor | None,
    T: int,
    *,
    seed: int,
    chunk: int | None,
    link: Link,
    dropout: bool,
    return_samples: bool,
) -> Passes | str:
    """All passes by an engine, of an earlier prediction or made for this one.

    Args:
        choice: With ``"auto"`` a model without a plan is no error.
        model: The model.
        x: Inputs ``[B, …]``, B ≥ 1.
        ids: int64 ``[B]``, or None for 0 … B − 1.
        T: Passes.
        seed: Seed of the masks.
        chunk: Passes at a time, or None.
        link: What turns outputs into probabilities.
        dropout: Whether dropout draws.
        return_samples: Whether to return probabilities.

    Returns:
        What they gave; why there is no plan, for ``"auto"``.

    Raises:
        PlanError: If there is no plan, for ``"engine"``.
    """
    with lock_of(model):
        try:
            engine = _engine_for(choice, model, x, T, chunk, link, dropout)
        except torch.OutOfMemoryError:
            forget_engines()
            engine = _engine_for(choice, model, x, T, chunk, link, dropout)
        if isinstance(engine, _Refusal):
            return engine.text
        # Kept apart from the engine's own calls: writes through parameter.data are no writes to
        # torch, and nobody here could say refresh().
        engine.refresh()
        with engine.exclusively():
            b = engine.enqueue(x, seed, ids, return_samples=return_samples, checked=True)
            ranges = engine.statistics.ranges(b)
            return Passes(
                summary=engine.results.fresh(b),
                samples=engine.statistics.samples(b).clone() if return_samples else None,
                limits=None if ranges is None else _limits(ranges),
                T=T,
                dropout=dict(engine.active_dropout),
                silent=list(engine.silent_dropout),
                said=[],
                engine=engine.description,
            )


def forget_engines() -> None:
    """Let go of all engines, and of their memory."""
    _engines.clear()


def _limits(ranges: Tensor) -> Tensor:
    low, high, least = ranges
    return torch.stack([low.amin(), high.amax(), least.amin()])


def _engine_for(
    choice: EngineChoice,
    model: nn.Module,
    x: Tensor,
    T: int,
    chunk: int | None,
    link: Link,
    dropout: bool,
) -> MonteCarloEngine | _Refusal:
    """The engine for these arguments; made if there is none, or the model is another since."""
    held = _engines.setdefault(model, OrderedDict())
    key: Hashable = (x.shape, x.dtype, x.device, T, chunk, link, dropout)
    found = held.get(key)
    if isinstance(found, _Refusal) and (choice == "engine" or found.guard.difference()):
        found = None
    if isinstance(found, MonteCarloEngine) and found.difference():
        found = None
    if found is None:
        found = held[key] = _make(choice, model, x, T, chunk, link, dropout)
    held.move_to_end(key)
    if len(held) > MOST_ENGINES:
        held.popitem(last=False)
    return found


def _make(
    choice: EngineChoice,
    model: nn.Module,
    x: Tensor,
    T: int,
    chunk: int | None,
    link: Link,
    dropout: bool,
) -> MonteCarloEngine | _Refusal:
    try:
        made = MonteCarloEngine(
            model,
            x,
            T,
            mode="workspace",
            rows=None if chunk is None else chunk * len(x),
            link=link,
            dropout=dropout,
        )
        del made._model  # kept for the model's sake: it must not keep the model
        return made
    except PlanError as error:
        if choice == "engine":
            raise
        return _Refusal(_REFUSED.format(error=error), Guard(model))
