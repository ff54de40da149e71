"""Rules of layers without masks: convolutions, pools, normalisation, attention, in any layout."""

import pytest
import torch
import torch.nn.functional as F
from rule_cases import Operations, Runner, T, check, inputs
from torch import nn

from bayes_dc.mc.lowering import conv, pieces
from bayes_dc.mc.plan import build_plan
from bayes_dc.mc.plan_errors import PlanError


class ChannelsLast(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))


class OfChannel(nn.Module):
    """A layer of signals or rows, from one channel of the images."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x[:, 0])


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = nn.MultiheadAttention(6, 2, batch_first=True), options

    def forward(self, x):
        return self.layer(x[:, 0], x[:, 1], x[:, 2], **self.options)[0]


CONVOLUTIONS = {
    "3 × 3": lambda: nn.Conv2d(4, 6, 3),
    "strided": lambda: nn.Conv2d(4, 6, 3, padding=1, stride=2, bias=False),
    "groups": lambda: nn.Conv2d(4, 6, 3, groups=2, padding=2, dilation=2),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2, padding=1),
    "depthwise, wide": lambda: nn.Conv2d(4, 4, 7, groups=4, padding=3, bias=False),
    "1 × 1": lambda: nn.Conv2d(4, 6, 1),
    "1 × 1, groups": lambda: nn.Conv2d(4, 6, 1, groups=2, bias=False),
    "1 × 1, strided": lambda: nn.Conv2d(4, 6, 1, stride=2),
    "same": lambda: nn.Conv2d(4, 4, 3, padding="same"),
    "reflected": lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    "BatchNorm and ReLU": lambda: nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()
    ),
    "depthwise, BatchNorm": lambda: nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6()
    ),
    "signals": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(4, 3, 3, stride=2, padding=1), nn.BatchNorm1d(3), nn.ReLU()
    ),
}
LAYERS = {
    "BatchNorm": lambda: nn.BatchNorm2d(4),
    "BatchNorm, not affine": lambda: nn.BatchNorm2d(4, affine=False),
    "linear and BatchNorm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5), nn.ReLU()
    ),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "InstanceNorm": lambda: nn.InstanceNorm2d(4, affine=True),
    "InstanceNorm, running": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    "LayerNorm": lambda: nn.LayerNorm(6),
    "LayerNorm of all": lambda: nn.LayerNorm((4, 6, 6)),
    "LayerNorm, no bias": lambda: nn.LayerNorm(6, bias=False),
    "LayerNorm, not affine": lambda: nn.LayerNorm(6, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm((6, 6), eps=1e-3),
    "PReLU": lambda: nn.PReLU(4),
    "attention": lambda: Attention(need_weights=False),
    "attention and weights": Attention,
    "encoder": lambda: OfChannel(
        nn.TransformerEncoderLayer(6, 2, 12, batch_first=True, dropout=0.0)
    ),
}
POOLS = {
    "max": lambda: nn.MaxPool2d(2),
    "max, overlapping": lambda: nn.MaxPool2d(3, 2, 1),
    "max, dilated": lambda: nn.MaxPool2d(2, 1, 0, 2),
    "max, rounded up": lambda: nn.MaxPool2d(4, 4, ceil_mode=True),
    "mean": lambda: nn.AvgPool2d(2),
    "mean, without padding": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "mean, divisor": lambda: nn.AvgPool2d(4, 4, ceil_mode=True, divisor_override=3),
    "mean of all": lambda: nn.AdaptiveAvgPool2d(1),
    "adaptive mean": lambda: nn.AdaptiveAvgPool2d((4, 5)),
    "adaptive max": lambda: nn.AdaptiveMaxPool2d(4),
    "max of signals": lambda: OfChannel(nn.MaxPool1d(3, 2, 1)),
    "mean of signals": lambda: OfChannel(nn.AvgPool1d(3, 2, 1)),
    "adaptive mean of signals": lambda: OfChannel(nn.AdaptiveAvgPool1d(5)),
    "power": lambda: nn.LPPool2d(2, 2),
}


def layers(table):
    torch.manual_seed(0)
    made = [make() for make in table.values()]
    for layer in made:
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if tensor.is_floating_point():
                nn.init.uniform_(tensor, 0.5 if "var" in name else -1, 1)
    return made


@pytest.mark.parametrize("kind", ["folded", pytest.param("plain", marks=pytest.mark.slow)])
def test_convolutions(kind):
    check(layers(CONVOLUTIONS), inputs(4, 6, 6), kind, names=list(CONVOLUTIONS), steps=16)


def test_convolutions_by_a_library():
    """Mode "workspace" says which steps allocate."""
    names = ["groups", "BatchNorm and ReLU", "signals"]
    some = layers({n: CONVOLUTIONS[n] for n in names})
    plan = check(some, inputs(4, 6, 6), names=names, mode="workspace", steps=16)
    assert len(plan.library_workspaces) == len(names)


def test_layers():
    check(layers(LAYERS), inputs(4, 6, 6), names=list(LAYERS), steps=16)


def test_pools():
    check(layers(POOLS), inputs(4, 6, 6), names=list(POOLS))


def test_channels_last():
    names = ["3 × 3", "depthwise", "1 × 1", "1 × 1, groups", "groups"]
    some = {n: CONVOLUTIONS[n] for n in names} | {
        n: POOLS[n] for n in ("max", "mean", "mean of all")
    }
    some |= {n: LAYERS[n] for n in ("BatchNorm", "GroupNorm")}
    turned = [ChannelsLast(layer) for layer in layers(some)]
    check(turned, inputs(4, 6, 6), names=list(some), steps=16)


SIZES = [1 << 13, *(pytest.param(1 << n, marks=pytest.mark.slow) for n in (9, 15))]


@pytest.mark.parametrize("size", SIZES)
def test_scratch_in_pieces(size, monkeypatch):
    """Images, and rows of an image, that do not fit into it together."""
    wanted = [
        nn.Conv2d(4, 3, 3, padding=1),
        nn.Conv2d(4, 3, 5, padding=2, stride=2),
        nn.Conv2d(4, 3, 3, padding=3, dilation=3, groups=1),
        nn.MaxPool2d(3, 2, 1),
        ChannelsLast(nn.Conv2d(4, 3, 3, padding=1)),
    ]
    for module in (pieces, conv):
        monkeypatch.setattr(module, "PIECE_BYTES", size)
    check(wanted, inputs(4, 17, 11, rows=3), names=[str(m) for m in wanted], steps=16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    names = ["BatchNorm", "GroupNorm", "LayerNorm", "LayerNorm of all"]
    some = {n: LAYERS[n] for n in names} | {n: POOLS[n] for n in ("max", "mean", "adaptive mean")}
    model = [layer.to(dtype) for layer in layers(some)]
    check(model, inputs(4, 6, 6).to(dtype), names=list(some))


REFUSED = {
    "products in bfloat16": (
        lambda a, b: (a.bfloat16() @ b.bfloat16()).float(),
        "multiplies torch.bfloat16 by a library that allocates its own memory",
    ),
    "uneven padding": (nn.Conv2d(4, 4, 4, padding="same"), "one zero more at the end"),
    "computed weight": (
        lambda a, b: F.conv2d(a, b[0, :, None, :3, :3].contiguous(), groups=4),
        "",
    ),
    "computed index": (lambda a, b: a[:, (b[0, 0, 0] > 0).long()], ""),
    "rows": (lambda a, b: a.softmax(0), "mix"),
    "sum of everything": (lambda a, b: a * a.sum(), "mix"),
    "batch statistics": (
        lambda a, b: F.batch_norm(a, None, None, training=True),
        "mix",
    ),
    "attention between inputs": (
        lambda a, b: F.scaled_dot_product_attention(*[a.transpose(0, 2)] * 3).transpose(0, 2),
        "mix",
    ),
    "mask of the input": (
        lambda a, b: F.scaled_dot_product_attention(a, a, a, attn_mask=b > 0),
        "its mask depends on the input",
    ),
    "query without keys": (
        lambda a, b: F.scaled_dot_product_attention(
            a, a, a, attn_mask=torch.zeros(6, 6, dtype=torch.bool)
        ),
        "leaves a query without any key",
    ),
    "unusual einsum": (
        lambda a, b: torch.einsum("bcii,bcij->bcj", a, b),
        "has not the form of one product of two tensors",
    ),
    "all along several dimensions": (
        lambda a, b: torch.all(a > 0, dim=(1, 2)),
        "several dimensions at once",
    ),
    "no rule": (lambda a, b: torch.special.zeta(a + 3, b + 3), "there is no rule for it on cpu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    """By name, with operator, node, line of the model, reason and remedy."""
    function, reason = REFUSED[case]
    model = Operations([function], "folded").eval()
    with pytest.raises(PlanError, match="No plan without allocations for") as refused:
        build_plan(model, inputs(4, 6, 6), T)
    assert reason in str(refused.value)
    assert refused.value.remedy


def test_scratch_is_in_the_plan():
    """A convolution's patches, at most a MiB of them."""
    model = Operations([nn.Conv2d(16, 8, 3, padding=1)], "folded").eval()
    plan = build_plan(model, inputs(16, 64, 64), T)
    patches = [s for s in plan.storages if s.name.endswith("patches")]
    assert [s.nbytes <= pieces.PIECE_BYTES for s in patches] == [True]
    assert Runner(plan, inputs(16, 64, 64), T)().isfinite().all()
