"""Training, prediction and metrics of small networks, as one digest; in any process the same."""

import torch
from limit_cases import C, T, digest, every_layer, folded, inputs, network, planned
from torch.nn.functional import cross_entropy

from bayes_dc import metrics
from bayes_dc.mc.statistics import Summary
from bayes_dc.nn import MaskKeys


def trained(model, *, steps=4, call=None):
    """Outputs, parameters and gradients after a few steps with keyed masks."""
    x, y = inputs(11), torch.arange(11) % C
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    keys, kept = MaskKeys(3), []
    with keys.attached(model.train()):
        for step in range(steps):
            keys.set(pass_ids=step, sample_ids=torch.arange(11))
            logits = (call or model)(x)
            optimizer.zero_grad()
            cross_entropy(logits, y).backward()
            optimizer.step()
            kept.append(logits.detach().clone())
    for parameter in model.parameters():
        if parameter.grad is not None:
            kept += [parameter.detach(), parameter.grad]
    return kept


def of_prediction(got):
    return [getattr(got, name) for name in Summary._fields]


def everything() -> str:
    """Both networks through training, both paths of prediction, and metrics."""
    found, labels = [], torch.arange(11) % C
    for model in (network(), every_layer()):
        found += trained(model)
        got = folded(model, inputs(11))
        found += of_prediction(got)
        found += [metrics.ece(got.mean, labels), metrics.nll(got.mean, labels)]
        found.append(metrics.aurc(got.entropy, got.predicted != labels))
    found += of_prediction(planned(network(), 11)(inputs(11)))
    found += of_prediction(folded(network(torch.bfloat16), inputs(11, torch.bfloat16), passes=T))
    return digest(*found)


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    print(everything())
