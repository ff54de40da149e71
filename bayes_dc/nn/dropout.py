"""torch's dropout modules under ``MaskKeys``: masks from coordinates, not from a generator."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import has_torch_function_variadic

from bayes_dc.nn.module import call_forward, without_hook
from bayes_dc.ops import _arguments
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.rng import dropout_key, keep_digits
from bayes_dc.rng.spec import FUNCTIONAL_DROPOUT

_KINDS: dict[type[_DropoutNd], tuple[bool, bool]] = {
    nn.Dropout: (False, False),
    nn.Dropout1d: (True, False),
    nn.Dropout2d: (True, False),
    nn.Dropout3d: (True, False),
    nn.AlphaDropout: (False, True),
    nn.FeatureAlphaDropout: (True, True),
}
"""Class → whether it drops channels, and whether it is alpha dropout."""
_FORWARDS: dict[Callable[..., Tensor], tuple[bool, bool]] = {
    kind.forward: options for kind, options in _KINDS.items()
}
_UNBATCHED = (
    "{where} got x of shape {got}, which torch takes for one sample without a batch dimension; "
    "masks are keyed by sample. Give x its rows first: x[None] for one sample."
)
_ROWS = (
    "Dropout layer {name!r} got {rows} rows, x {shape}, where masks are keyed for {samples} samples"
    "{passes}. Keep the inputs along the first dimension (batch_first=True), or attach the keys "
    "with MaskKeys.attach(model, dropout=False), which leaves dropout to torch."
)
_REPEATED = (
    "Dropout layer {name!r} was called {calls} times in one forward, and an activation checkpoint "
    "repeats one of them: which one cannot be told, and with it which masks. Use a dropout module "
    "for each place, or MaskKeys.attach(model, dropout=False) for torch's own dropout."
)


class DropoutRowsError(ValueError):
    """A dropout module got other rows than masks are keyed for.

    Args:
        text: What is said of it.
        name: Name of the module.
        rows: The rows it got.
    """

    def __init__(self, text: str, *, name: str, rows: int) -> None:
        super().__init__(text)
        self.name, self.rows = name, rows


class Coordinates(Protocol):
    """What a run knows: seed and ids of the next forward."""

    seed: int

    @property
    def pass_ids(self) -> Tensor:
        """int64 ``[P]``."""

    @property
    def sample_ids(self) -> Tensor:
        """int64 ``[S]``."""


def dropout_layers(model: nn.Module) -> dict[str, _DropoutNd]:
    """Torch's dropout modules of a model by name, in ``model.modules()`` order.

    The position in this order is the number that a module's masks are keyed by, whatever its p.

    Args:
        model: Any module.

    Returns:
        Name → ``nn.Dropout``, ``Dropout1d``, ``2d``, ``3d``, ``AlphaDropout`` or
        ``FeatureAlphaDropout``, subclasses included, each module once.
    """
    return {name: m for name, m in model.named_modules() if isinstance(m, _DropoutNd)}


def realised_p(p: float) -> float:
    """Drop probability that masks realise.

    Args:
        p: Drop probability in [0, 1].

    Returns:
        A binary fraction of at most 16 digits.
    """
    return 1.0 if p == 1 else keep_digits(p).p_effective


def function_key(seed: int, call: int) -> tuple[int, int]:
    """Key words for a call of a dropout function.

    Args:
        seed: Seed of the run.
        call: Earlier calls of such functions in the same forward.

    Returns:
        Two 32-bit words.
    """
    return dropout_key(seed, FUNCTIONAL_DROPOUT, call)


def generator_seed(seed: int, step: int, call: int) -> int:
    """Seed of torch's generator where torch draws dropout itself.

    Args:
        seed: Seed of the run.
        step: First pass of the forward.
        call: Earlier such calls in the same forward.

    Returns:
        An unsigned 64-bit number.
    """
    low, high = dropout_key(seed, step, call)
    return high | low << 32  # not a key of masks: theirs are the other way round


def check_batched(x: Tensor, dims: int, where: str) -> None:
    """Refuse an input that torch would take for a single sample.

    Args:
        x: Input of a dropout layer.
        dims: Dimensions of one sample for 1d and 3d channel dropout, 0 for any.
        where: Name of the layer or function.

    Raises:
        ValueError: If the batch dimension is missing.
    """
    if dims and x.ndim == dims:
        raise ValueError(_UNBATCHED.format(where=where, got=list(x.shape)))


class KeyedForward:
    """``forward`` of a dropout module while keys are attached.

    Args:
        module: Module of a class of torch, or of a subclass with its ``forward``.
        name: Its name in the model.
        number: Its number among the model's dropout modules.
        run: Seed and ids.
        tables: Keys of first calls by device, ``[modules, 2]``, shared by the model's modules.
    """

    def __init__(
        self,
        module: _DropoutNd,
        name: str,
        number: int,
        run: Coordinates,
        tables: dict[torch.device, Tensor],
    ) -> None:
        self.module, self.name, self.number, self.run = module, name, number, run
        self.channels, self.alpha = _FORWARDS[type(module).forward]
        self.calls = 0
        self.was_called = False
        self._tables = tables
        self._later: dict[tuple[int, torch.device], Tensor] = {}

    @staticmethod
    def suits(module: _DropoutNd) -> bool:
        """Whether the module's ``forward`` is torch's own.

        Args:
            module: A dropout module.

        Returns:
            False for a subclass that computes something else, and for a patched module.
        """
        return type(module).forward in _FORWARDS and "forward" not in module.__dict__

    def attach(self) -> None:
        """Take the module's place, also in ``nn.TransformerEncoderLayer``; see ``call_forward``."""
        self._hook = self.module.register_forward_pre_hook(call_forward)
        self.module.forward = self
        self.module.__dict__["__getstate__"] = self._detached_state

    def detach(self) -> None:
        """Give the module its ``forward`` back, unless another has taken it."""
        self._hook.remove()
        if self.module.__dict__.get("forward") is self:
            del self.module.forward
        self.module.__dict__.pop("__getstate__", None)

    def _detached_state(self) -> dict[str, Any]:
        """State of a copy or a pickle of the module: with its own ``forward``."""
        state = without_hook(type(self.module).__getstate__(self.module))
        return {k: v for k, v in state.items() if k not in {"forward", "__getstate__"}}

    @property
    def p_effective(self) -> float:
        """Drop probability realised by the masks."""
        return realised_p(self.module.p)

    def __call__(self, x: Tensor) -> Tensor:
        """Dropout with the masks of the run.

        Args:
            x: ``[rows, …]``.

        Returns:
            ``[rows, …]``; all passes' rows where ``x`` has those of one.
        """
        p = self.module.p
        if p == 0:
            return x
        _arguments.check_types(x=x)
        dims = {nn.Dropout1d.forward: 2, nn.Dropout3d.forward: 4}.get(type(self.module).forward, 0)
        check_batched(x, dims, f"dropout layer {self.name!r}")
        device = x.device
        sample_ids, pass_ids = self.run.sample_ids.to(device), self.run.pass_ids.to(device)
        self._check_rows(x, sample_ids.shape[0], pass_ids.shape[0])
        y = keyed_dropout(
            x,
            p=p,
            key=self._key(self._call_number(), device),
            sample_ids=sample_ids,
            pass_ids=pass_ids,
            channels=self.channels,
            alpha=self.alpha,
        )
        # The memory of one pass has no room for the rows of several; folding makes room.
        fits = x.shape == y.shape or has_torch_function_variadic(x)
        return x.copy_(y) if self.module.inplace and fits else y

    def _check_rows(self, x: Tensor, samples: int, passes: int) -> None:
        """Refuse an input that has not one row for each sample."""
        rows = x.shape[0] if x.ndim else 0
        if rows not in {samples, samples * passes}:
            more = f" in {passes} passes" if passes > 1 else ""
            text = _ROWS.format(
                name=self.name, rows=rows, shape=list(x.shape), samples=samples, passes=more
            )
            raise DropoutRowsError(text, name=self.name, rows=rows)

    def _call_number(self) -> int:
        """How often the module was called before in this forward."""
        self.was_called = True
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            if self.calls > 1:  # a checkpoint repeats its forward inside the backward
                raise RuntimeError(_REPEATED.format(name=self.name, calls=self.calls))
            return 0
        self.calls += 1
        return self.calls - 1

    def _key(self, call: int, device: torch.device) -> Tensor:
        """Key words of a call on a device."""
        if call == 0:
            if device not in self._tables:
                self._tables[device] = next(iter(self._tables.values())).to(device)
            return self._tables[device][self.number]
        if (call, device) not in self._later:
            words = dropout_key(self.run.seed, self.number, call)
            self._later[call, device] = torch.tensor(words, device=device)
        return self._later[call, device]


def keyed_forwards(model: nn.Module, run: Coordinates) -> list[KeyedForward]:
    """A ``KeyedForward`` for every dropout module that can have one; nothing is changed yet.

    Args:
        model: Any module.
        run: Seed and ids.

    Returns:
        In ``model.modules()`` order.
    """
    layers = dropout_layers(model)
    words = [dropout_key(run.seed, number) for number in range(len(layers))]
    tables = {torch.device("cpu"): torch.tensor(words, dtype=torch.int64)}
    return [
        KeyedForward(module, name, number, run, tables)
        for number, (name, module) in enumerate(layers.items())
        if KeyedForward.suits(module)
    ]
