"""Dropout in Monte Carlo passes: calls of functions, and masks that torch draws itself.

Dropout *modules* draw keyed masks because the run's ``MaskKeys`` have taken their ``forward``. What
is left are calls of functions, seen by the function mode that folds the passes:

* ``F.dropout``, its five kin, and the ``torch`` functions under them get keyed masks too, whatever
  their ``training`` says: in evaluation mode it is False because the mode is.
* Attention and recurrent networks draw inside torch, where no mask can be given. They run with
  ``training`` set and torch's generator seeded from (seed, first pass, number of the call): that
  repeats, but it depends on the other inputs of the batch and on the chunks.
* Other functions that draw (``torch.randn_like``, ``F.gumbel_softmax``) are seeded in the same way.
"""

import re
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayes_dc.mc.by_torch import DrawnByTorch, Function
from bayes_dc.mc.generators import Seeded, seeded
from bayes_dc.nn import MaskKeys
from bayes_dc.nn.dropout import check_batched, function_key, generator_seed, realised_p
from bayes_dc.ops.dropout import keyed_dropout


class _Kind(NamedTuple):
    """What a dropout function drops, and the dimensions of a sample without a batch, or 0."""

    channels: bool = False
    alpha: bool = False
    unbatched: int = 0
    in_place: bool = False
    with_mask: bool = False


_FUNCTIONS: dict[Function, _Kind] = {
    F.dropout: _Kind(),
    F.dropout1d: _Kind(channels=True, unbatched=2),
    F.dropout2d: _Kind(channels=True),
    F.dropout3d: _Kind(channels=True, unbatched=4),
    F.alpha_dropout: _Kind(alpha=True),
    F.feature_alpha_dropout: _Kind(channels=True, alpha=True),
    torch.dropout: _Kind(),
    torch.feature_dropout: _Kind(channels=True),
    torch.alpha_dropout: _Kind(alpha=True),
    torch.feature_alpha_dropout: _Kind(channels=True, alpha=True),
    torch.dropout_: _Kind(in_place=True),
    torch.feature_dropout_: _Kind(channels=True, in_place=True),
    torch.alpha_dropout_: _Kind(alpha=True, in_place=True),
    torch.feature_alpha_dropout_: _Kind(channels=True, alpha=True, in_place=True),
    torch.native_dropout: _Kind(with_mask=True),
}
for _name in ("", "feature_", "alpha_", "feature_alpha_", "native_"):  # by the operators' names too
    for _ending in ("dropout", "dropout_") if _name != "native_" else ("dropout",):
        _packet = getattr(torch.ops.aten, _name + _ending)
        _FUNCTIONS[_packet] = _FUNCTIONS[_packet.default] = _FUNCTIONS[
            getattr(torch, _name + _ending)
        ]
_SCRIPTED = (
    "Dropout inside TorchScript ({names}) cannot draw masks of its own for every pass and input. "
    "Use the module before torch.jit.script or torch.jit.trace, or pass dropout=False, which "
    "leaves dropout off."
)
_FOREIGN = (
    "Dropout inside {names} is drawn by torch, which takes no masks: it was seeded from the seed "
    "and the first pass of each forward, so results repeat, but they depend on batch and chunk."
)
_RANDOM = (
    "{names} drew from torch's generator, which takes no masks: it was seeded from the seed and "
    "the first pass of each forward, so results repeat, but they depend on batch and chunk."
)


class FunctionCall(NamedTuple):
    """A call of a dropout function, understood.

    Attributes:
        x: Its input.
        p: Drop probability.
        kind: What it drops.
        in_place: Whether the result is to be written into ``x``.
    """

    x: Tensor
    p: float
    kind: _Kind
    in_place: bool


class Dropout:
    """Draws the masks of dropout functions in one run.

    Args:
        keys: Coordinates of the run.
        active: Whether dropout draws; False turns every call off.
    """

    def __init__(self, keys: MaskKeys, *, active: bool = True) -> None:
        self.keys, self.active = keys, active
        self.calls = 0
        self.foreign_calls = 0
        self.drawn: dict[str, float] = {}
        self.foreign: dict[str, float] = {}
        self.random: dict[str, None] = {}

    def start(self) -> None:
        """Count the calls of the next forward from 0."""
        self.calls = self.foreign_calls = 0

    def function_call(
        self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FunctionCall | None:
        """Understand a call of a dropout function.

        Args:
            func: What is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            None for any other function.
        """
        kind = _FUNCTIONS.get(func)
        if kind is None:
            return None

        def read(position: int, name: str, otherwise: Any) -> Any:
            return args[position] if len(args) > position else kwargs.get(name, otherwise)

        return FunctionCall(
            read(0, "input", None),
            float(read(1, "p", 0.5)),
            kind,
            kind.in_place or bool(read(3, "inplace", False)),
        )

    def draws(self, call: FunctionCall) -> bool:
        """Whether a call drops anything in this run.

        Args:
            call: The call.

        Returns:
            False for p = 0, and where dropout is off.
        """
        return self.active and call.p != 0

    def keyed(self, call: FunctionCall) -> tuple[Function, dict[str, Any]]:
        """What takes the place of a call, but for its input.

        Args:
            call: The call.

        Returns:
            ``keyed_dropout`` and its keyword arguments.
        """
        name = f"F.dropout call {self.calls}"
        check_batched(call.x, call.kind.unbatched, name)
        words = function_key(self.keys.seed, self.calls)
        self.calls += 1
        self.drawn[name] = realised_p(call.p)
        device = call.x.device
        return keyed_dropout, {
            "p": call.p,
            "key": torch.tensor(words, device=device),
            "sample_ids": self.keys.sample_ids.to(device),
            "pass_ids": self.keys.pass_ids.to(device),
            "channels": call.kind.channels,
            "alpha": call.kind.alpha,
        }

    def seeded(self, device: torch.device) -> AbstractContextManager[Seeded]:
        """Torch's generators seeded for the next call; they are afterwards as before.

        Args:
            device: Where the call draws.

        Returns:
            For a ``with`` block around the call.
        """
        step = int(self.keys.pass_ids[0])
        seed = generator_seed(self.keys.seed, step, self.foreign_calls)
        self.foreign_calls += 1
        return seeded(device, seed)

    def note_random(self, func: Function) -> None:
        """A function that is no dropout has drawn from torch's generator.

        Args:
            func: It.
        """
        self.random[func.__name__] = None

    def note_foreign(self, call: DrawnByTorch) -> None:
        """Torch draws dropout itself.

        Args:
            call: The call.
        """
        self.foreign[call.name] = call.p

    def active_layers(self) -> dict[str, float]:
        """Realised drop probability of all dropout that was active.

        Returns:
            By module name, by call for functions, by kind for what torch draws itself.
        """
        modules = {f.name: f.p_effective for f in self.keys.dropout if f.was_called and f.module.p}
        return modules | self.drawn | self.foreign

    def silent_layers(self) -> list[str]:
        """Names of dropout modules with p > 0 that no forward called."""
        return [f.name for f in self.keys.dropout if not f.was_called and f.module.p]

    def warnings(self) -> list[str]:
        """What must be said about masks and other numbers that torch drew."""
        told = ((_FOREIGN, self.foreign), (_RANDOM, self.random))
        return [text.format(names=", ".join(names)) for text, names in told if names]


def refuse_scripted(model: nn.Module) -> None:
    """Refuse dropout inside TorchScript.

    Args:
        model: Any module.

    Raises:
        ValueError: If there is any, with the names.
    """
    names: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and hasattr(module, "forward"):
            within = any(not outer or name.startswith(f"{outer}.") for outer in names)
            if not within and re.search(r"aten::\w*dropout", str(module.inlined_graph)):
                names.append(name)
    if names:
        raise ValueError(_SCRIPTED.format(names=", ".join(map(repr, names))))
