"""What every DropConnect layer has beside its torch parent."""

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from bayes_dc.ops import _arguments
from bayes_dc.rng import keep_digits
from bayes_dc.types import CONV_SAMPLER, CONV_SCOPE, GAUSSIAN_SCOPE, MaskScale, MaskScope, Sampler

if TYPE_CHECKING:
    from bayes_dc.nn.keys import LayerMasks


def check_options(
    *,
    p: float,
    scope: MaskScope,
    scale: MaskScale,
    sampler: Sampler = "bernoulli",
    convolution: bool = False,
) -> None:
    """Refuse options that no DropConnect layer takes.

    Args:
        p: Drop probability in [0, 1).
        scope: ``"row"``, ``"sample"`` or ``"pass"``.
        scale: ``"inverted"`` or ``"none"``.
        sampler: ``"bernoulli"`` or ``"gaussian"``.
        convolution: Whether they are meant for a convolution, which has no ``scope="row"`` and no
            ``sampler="gaussian"``.

    Raises:
        ValueError: If ``p`` or an option is out of range, or the sampler has no such scope.
    """
    _arguments.check_options(scope, scale, sampler)
    if convolution and sampler != "bernoulli":
        raise ValueError(CONV_SAMPLER.format(got=sampler))
    if convolution and scope == "row":
        raise ValueError(CONV_SCOPE.format(got=scope))
    if sampler == "gaussian" and scope != "row":
        raise ValueError(GAUSSIAN_SCOPE.format(got=scope))
    keep_digits(p)


def call_forward(module: nn.Module, args: Any) -> None:
    """A hook that does nothing but be there.

    ``nn.TransformerEncoderLayer`` in inference reads the weights of its linear layers past their
    ``forward``, unless one of them has a hook.

    Args:
        module: Not looked at.
        args: Not looked at.
    """


def without_hook(state: dict[str, Any]) -> dict[str, Any]:
    """State of a module for a copy, without ``call_forward``.

    Args:
        state: What the module's ``__getstate__`` returns; not changed.

    Returns:
        A new dictionary with a new one of the hooks.
    """
    hooks = state["_forward_pre_hooks"]
    kept = type(hooks)((number, hook) for number, hook in hooks.items() if hook is not call_forward)
    return dict(state, _forward_pre_hooks=kept)


class DropConnectModule(nn.Module):
    """Options and mask state of a DropConnect layer.

    Attributes:
        p: Drop probability asked for; a new value holds from the next forward on.
        scope: Which rows share a mask.
        scale: Whether the masked product is divided by the keep probability.
        sampler: How the output is drawn.
        mask_layer: Number of the layer in its model, or None before ``number_layers``.
        masks: Where the layer reads its masks from, or None: then it draws fresh ones from torch's
            generator in training mode and none in evaluation mode.
    """

    weight: Tensor
    p: float
    scope: MaskScope
    scale: MaskScale
    sampler: Sampler
    mask_layer: int | None
    masks: "LayerMasks | None"

    def configure(
        self, *, p: float, scope: MaskScope, scale: MaskScale, sampler: Sampler = "bernoulli"
    ) -> None:
        """Set what the constructor's keyword arguments set.

        Args:
            p: Drop probability in [0, 1).
            scope: ``"row"``, ``"sample"`` or ``"pass"``.
            scale: ``"inverted"`` or ``"none"``.
            sampler: ``"bernoulli"`` or ``"gaussian"``.
        """
        convolution = isinstance(self, nn.Conv2d)
        check_options(p=p, scope=scope, scale=scale, sampler=sampler, convolution=convolution)
        self.p = float(p)
        self.scope, self.scale, self.sampler = scope, scale, sampler
        self.mask_layer = None
        self.set_masks(None)

    def set_masks(self, masks: "LayerMasks | None") -> None:
        """Set ``masks``, and see that ``forward`` is called where it is more than W x + b.

        Args:
            masks: Where to read masks from, or None.
        """
        self.masks = masks
        self._hook()

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and see that ``forward`` is called in training.

        Args:
            mode: True for training, False for evaluation.

        Returns:
            The layer.
        """
        super().train(mode)
        self._hook()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy or a pickle: it is attached to no ``MaskKeys``."""
        return dict(without_hook(super().__getstate__()), masks=None)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._hook()

    def _hook(self) -> None:
        """Have a hook where ``forward`` is more than W x + b; see ``call_forward``."""
        self.drop_hook()
        if self.training or self.masks is not None or self.scale == "none":
            self.register_forward_pre_hook(call_forward)

    def drop_hook(self) -> None:
        """Take the hook back."""
        hooks = self._forward_pre_hooks
        for number in [number for number, hook in hooks.items() if hook is call_forward]:
            del hooks[number]

    @property
    def p_effective(self) -> float:
        """Drop probability realised by the masks."""
        return keep_digits(self.p).p_effective

    def mean_weight(self) -> Tensor:
        """Expected effective weight: W, or keep · W with ``scale="none"``.

        Returns:
            Tensor of the weight's shape; the parameter itself where it is the mean.
        """
        if self.scale == "none":
            return self.weight * (1.0 - self.p_effective)
        return self.weight

    def mask_coordinates(self, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Key, sample ids and pass ids of the next forward.

        Args:
            device: Device of the input.

        Returns:
            Those of the attached ``MaskKeys``; without, a key drawn from torch's generator and
            None, None.
        """
        if self.masks is None:
            return torch.randint(0, 1 << 32, (2,), device=device), None, None
        keys = self.masks.keys
        return self.masks.key.to(device), keys.sample_ids.to(device), keys.pass_ids.to(device)

    def options_repr(self) -> str:
        """The options as ``extra_repr`` shows them.

        Returns:
            One line.
        """
        p = f"p={self.p}" + ("" if self.p == self.p_effective else f" ({self.p_effective:.6g})")
        sampler = "" if self.sampler == "bernoulli" else f", sampler={self.sampler!r}"
        return f"{p}, scope={self.scope!r}, scale={self.scale!r}{sampler}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Keep the layer number in the metadata: as a key it would be foreign to nn.Linear."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None and self.mask_layer is not None:
            metadata[prefix[:-1]]["mask_layer"] = self.mask_layer

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        if "mask_layer" in local_metadata:
            self.mask_layer = int(local_metadata["mask_layer"])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
