"""torchvision's networks, converted whole: residuals, depthwise convolutions, attention, tokens."""

import pytest
import torch
import torchvision
from torch import nn

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    convert,
    predict_with_uncertainty,
    restore,
)
from bayes_dc.nn import dropconnect_layers

FORMS = {nn.Linear: DropConnectLinear, nn.Conv2d: DropConnectConv2d}
ATTENTION = [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(12)]
BLOCKS = [f"features.{s}.{i}" for s, n in ((1, 3), (3, 3), (5, 9), (7, 3)) for i in range(n)]
LEFT_ALONE = {
    "resnet18": [],
    "vgg11": [],
    "mobilenet_v3_small": [],
    # A class token, embeddings of positions, and layers that are not called.
    "vit_b_16": ["", "encoder", *(n for a in ATTENTION for n in (a, f"{a}.out_proj"))],
    "convnext_tiny": BLOCKS,  # each holds a scale for every channel
}


def build(name, device):
    """A network with random weights, and without torch's slow way of drawing them."""
    options = {"image_size": 32} if name == "vit_b_16" else {}
    with torch.device("meta"):
        model = getattr(torchvision.models, name)(num_classes=5, **options)
    model.to_empty(device=device)
    for module in model.modules():
        for tensor in module.parameters(recurse=False):
            bound = (3 / tensor[0].numel()) ** 0.5 if tensor.ndim > 1 else 0.0
            nn.init.uniform_(tensor, -bound, bound)
        if hasattr(module, "running_mean") or isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    return model.eval()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "name",
    # 129 million weights, and nothing in it that the others have not.
    [pytest.param(n, marks=pytest.mark.slow) if n == "vgg11" else n for n in LEFT_ALONE],
)
def test_a_network_of_torchvision(name, device):
    torch.manual_seed(0)
    model = build(name, device)
    x = torch.randn(2, 3, 32, 32, device=device)
    shown, kinds = repr(model), {n: type(m) for n, m in model.named_modules()}
    with torch.no_grad():
        want = model(x)
    assert want.isfinite().all()

    report = convert(model, p=0.25)
    assert list(report.left_alone) == LEFT_ALONE[name]
    for n, module in model.named_modules():
        assert type(module) is (FORMS[kinds[n]] if n in report.converted else kinds[n])
    with torch.no_grad():
        assert torch.equal(model(x), want)

    prediction = predict_with_uncertainty(model, x, T=3)
    assert prediction.mean.isfinite().all()
    assert prediction.variance.any(dim=1).all()

    layers = dropconnect_layers(model)
    for layer in layers.values():
        layer.train()  # and not BatchNorm, which would normalise two images
    y = model(x)
    assert not torch.equal(y, want)
    y.sum().backward()
    assert all(layer.weight.grad.any() for layer in layers.values())

    assert restore(model) == tuple(report.converted)
    assert repr(model) == shown
    with torch.no_grad():
        assert torch.equal(model.eval()(x), want)
