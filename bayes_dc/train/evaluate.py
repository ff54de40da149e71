"""Loss and accuracy of the mean-weight network: one pass, no masks."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from bayes_dc.datasets import Split
from bayes_dc.train.ranks import ALONE, Ranks


class Score(NamedTuple):
    """How a network does on a split.

    Attributes:
        loss_nats: Mean cross-entropy.
        accuracy: Share of right predictions, 0 … 1.
        wrong: Number of wrong predictions.
        samples: Size of the split.
    """

    loss_nats: float
    accuracy: float
    wrong: int
    samples: int


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    split: Split,
    batch_size: int,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> Score:
    """Evaluate ``model.eval()`` in float32 over every sample; module modes are put back.

    Args:
        model: Network on ``device``, with no mask keys attached.
        split: Data.
        batch_size: Samples per forward pass.
        device: Where to compute.
        ranks: Ranks that share the work, every sample once; each gets the result.

    Returns:
        Means over samples, not over batches.
    """
    modes = [(module, module.training) for module in model.modules()]
    labels = split.labels.to(device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    model.eval()
    try:
        for start in range(ranks.rank * batch_size, len(split), ranks.size * batch_size):
            stop = min(start + batch_size, len(split))
            logits = model(split.batch(torch.arange(start, stop), device))
            y = labels[start:stop]
            loss += F.cross_entropy(logits.double(), y, reduction="sum")
            right += (logits.argmax(1) == y).sum()
    finally:
        for module, mode in modes:
            module.training = mode
    ranks.sum_([loss, right])
    n, correct = len(split), int(right)
    return Score(float(loss) / n, correct / n, n - correct, n)
