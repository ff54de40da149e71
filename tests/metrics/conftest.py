"""Random classifier outputs for the metric tests."""

import pytest
import torch


@pytest.fixture
def batch():
    """Make (probs [B, C], labels int64 [B]) that are right about half the time."""

    def make(rows=200, classes=10, seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
        labels = torch.randint(classes, (rows,), generator=generator)
        logits[torch.arange(rows), labels] += 2.5
        return logits.softmax(1).to(dtype), labels

    return make
