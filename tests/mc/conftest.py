"""Inputs that several files use."""

import pytest
import torch
from fold_models import POSITIONS, B, K


@pytest.fixture
def tokens():
    return torch.randn(B, POSITIONS, K, generator=torch.Generator().manual_seed(1))
