"""Inputs that a layer with masks refuses, and what it says."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayes_dc import DropConnectConv2d, DropConnectLinear
from bayes_dc.nn import MaskKeys


@pytest.mark.parametrize(
    "layer", [DropConnectConv2d(4, 6, 3), DropConnectLinear(4, 6), nn.Dropout(0.5)], ids=repr
)
@pytest.mark.parametrize(
    ("x", "text"),
    [
        ([1], "x must be a torch.Tensor; got list. Wrap it: torch.as_tensor(x)."),
        (None, "x must be a torch.Tensor; got NoneType."),
        (torch.ones(2, 4).to_sparse(), "x must be a dense tensor; got layout torch.sparse_coo."),
    ],
    ids=["list", "none", "sparse"],
)
def test_no_dense_tensor(layer, x, text):
    keys = MaskKeys(0)
    with keys.attached(layer):
        keys.set(pass_ids=0, sample_ids=torch.arange(2))
        with pytest.raises(TypeError) as caught:
            layer(x)
    assert text in str(caught.value)
    if not isinstance(layer, nn.Dropout):
        with pytest.raises(TypeError) as caught:
            layer(x)
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "padding", "smallest", "text"),
    [
        ("reflect", 2, (3, 3), "with padding 2 × 2 needs images of at least 3 × 3; x has 2 × 3."),
        ("reflect", (1, 3), (2, 4), "padding 1 × 3 needs images of at least 2 × 4; x has 1 × 4."),
        ("circular", 2, (2, 2), "with padding 2 × 2 needs images of at least 2 × 2; x has 1 × 2."),
        ("circular", (1, 3), (1, 3), "needs images of at least 1 × 3; x has 0 × 3."),
        ("replicate", 2, (1, 1), "needs images of at least 1 × 1; x has 0 × 1."),
    ],
    ids=str,
)
def test_images_too_small_for_the_padding(mode, padding, smallest, text):
    """And the smallest that fits is padded as torch pads it."""
    layer = DropConnectConv2d(2, 3, 3, padding=padding, padding_mode=mode, p=0.0)
    for lead in ((1, 2), (2,)):
        x = torch.randn(*lead, *smallest)
        sides = layer._reversed_padding_repeated_twice
        want = F.conv2d(F.pad(x, sides, mode=mode), layer.weight, layer.bias)
        assert torch.equal(layer(x), want)
        with pytest.raises(ValueError, match="images of at least") as caught:
            layer(x[..., 1:, :])
        assert f"padding_mode={mode!r}" in str(caught.value)
        assert text in str(caught.value)
        assert "padding_mode='zeros', which takes any size." in str(caught.value)
    with pytest.raises(ValueError, match=r"x must have shape \[rows, C, H, W\] or \[C, H, W\]"):
        layer(torch.ones(3, 3))


def test_an_unbatched_image_in_several_passes_needs_its_id():
    layer, keys = DropConnectConv2d(2, 3, 3), MaskKeys(0)
    with keys.attached(layer):
        keys.set(pass_ids=torch.arange(2), sample_ids=torch.arange(1))
        assert layer(torch.ones(2, 4, 4)).shape == (2, 3, 2, 2)
