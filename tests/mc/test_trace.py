"""Traces: what follows the rows, what is folded, and forwards that have no plan, by name."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_cases import assert_near
from torch import nn

import bayes_dc
from bayes_dc import DropConnectLinear, MaskKey, convert, predict_with_uncertainty
from bayes_dc.mc.markers import planned_dropout
from bayes_dc.mc.plan_errors import PlanError
from bayes_dc.mc.plan_types import Rows
from bayes_dc.mc.trace import trace


class Forward(nn.Module):
    """A function, with layers to use in it."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def head(k=4):
    return DropConnectLinear(k, 3, p=0.5)


def traced(function, shape=(4,), *, dropout=True, channels_last=False, **layers):
    model = Forward(function, **layers)
    x = torch.empty(2, *shape)
    return trace(model, x, dropout=dropout, channels_last=channels_last)


def refused(function, shape=(4,), **layers):
    with pytest.raises(PlanError) as caught:
        traced(function, shape, **layers)
    return str(caught.value)


def ops(found, kind):
    return [
        node.op.removeprefix("aten.").split(".")[0] for node in found.nodes if node.kind == kind
    ]


def test_what_a_mask_touches_is_folded():
    found = traced(
        lambda m, x: m.two(m.one(x).relu() + torch.tanh(x)),
        one=DropConnectLinear(4, 4, p=0.5),
        two=nn.Linear(4, 3),
    )
    assert ops(found, "plain") == ["input", "clone", "tanh"]
    assert ops(found, "folded") == ["bayes_dc", "relu", "add", "linear"]
    assert ops(found, "constant") == ["constant"] * 4
    assert found.output.outs[0].shape == (Rows(1, folded=True), 3)


def test_sizes_that_follow_the_rows():
    found = traced(lambda m, x: m.head(x.reshape(-1, 2).tanh().view(len(x), 4)), head=head())
    shapes = {node.op: node.outs[0].shape for node in found.nodes if node.outs and node.outs[0]}
    assert shapes["aten.tanh.default"] == (Rows(2, folded=False), 2)
    *_, view = [node for node in found.nodes if node.op == "aten.view.default"]
    assert view.args[1] == [Rows(1, folded=False), 4]


def test_sites_say_what_was_asked():
    model = nn.Sequential(
        bayes_dc.DropConnectConv2d(2, 4, 3, 2, padding=1, p=0.25, scope="pass", groups=2),
        nn.Dropout2d(0.5),
        nn.Flatten(),
        DropConnectLinear(16, 3, p=0.3, scale="none", sampler="gaussian"),
        nn.AlphaDropout(0.2),
    )
    found = trace(model, torch.empty(1, 2, 4, 4), dropout=True, channels_last=False)
    conv, channels, linear, alpha = found.sites
    assert (conv.name, conv.kind, conv.key, conv.scope) == ("0", "conv2d", ("layer", 0), "pass")
    assert (conv.keep, conv.bits, conv.factor) == (3, 2, 4 / 3)
    assert (conv.stride, conv.padding, conv.dilation, conv.groups) == ((2, 2), (1, 1), (1, 1), 2)
    assert (channels.kind, channels.key, channels.channels) == ("dropout", ("dropout", 0, 0), True)
    assert (linear.key, linear.factor, linear.sampler) == (("layer", 1), 1.0, "gaussian")
    keep = 1 - alpha.p
    assert math.isclose(
        alpha.factor, (keep + keep * (1 - keep) * 1.7580993408473766**2) ** -0.5, rel_tol=0.02
    )
    assert alpha.key == ("dropout", 1, 0)
    assert [site.index for site in found.sites] == [0, 1, 2, 3]


def test_dropout_by_functions_is_numbered_and_can_be_off():
    def forward(m, x):
        return m.head(F.dropout(F.dropout(x, 0.5, training=False), 0.25))

    assert [s.key for s in traced(forward, head=head()).sites[:2]] == [
        ("function", 0),
        ("function", 1),
    ]
    assert [s.kind for s in traced(forward, dropout=False, head=head()).sites] == ["linear"]


def test_layers_that_drop_nothing_are_plain():
    found = traced(lambda m, x: m.head(m.one(x)), one=DropConnectLinear(4, 4, p=0.0), head=head())
    assert len(found.sites) == 1
    assert "linear" in ops(found, "plain")


def test_a_layer_called_twice_has_its_masks_twice():
    found = traced(lambda m, x: m.head(m.one(m.one(x))), one=DropConnectLinear(4, 4), head=head())
    assert [site.key for site in found.sites] == [("layer", 0), ("layer", 0), ("layer", 1)]


def test_padding_that_keeps_the_size_is_symmetric_in_a_site():
    model = nn.Sequential(
        bayes_dc.DropConnectConv2d(1, 2, 2, padding="same"), nn.Flatten(), head(32)
    )
    found = trace(model, torch.empty(1, 1, 4, 4), dropout=True, channels_last=True)
    assert found.sites[0].padding == (0, 0)
    assert any(node.op.startswith(("aten.pad", "aten.constant_pad")) for node in found.nodes)
    conv = next(node for node in found.nodes if "planned_conv2d" in node.op)
    assert conv.outs[0].strides == ((32, 0), (1, 0), (8, 0), (2, 0))  # channels last


def test_the_model_is_afterwards_as_before():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), head()).train()
    fast = torch.backends.mha.get_fastpath_enabled()
    trace(model, torch.empty(2, 4), dropout=True, channels_last=False)
    assert all(module.training for module in model.modules())
    assert model[3].masks is None
    assert "forward" not in vars(model[2])
    assert torch.backends.mha.get_fastpath_enabled() == fast
    with pytest.raises(PlanError):
        trace(model, torch.empty(2, 5), dropout=True, channels_last=False)
    assert model[3].masks is None
    assert all(module.training for module in model.modules())


def test_a_forward_may_write_into_its_input():
    found = traced(lambda m, x: m.head(x.mul_(2).relu_()), head=head())
    assert ops(found, "plain") == ["input", "clone", "mul", "relu"]


def test_attention_is_traced_by_operators():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    found = traced(lambda m, x: m.head(m.layer(x)[:, 0]), (3, 4), layer=layer, head=head())
    assert "_transformer_encoder_layer_fwd" not in ops(found, "plain")


def test_sources_name_module_and_line():
    found = traced(lambda m, x: m.head(torch.tanh(m.one(x))), one=nn.Linear(4, 4), head=head())
    sources = {node.op: node.source for node in found.nodes}
    assert sources["aten.linear.default"].startswith("one, test_trace.py:")
    assert sources["aten.tanh.default"].startswith("test_trace.py:")


def test_other_sizes_than_multiples_of_the_rows():
    message = refused(lambda m, x: torch.cat([m.head(x), x[:1, :3]]), head=head())
    assert "aten.cat.default at cat (test_trace.py:" in message
    assert "a size is 3 for 2 rows and 32 for 31: it mixes rows. A row of the result may" in message


def test_numbers_of_rows_in_a_computation():
    message = refused(lambda m, x: m.head(x / len(x)), head=head())
    assert (
        "its argument 'other' is 2 for 2 rows: it takes its number of rows from the input"
        in message
    )
    assert "Write the model in terms of the tensor at hand (x.flatten(1)" in message


def test_sizes_by_the_data():
    message = refused(lambda m, x: m.head(x[x[:, 0] > 0]), head=head())
    assert "a size depends on the values of the input" in message or "cannot trace it" in message


def test_choices_by_the_number_of_rows():
    message = refused(lambda m, x: m.head(x.relu() if len(x) > 8 else x.tanh()), head=head())
    assert "the forward makes other calls for 2 rows than for 31. A plan holds for every" in message
    message = refused(lambda m, x: m.head(x.relu().tanh() if len(x) > 8 else x), head=head())
    assert "the forward makes other calls for 2 rows than for 31" in message


def test_buffers_that_are_written():
    class Counting(nn.Sequential):
        def forward(self, x):
            self.count += 1
            return super().forward(x)

    model = Counting(head())
    model.register_buffer("count", torch.zeros(()))
    with pytest.raises(PlanError, match=r"forward writes into its buffers count\. Compute into"):
        trace(model, torch.empty(1, 4), dropout=True, channels_last=False)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda m, x: (m.head(x), x), "returns 2 results rather than one floating point tensor"),
        (lambda m, x: {"scores": m.head(x)}, "returns a container rather than"),
        (lambda m, x: m.head(x)[:, 0], r"returns a tensor [n] torch.float32 rather than"),
        pytest.param(
            lambda m, x: m.head(x).long(),
            "returns a tensor [n, 3] torch.int64",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda m, x: m.head(x).view(-1, 1),
            "returns a tensor [3 n, 1] torch.float32",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda m, x: torch.ones(2, 3),
            "returns a tensor [2, 3] torch.float32",
            marks=pytest.mark.slow,
        ),
        (lambda m, x: m.head.weight, "returns a constant rather than"),
    ],
)
def test_results_that_are_no_scores(function, what):
    message = refused(function, head=head())
    assert what in message
    assert "Wrap the model in a module that picks the class scores." in message


def test_forwards_that_cannot_be_exported():
    message = refused(lambda m, x: m.head(x) if x.sum() > 0 else x, head=head())
    assert "torch.export cannot trace it (" in message
    assert (
        "predict_with_uncertainty(..., engine='folded') runs the model as it is"
        in message.replace("Predict_", "predict_")
    )


def test_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        message = refused(lambda m, x: m.head(x), head=head())
    assert "autocast is on, which would be frozen into the plan. Build it outside" in message


def test_functions_with_a_key_of_their_own():
    message = refused(
        lambda m, x: bayes_dc.dropconnect_linear(x, m.head.weight, key=MaskKey(0)), head=head()
    )
    assert "dropconnect_linear at the forward: it is called with a key of its own rather" in message


def test_masks_for_another_dimension():
    message = refused(lambda m, x: m.head(x.transpose(0, 1)).mean(0), (5, 4), head=head())
    assert (
        "masks are keyed by the inputs, which are not along the first dimension of its" in message
    )
    assert "x [5, 2, 4]" in message
    message = refused(lambda m, x: m.drop(x.t()).t(), drop=nn.Dropout(0.5), head=head())
    assert "Dropout layer 'drop' got 4 rows" in message


def test_dropout_drawn_by_torch():
    layer = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)

    def forward(m, x):
        return m.head(m.layer(x, x, x, need_weights=False)[0][:, 0])

    message = refused(forward, (3, 4), layer=layer, head=head())
    assert (
        "torch draws its dropout (p = 0.5) itself, from a generator. Pass dropout=False" in message
    )
    assert traced(forward, (3, 4), dropout=False, layer=layer, head=head()).sites


def test_markers_compute_nothing():
    with pytest.raises(
        RuntimeError, match="planned_dropout stands for a layer in a graph to be pl"
    ):
        planned_dropout(torch.ones(3), 0)


class Fresh(nn.Module):
    """Makes tensors of its own, of the type of others, and writes into one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        y = self.layer(x)
        factor = y.new_zeros((3,))
        factor[1:] = 2
        shift = x.new_full((1, 3), -0.5) + y.new_ones(3) + torch.zeros_like(factor)
        return y * factor + shift


def test_tensors_that_only_take_the_type_of_others_are_constants():
    model = Fresh()
    convert(model, p=0.5)
    x = torch.rand(5, 4)
    want = predict_with_uncertainty(model, x, 7, engine="folded", return_samples=True)
    got = predict_with_uncertainty(model, x, 7, engine="engine", return_samples=True)
    assert_near(got, want)


@pytest.mark.parametrize(
    "fill", [lambda x: x.new_full((3,), 1 / len(x)), lambda x: x.new_full((3,), float(x.numel()))]
)
def test_entries_that_follow_the_number_of_rows_are_refused(fill):
    class Filled(Fresh):
        def forward(self, x):
            return self.layer(x) + fill(x)

    model = Filled()
    convert(model, p=0.5)
    with pytest.raises(PlanError, match=r"'fill_value' is .* it takes its number of rows"):
        predict_with_uncertainty(model, torch.rand(5, 4), 3, engine="engine")
