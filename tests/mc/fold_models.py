"""Models and hand-made passes for the tests of folding."""

import torch
from torch import nn

from bayes_dc import DropConnectLinear
from bayes_dc.nn import MaskKeys

K, C, B, T = 6, 3, 5, 7
POSITIONS = 4


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, x):
        return self.function(x, *self.parts)


def layers(*sizes):
    torch.manual_seed(0)
    return [DropConnectLinear(a, b) for a, b in sizes]


def by_hand(model, x):
    """Probabilities of T single passes."""
    keys = MaskKeys(0)
    model.eval()
    outputs = []
    with keys.attached(model), torch.no_grad():
        for step in range(T):
            keys.set(pass_ids=step, sample_ids=torch.arange(len(x)))
            outputs.append(model(x).double().softmax(dim=1))
    return torch.stack(outputs)
