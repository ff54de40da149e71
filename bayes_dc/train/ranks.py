"""Several processes of one run, one for each GPU or a few on a CPU, as ``torchrun`` starts them.

In training, a batch is cut into one part for each rank. Masks, augmentation and the order of the
samples are functions of positions in the whole batch or split, and gradients are summed with
weights by samples, so the number of ranks changes a run only by rounding. In prediction, ranks
share the batches.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayes_dc.train.errors import TrainingError
from bayes_dc.train.settings import Device

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SECONDS_TO_ANSWER = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run; alone by default.

    Attributes:
        rank: Its number.
        size: Processes of the run.
        store: Where ranks leave word for each other, or None.
    """

    rank: int = 0
    size: int = 1
    store: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def part(self, start: int, stop: int) -> tuple[int, int]:
        """Bounds of this rank's part of a range.

        Args:
            start: First position.
            stop: One past the last.

        Returns:
            Bounds; parts of all ranks lie one after another and differ by at most one in length.
        """
        n = stop - start
        return start + self.rank * n // self.size, start + (self.rank + 1) * n // self.size

    def sum_(self, tensors: list[Tensor]) -> None:
        """Sum tensors over the ranks, in place.

        Args:
            tensors: The same shapes and dtypes on every rank.

        Raises:
            TrainingError: If a rank is gone or does not answer.
        """
        if self.size == 1:
            return
        import torch.distributed as dist

        for dtype in dict.fromkeys(t.dtype for t in tensors):
            chosen = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.flatten() for t in chosen])
            self._together(lambda flat=flat: dist.all_reduce(flat))  # type: ignore[misc]
            for t, summed in zip(chosen, flat.split([t.numel() for t in chosen]), strict=True):
                t.copy_(summed.view(t.shape))

    def gather(self, mine: T) -> list[T]:
        """What every rank has.

        Args:
            mine: What this one has; anything that can be pickled.

        Returns:
            In the order of the ranks, the same on all.

        Raises:
            TrainingError: If a rank is gone or does not answer.
        """
        if self.size == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        self._together(lambda: dist.all_gather_object(found, mine))
        return found

    def wait(self) -> None:
        """Return when every rank has come here.

        Raises:
            TrainingError: If a rank is gone or does not answer.
        """
        if self.size > 1:
            import torch.distributed as dist

            self._together(dist.barrier)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let rank 0 through a block before the others, e.g. where files are downloaded.

        Yields:
            Nothing.
        """
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()

    def same_weights(self, model: nn.Module) -> None:
        """Give every rank the weights of rank 0.

        Args:
            model: The same network on every rank.
        """
        if self.size > 1:
            import torch.distributed as dist

            for tensor in model.state_dict().values():
                dense = tensor.contiguous()  # channels last in memory is not what broadcast takes
                self._together(lambda dense=dense: dist.broadcast(dense, 0))  # type: ignore[misc]
                tensor.copy_(dense)

    def _together(self, call: Callable[[], object]) -> None:
        """Make a call of all ranks; say who is missing where it fails."""
        try:
            call()
        except RuntimeError as error:
            silent = ", ".join(map(str, self._silent())) or "none"
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise TrainingError(
                f"rank {self.rank} of {self.size} lost contact to the others; ranks that no longer "
                f"answer: {silent} ({reason}). What stopped them is in their own output and in the "
                "last lines of torchrun; --resume goes on after the last saved epoch."
            ) from error

    def _silent(self) -> list[int]:
        """Ranks that leave no word within some seconds; rank 0 if the store is gone with it."""
        silent = list(range(self.size))
        end = time.monotonic() + _SECONDS_TO_ANSWER
        try:
            self.store.set(f"alive/{self.rank}", "")
            while silent and time.monotonic() < end:
                silent = [rank for rank in silent if not self.store.check([f"alive/{rank}"])]
                time.sleep(0.05)
        except RuntimeError:
            return [0]
        return silent


ALONE = Ranks()


@contextmanager
def joined_ranks(device: Device, timeout_seconds: float) -> Iterator[Ranks]:
    """Join the other processes of ``torchrun``, if it has started this one.

    Args:
        device: ``train.device``; ranks on a GPU take the one of their local number.
        timeout_seconds: How long to wait for another rank.

    Yields:
        This process among the ranks.

    Raises:
        TrainingError: If the environment is incomplete, or there are more ranks than GPUs.
    """
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise TrainingError(
            f"WORLD_SIZE is set, but {', '.join(missing)} not: start the ranks with torchrun "
            "--nproc_per_node N scripts/train.py …, or unset WORLD_SIZE."
        )
    import torch.distributed as dist

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        if ranks > torch.cuda.device_count():
            raise TrainingError(
                f"{ranks} ranks on a machine with {torch.cuda.device_count()} GPUs: start one for "
                "each GPU, or set train.device=cpu."
            )
        torch.cuda.set_device(local)
    limit = timedelta(seconds=timeout_seconds)
    store, rank, size = next(dist.rendezvous("env://", timeout=limit))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=limit
    )
    try:
        yield Ranks(rank, size, store)
    finally:
        dist.destroy_process_group()


def synchronise_batch_norm(
    model: nn.Module, ranks: Ranks, device: torch.device, smallest_batch: int
) -> nn.Module:
    """Make BatchNorm layers use the statistics of the whole batch.

    Args:
        model: Network.
        ranks: Ranks of the run.
        device: Where it is trained.
        smallest_batch: Samples of the smallest batch of an epoch.

    Returns:
        The network, its BatchNorm layers replaced by ones that share parameters and buffers.

    Raises:
        TrainingError: If it has such layers and that cannot be done.
    """
    if ranks.size == 1 or not any(isinstance(m, _BatchNorm) for m in model.modules()):
        return model
    if device.type != "cuda":
        raise TrainingError(
            "the network has batch normalisation, whose statistics torch shares between ranks on "
            "GPUs only. Train it with one rank on a CPU, or choose a network without (mlp, lenet5, "
            "cnn)."
        )
    if smallest_batch < ranks.size:
        raise TrainingError(
            f"an epoch has a batch of {smallest_batch} samples, fewer than the {ranks.size} ranks "
            "that share the statistics of batch normalisation. Change train.batch_size."
        )
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)
