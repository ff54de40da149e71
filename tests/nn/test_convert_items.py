"""Conversion of layers in lists whose holder reads their weights by index."""

import torch
import torch.nn.functional as F
from torch import nn

from bayes_dc import convert


class ReadsItems(nn.Module):
    """Layers in lists, of which some are called by other ways than their index."""

    def __init__(self):
        super().__init__()
        self.listed = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.steps = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        self.looped = nn.ModuleList([nn.Linear(4, 4)])
        self.walked = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.called = nn.Sequential(nn.Linear(4, 4))
        self.listed.append(nn.Linear(4, 4))

    def forward(self, x):
        x = F.linear(x, self.listed[0].weight) + F.linear(x, self.listed[-1].weight)
        x = self.listed[1](x).to(self.listed[1].weight.dtype)
        x = self.listed[-3].forward(x) + self.listed[2].weight.sum() + self.listed[3](x)
        x = F.linear(x, self.steps[2].weight, self.steps[2].bias) + self.steps[0](x)
        x = F.linear(x, self.named["b"].weight) + self.named["a"](x)
        for layer in self.looped:
            x = layer(x) + self.looped[0].weight.sum()
        for layer in self.walked.values():
            x = layer(x) + self.walked["a"].weight.sum()
        if x is None:
            x = self.listed[9].weight + self.named["c"].weight + self.missing[0].weight
        return self.called(x) + self.called[0].weight.sum()


def test_items_of_lists_whose_weight_is_read():
    model = ReadsItems()
    report = convert(model)
    reason = "ReadsItems reads its weight without calling it, so a mask would have no effect"
    left = ["listed.0", "listed.4", "steps.2", "named.b"]
    assert report.left_alone == dict.fromkeys(left, reason)
    assert len(report.converted) == 8
    assert model(torch.ones(2, 4)).shape == (2, 4)
