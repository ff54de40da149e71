"""Random shifts, mirror images and holes, batched, as functions of (seed, epoch, sample).

out[i, c, y, x] = in[i, c, m(y + dy_i), m(±x + dx_i)]        m mirrors what lies beyond the border

A shift by up to 4 is what others call a random crop after padding by 4.
"""

from hashlib import sha256

import torch
from torch import Tensor

from bayes_dc.train.errors import TrainingError
from bayes_dc.train.settings import AugmentConfig


class Augmentation:
    """What happens to every sample of an epoch.

    Args:
        settings: Section ``train.augment``.
        samples: Samples of the split.
        seed: Seed of the run.
        epoch: Epoch, from 0.
        device: Where the batches are.
    """

    def __init__(
        self, settings: AugmentConfig, samples: int, seed: int, epoch: int, device: torch.device
    ) -> None:
        digest = sha256(f"augment {seed} {epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        # One row per sample, in the order of the split: batches and ranks do not matter.
        moves = torch.randint(
            -settings.shift, settings.shift + 1, (samples, 2), generator=generator
        )
        flips = torch.randint(0, 2, (samples, 1), generator=generator) * settings.flip
        self.moves = torch.cat([moves, flips], dim=1).to(device)
        self.cutout = settings.cutout
        self.holes = torch.rand((samples, 2), generator=generator).to(device)

    def __call__(self, x: Tensor, indices: Tensor) -> Tensor:
        """Move and mirror a batch, then cut holes into it.

        Args:
            x: ``[b, C, H, W]``.
            indices: Position of every sample in the split, int64 ``[b]`` on the device of ``x``.

        Returns:
            ``[b, C, H, W]``, channels last in memory.
        """
        height, width = x.shape[2:]
        down, across, flip = self.moves[indices].unbind(1)
        columns = torch.arange(width, device=x.device).expand(len(x), width)
        columns = torch.where(flip[:, None] > 0, columns.flip(1), columns)
        ys = _mirror(torch.arange(height, device=x.device) + down[:, None], height)
        xs = _mirror(columns + across[:, None], width)
        images = torch.arange(len(x), device=x.device)
        # [b, H, W, C]: the indexed dimensions come first.
        moved = x[images[:, None, None], :, ys[:, :, None], xs[:, None, :]]
        if self.cutout:
            centres = self.holes[indices]
            rows = _within(self.cutout, centres[:, 0], height)
            columns = _within(self.cutout, centres[:, 1], width)
            moved.masked_fill_((rows[:, :, None] & columns[:, None, :])[..., None], 0.0)
        return moved.permute(0, 3, 1, 2)


def check_augmentation(settings: AugmentConfig, input_shape: tuple[int, int, int]) -> None:
    """Refuse shifts that a mirror image of the border cannot fill.

    Args:
        settings: Section ``train.augment``.
        input_shape: ``(C, H, W)``.

    Raises:
        TrainingError: If the shift is not below height and width.
    """
    side = min(input_shape[1:])
    if settings.shift >= side:
        raise TrainingError(
            f"train.augment.shift must be below the side of the images, {side} pixels; got "
            f"{settings.shift}."
        )


def _within(side: int, where: Tensor, size: int) -> Tensor:
    """Positions within a hole, side wide around pixel ⌊where · size⌋: bool [b, size]."""
    first = (where * size).long() - side // 2
    offsets = torch.arange(size, device=where.device) - first[:, None]
    return (offsets >= 0) & (offsets < side)


def _mirror(positions: Tensor, size: int) -> Tensor:
    """Positions from −(size − 1) to 2 (size − 1), reflected into 0 … size − 1."""
    return (size - 1) - ((size - 1) - positions.abs()).abs()
