"""Plans run in an arena full of NaN: what they compute, what lies where, and what they refuse."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from plan_harness import planned, rules, run_plan
from torch import nn

import bayes_dc
from bayes_dc import DropConnectLinear, predict_with_uncertainty
from bayes_dc.mc.plan import build_plan
from bayes_dc.mc.plan_report import amount
from bayes_dc.mc.trace import trace
from bayes_dc.mc.views import tensor_of

T, B = 5, 4
EPS = torch.finfo(torch.float32).eps


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


def agrees(model, x, **options):
    """The plan of a model that computes what the folded path does, full, in part and in chunks."""
    plan = planned(model, x, T, **options)
    for b in (len(x), 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = predict_with_uncertainty(
                model, x[:b], T, return_samples=True, chunk=1, engine="folded"
            ).samples
        for chunk in (None, 2):
            got = run_plan(plan, x[:b], chunk=chunk).double().softmax(-1)
            assert got.shape == want.shape
            assert (got - want).abs().max() <= 16 * EPS  # rounding may differ with the rows
    return plan


def of(function, shape=(4,), **layers):
    torch.manual_seed(0)
    return Forward(function, **layers), torch.randn(B, *shape)


def test_skip_around_the_first_mask():
    """The plain operand is read again by every pass, with a zero stride."""
    plan = agrees(
        *of(
            lambda m, x: m.head(m.one(x).relu() + torch.tanh(x)),
            one=DropConnectLinear(4, 4),
            head=head(),
        )
    )
    tanh = next(s for s in plan.storages if s.name == "tanh")
    assert tanh.end == len(plan.steps)  # the next chunk reads it again
    assert [step.phase for step in plan.steps if step.name == "tanh"] == ["once"]


def test_residuals_are_not_overwritten():
    def forward(m, x):
        y = m.one(x)
        return m.head(y + m.two(y.relu()).mul_(2) + y)

    agrees(*of(forward, one=DropConnectLinear(4, 4), two=nn.Linear(4, 4), head=head()))


def test_a_view_keeps_its_memory():
    """What is read later through a view must not be written over."""

    def forward(m, x):
        y = m.one(x)
        part = y[:, 1:3]
        return m.head(torch.cat([y.relu(), part], 1))

    plan = agrees(*of(forward, one=DropConnectLinear(4, 4), head=head(6)))
    assert plan.in_place == 0


def test_an_operand_read_in_two_orders_is_not_overwritten():
    def forward(m, x):
        y = m.one(x).view(-1, 2, 2)
        return m.head((y + y.mT).flatten(1))

    assert agrees(*of(forward, one=DropConnectLinear(4, 4), head=head())).in_place == 0


def test_one_to_one_operations_work_in_place():
    plan = agrees(
        *of(
            lambda m, x: m.head(torch.tanh(m.one(x).relu().sigmoid())),
            one=DropConnectLinear(4, 4),
            head=head(),
        )
    )
    assert plan.in_place == 3
    assert {s.name for s in plan.storages} == {"x", "planned_linear", "planned_linear_1"}


def test_plain_memory_is_not_overwritten_by_the_passes():
    plan = agrees(
        *of(
            lambda m, x: m.head(m.one(x) + F.gelu(x.tanh() + 1).neg()),
            one=DropConnectLinear(4, 4),
            head=head(),
        )
    )
    once = [step for step in plan.steps if step.phase == "once"]
    assert {step.name for step in once} == {"tanh", "add", "gelu", "neg"}
    assert plan.in_place >= 3


def test_tokens_with_the_rows_inside():
    """[L, n, E] and [L · n, E], where a row's entries are apart, beside a plain operand."""

    def forward(m, x):
        y = m.one(x)
        flat = m.two(y.transpose(0, 1).reshape(-1, 4)) + x.transpose(0, 1).reshape(-1, 4)
        return m.head(flat.view(3, -1, 4).transpose(0, 1).mean(1))

    agrees(
        *of(
            forward,
            (3, 4),
            one=DropConnectLinear(4, 4, scope="sample"),
            two=nn.Linear(4, 4),
            head=head(),
        )
    )


def test_a_constant_for_every_row():
    def forward(m, x):
        token = m.token.expand(len(x), -1, -1)
        y = torch.cat([token, m.one(x)], 1) + torch.ones(len(x), 4, 4)
        return m.head(y.mean(1) + y.new_full((len(x), 4), 0.5))

    model, x = of(forward, (3, 4), one=DropConnectLinear(4, 4), head=head())
    model.token = nn.Parameter(torch.randn(1, 1, 4))
    plan = agrees(model, x)
    assert "expand" not in {s.name for s in plan.storages}  # read with a zero stride


def test_a_view_that_needs_a_copy():
    def forward(m, x):
        y = m.one(x).transpose(1, 2)
        return m.head(y.reshape(len(x), -1))

    agrees(*of(forward, (2, 4), one=DropConnectLinear(4, 4), head=head(8)))


def test_rows_of_one_entry_keep_their_dimension():
    """``squeeze`` without a dimension would drop that of a single row."""
    model, x = of(
        lambda m, x: m.head(m.one(x).unsqueeze(2).squeeze()),
        one=DropConnectLinear(4, 4),
        head=head(),
    )
    plan = planned(model, x, T)
    assert run_plan(plan, x[:1]).shape == (T, 1, 3)


def test_batch_norm_and_relu_are_fused():
    layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), head(16))
    torch.manual_seed(0)
    model = nn.Sequential(*layers)
    model[1].running_var.uniform_(0.5, 2)
    model[1].running_mean.normal_()
    x = torch.randn(B, 2, 4, 4)
    plan = agrees(model, x)
    assert [step.op for step in plan.steps] == [
        "aten.conv2d.default",
        "bayes_dc.planned_linear.default",
    ]
    scale, _ = plan.derived
    assert (scale.name, scale.op) == (
        "_native_batch_norm_legit_no_training.scale",
        "aten.conv2d.default",
    )
    # Weights that change are seen when what was derived from them is computed again.
    with torch.no_grad():
        model[1].weight.mul_(3)
    old = scale.tensor.clone()
    for storage in plan.derived:
        storage.tensor.copy_(storage.compute(*[tensor_of(source) for source in storage.sources]))
    assert torch.equal(scale.tensor, old * 3)
    assert [v.storage.target for v in scale.sources] == ["1.running_var", "1.weight"]


def test_what_is_read_twice_is_not_fused():
    def forward(m, x):
        y = m.conv(x)
        return m.head((m.norm(y).relu() + y).flatten(1))

    plan = agrees(
        *of(forward, (2, 4, 4), conv=nn.Conv2d(2, 4, 3), norm=nn.BatchNorm2d(4), head=head(16))
    )
    assert plan.derived == ()


def test_constants_are_computed_once():
    def forward(m, x):
        weight = torch.cat([m.one.weight * 2, m.one.weight.t()], 0)
        return m.head(F.linear(x, weight))

    model, x = of(forward, one=nn.Linear(4, 4), head=head(8))
    plan = agrees(model, x)
    assert {s.op for s in plan.derived} == {"aten.mul.Tensor", "aten.cat.default"}
    assert {s.target for s in plan.constants if s.kind == "constant"} >= {
        "one.weight",
        "head.weight",
    }


@pytest.fixture(scope="module")
def model():
    """A network that is traced once."""
    torch.manual_seed(0)
    network = bayes_dc.models.mlp(6, 3, (8, 8))
    bayes_dc.convert(network, p=0.5)
    once = trace(network, torch.empty(1, 6), dropout=True, channels_last=False)

    def traced(other, *args, **options):
        return once if other is network else trace(other, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayes_dc.mc.plan.trace", traced)  # until the end of this file
        yield network


def test_passes_of_a_chunk(model):
    x = torch.empty(2, 6)
    plan = planned(model, x, 10, capacity=4, rows=13)
    assert (plan.passes, plan.rows) == (3, 12)
    assert [plan.passes_for(b) for b in (1, 2, 3, 4)] == [10, 6, 4, 3]
    least = planned(model, x, 10, capacity=4, rows=1)
    assert least.passes == 1
    exact = planned(model, x, 10, capacity=4, memory=plan.arena_bytes)
    assert (exact.passes, exact.arena_bytes) == (3, plan.arena_bytes)
    assert planned(model, x, 10, capacity=4, memory=plan.arena_bytes - 1).passes == 2
    with pytest.raises(
        ValueError, match=r"memory must be at least \d+ bytes, the arena for one pass of 4 in"
    ):
        planned(model, x, 10, capacity=4, memory=100)


def test_a_plan_reports_every_buffer(model):
    plan = planned(model, torch.empty(2, 6), 10)
    text = str(plan)
    lines = text.splitlines()
    assert (
        lines[0]
        == "Plan for up to 2 inputs and 10 passes on cpu, 10 passes in a chunk, mode strict"
    )
    assert "arena" in lines[2]
    assert "lower bound" in lines[2]
    assert f"without a plan: {amount(plan.eager_bytes)} of tensors at once" in lines[3]
    assert "results in place" in lines[4]
    table = lines[5:]
    assert table[0].split() == ["buffer", "operator", "kind", "bytes", "steps", "offset"]
    assert len(table) == 1 + len(plan.storages)
    for storage, line in zip(plan.storages, table[1:], strict=True):
        words = (
            storage.name,
            storage.op,
            storage.kind,
            f"{storage.nbytes:,}",
            f"{storage.offset:,}",
        )
        assert all(word in line for word in words)
    assert plan.arena_bytes == plan.lower_bound < plan.sum_bytes
    assert plan.library_workspaces == ()


def test_library_workspaces_are_reported(model):
    def linear(c, *args):
        out = c.out()
        c.step(lambda bind: [], list(args[:1]), [out], library_workspace=True)
        return out

    def found(target, device):
        return linear if "planned" in str(target) else rules(target, device)

    plan = build_plan(model, torch.empty(2, 6), 10, rules=found, mode="workspace")
    assert plan.library_workspaces[0] == "planned_linear (bayes_dc.planned_linear.default)"
    assert "libraries may allocate in planned_linear (bayes_dc" in str(plan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"T": 0}, "T must be an integer of at least 1; got 0"),
        ({"T": 2.5}, "T must be an integer of at least 1; got 2.5"),
        ({"T": 2, "capacity": True}, "capacity must be an integer of at least 1; got True"),
        ({"T": 2, "rows": 0}, "rows must be an integer of at least 1; got 0"),
        ({"T": 2, "mode": "fast"}, 'mode must be "strict" or "workspace"; got \'fast\''),
    ],
)
def test_arguments_out_of_range(model, options, message):
    with pytest.raises(ValueError, match=message):
        build_plan(model, torch.empty(2, 6), **options)


def test_large_tensors_take_fewer_passes(model, monkeypatch):
    monkeypatch.setattr("bayes_dc.mc.plan.ELEMENTS", 100)  # a layer of 8 has 32 elements a pass
    assert planned(model, torch.empty(4, 6), 50).passes == 3
    assert planned(model, torch.empty(4, 6), 50, rows=40).passes == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "lenet5", "resnet18", "resnet20", "vgg16_bn"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_our_models(name, dropout):
    torch.manual_seed(0)
    network = getattr(bayes_dc.models, name)((3, 32, 32), 10, dropout=dropout)
    bayes_dc.convert(network, p=0.3)
    agrees(network, torch.randn(2, 3, 32, 32))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vgg11", "mobilenet_v3_small", "convnext_tiny"])
def test_models_of_torchvision(name):
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    network = getattr(models, name)(num_classes=5)
    bayes_dc.convert(network, p=0.1)
    agrees(network, torch.randn(2, 3, 64, 64))


@pytest.mark.slow
def test_a_vision_transformer():
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    network = models.VisionTransformer(32, 8, 2, 2, 64, 128, num_classes=5, dropout=0.1)
    nn.init.normal_(network.heads.head.weight)
    bayes_dc.convert(network, p=0.1, select=lambda name, layer: "mlp" in name)
    agrees(network, torch.randn(2, 3, 32, 32))
