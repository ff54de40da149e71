"""Which masks the layers of a model draw: layer numbers and mask coordinates."""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayes_dc.nn.dropout import KeyedForward, dropout_layers, keyed_forwards
from bayes_dc.nn.module import DropConnectModule
from bayes_dc.rng import check_seed, layer_key

_DUPLICATE = (
    "Layers {first!r} and {second!r} both carry mask layer number {number}, so they would draw the "
    "same masks. This happens when numbered models are put together; give all layers new numbers "
    "with bayes_dc.nn.number_layers(model, renumber=True)."
)
_MODEL = "model must be a torch.nn.Module; got {got!r}."
_ATTACHED = (
    "Layer {name!r} already draws its masks from other MaskKeys; detach those first (two runs on "
    "one model at the same time cannot share its layers)."
)
_SAMPLE_IDS = "sample_ids must be an int64 tensor [S], one id for each row of a pass; got {got}."
_PASS_IDS = "pass_ids must be an integer or an int64 tensor [P]; got {got}."
_UNSET = "MaskKeys.set(pass_ids=…, sample_ids=…) must be called before the model runs."


class LayerMasks(NamedTuple):
    """What one layer reads in a forward: its key words and the run's coordinates."""

    key: Tensor
    keys: "MaskKeys"

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of a layer has no masks, however it is made: nobody could detach it."""
        return type(None), ()


def dropconnect_layers(model: nn.Module) -> dict[str, DropConnectModule]:
    """DropConnect layers of a model by name, in ``model.modules()`` order.

    Args:
        model: Any module; it may be a layer itself (name ``""``).

    Returns:
        Name → layer, each layer once.

    Raises:
        TypeError: If ``model`` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(_MODEL.format(got=model))
    return {name: m for name, m in model.named_modules() if isinstance(m, DropConnectModule)}


def number_layers(model: nn.Module, *, renumber: bool = False) -> dict[str, int]:
    """Give every DropConnect layer of a model its mask layer number.

    Layers without a number get the next ones above those in use, in ``model.modules()`` order:
    0, 1, 2, … for a fresh model. A number travels with the state dict.

    Args:
        model: The whole model.
        renumber: Forget the numbers in use and count from 0.

    Returns:
        Layer name → number.

    Raises:
        ValueError: If two layers carry one number.
    """
    layers = dropconnect_layers(model)
    owner: dict[int, str] = {}
    for name, layer in layers.items():
        if renumber:
            layer.mask_layer = None
        number = layer.mask_layer
        if number is None:
            continue
        if number in owner:
            message = _DUPLICATE.format(first=owner[number], second=name, number=number)
            raise ValueError(message)
        owner[number] = name
    following = max(owner, default=-1) + 1
    for layer in layers.values():
        if layer.mask_layer is None:
            layer.mask_layer = following
            following += 1
    return {n: m.mask_layer for n, m in layers.items() if m.mask_layer is not None}


class MaskKeys:
    """Mask coordinates of a run: masks are a function of (seed, layer, pass, sample).

    Attach it to a model, then set the coordinates before each forward::

        keys = MaskKeys(seed=0)
        with keys.attached(model):
            for step, batch in enumerate(batches):
                keys.set(pass_ids=step, sample_ids=torch.arange(len(batch)))
                loss(model(batch)).backward()

    While attached, layers draw masks in training and in evaluation mode: DropConnect layers, and
    torch's dropout modules (``nn.Dropout``, ``Dropout1d``, ``2d``, ``3d``, ``AlphaDropout``,
    ``FeatureAlphaDropout``), whose masks then come from the same coordinates instead of torch's
    generator. A dropout module called several times in a forward draws other masks each time, a
    DropConnect layer the same. Calls of ``F.dropout`` are not touched. The coordinates of a forward
    must stay set until its backward is done where activations are checkpointed.

    Copies and pickles of an attached model are not attached, and those of the keys hold no model.

    Args:
        seed: Unsigned 64-bit seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = check_seed(seed)
        self._layers: list[DropConnectModule] = []
        self._dropout: list[KeyedForward] = []
        self._pass_ids: Tensor | None = None
        self._sample_ids: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy or a pickle: seed and coordinates, no model."""
        return dict(self.__dict__, _layers=[], _dropout=[])

    @property
    def pass_ids(self) -> Tensor:
        """Pass ids of the next forward, int64 ``[P]``."""
        if self._pass_ids is None:
            raise RuntimeError(_UNSET)
        return self._pass_ids

    @property
    def sample_ids(self) -> Tensor:
        """Sample ids of the next forward, int64 ``[S]``."""
        if self._sample_ids is None:
            raise RuntimeError(_UNSET)
        return self._sample_ids

    @property
    def dropout(self) -> tuple[KeyedForward, ...]:
        """The dropout modules that draw masks of this run."""
        return tuple(self._dropout)

    def attach(self, model: nn.Module, *, dropout: bool = True) -> None:
        """Number the layers of ``model`` and make them draw the masks of this run.

        Args:
            model: Model with any number of DropConnect layers and dropout modules.
            dropout: Whether dropout modules draw masks of this run too. False leaves them alone.

        Raises:
            RuntimeError: If a layer is attached to other keys.
            ValueError: If two layers carry one mask layer number.
        """
        layers = dropconnect_layers(model)
        for name, layer in layers.items():
            if layer.masks is not None and layer.masks.keys is not self:
                raise RuntimeError(_ATTACHED.format(name=name))
        for name, module in dropout_layers(model).items() if dropout else ():
            held = module.__dict__.get("forward")
            if isinstance(held, KeyedForward) and held.run is not self:
                raise RuntimeError(_ATTACHED.format(name=name))
        numbers = number_layers(model)
        words = [layer_key(self.seed, numbers[name]) for name in layers]
        keys = torch.tensor(words, dtype=torch.int64)
        moved: dict[torch.device, Tensor] = {}  # one copy for a device, not one for a layer
        for row, layer in enumerate(layers.values()):
            device = layer.weight.device
            if device not in moved:
                moved[device] = keys.to(device)
            layer.set_masks(LayerMasks(moved[device][row], self))
        self._layers += layers.values()
        for forward in keyed_forwards(model, self) if dropout else ():
            forward.attach()
            self._dropout.append(forward)

    def detach(self) -> None:
        """Give the layers back: they draw fresh masks in training and none in evaluation."""
        for forward in self._dropout:
            forward.detach()
        self._dropout = []
        for layer in self._layers:
            if isinstance(layer, DropConnectModule):  # not so after restore(model)
                layer.set_masks(None)
        self._layers = []

    @contextlib.contextmanager
    def attached(self, model: nn.Module, *, dropout: bool = True) -> Iterator["MaskKeys"]:
        """``attach`` for the length of a ``with`` block.

        Args:
            model: As for ``attach``.
            dropout: As for ``attach``.

        Yields:
            These keys.
        """
        self.attach(model, dropout=dropout)
        try:
            yield self
        finally:
            self.detach()

    def set(self, *, pass_ids: int | Tensor, sample_ids: Tensor) -> None:
        """Set the coordinates of the next forwards.

        The tensors are kept, not copied into: a graph saved for backward keeps its own.

        Args:
            pass_ids: Pass number, or int64 ``[P]`` of them for folded passes.
            sample_ids: int64 ``[S]``, one for each row of a pass.

        Raises:
            ValueError: If one of them is something else.
        """
        if not _is_id_vector(sample_ids):
            raise ValueError(_SAMPLE_IDS.format(got=_describe(sample_ids)))
        if not isinstance(pass_ids, Tensor):
            number = _integer(pass_ids)
            pass_ids = torch.full((1,), number, dtype=torch.int64, device=sample_ids.device)
        if not _is_id_vector(pass_ids):
            raise ValueError(_PASS_IDS.format(got=_describe(pass_ids)))
        self._pass_ids, self._sample_ids = pass_ids, sample_ids
        for forward in self._dropout:
            forward.calls = 0


def _is_id_vector(ids: object) -> bool:
    """An int64 tensor of one dimension."""
    return isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.ndim == 1


def _integer(number: object) -> int:
    """A pass number modulo 2**32, as masks take it."""
    try:
        return operator.index(number) % (1 << 32)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(_PASS_IDS.format(got=repr(number))) from error


def _describe(value: object) -> str:
    """What was given instead of ids."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
