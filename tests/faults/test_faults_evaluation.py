"""Faults of evaluations elsewhere: samples that are lost, and one draw that is called a result."""

import pytest
import torch
from torch import nn

from bayes_dc import metrics as m
from bayes_dc.datasets import DataConfig, load_dataset
from bayes_dc.report import evaluation as evaluations
from bayes_dc.report.cautions import cautions
from bayes_dc.train.evaluate import evaluate


class FirstPixels(nn.Module):
    """Logits [20 x₀, 0]: class 0 where the first pixel is above 0."""

    def forward(self, x):
        first = 20 * x.flatten(1)[:, 0]
        return torch.stack([first, torch.zeros_like(first)], dim=1)
