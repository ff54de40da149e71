"""What has no plan, by name: operations along the rows, and operators without a rule."""

import pytest
import torch
from plan_harness import any_rule, planned, rules
from torch import nn

from bayes_dc import DropConnectLinear
from bayes_dc.mc.plan import build_plan
from bayes_dc.mc.plan_errors import PlanError
from bayes_dc.mc.plan_types import Passes, Rows

T, B = 5, 4


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


def of(function, shape=(4,), **layers):
    torch.manual_seed(0)
    return Forward(function, **layers), torch.randn(B, *shape)


MIXING = {
    "softmax": lambda x: x.softmax(0),
    "mean": lambda x: x - x.mean(0),
    "mean kept": lambda x: x - x.mean(0, keepdim=True),
    "row": lambda x: x + x[:1],
    "last row": lambda x: x + x[-1],
    "flip": lambda x: x.flip(0),
    "cumsum": lambda x: x.cumsum(0),
    "twice": lambda x: torch.cat([x, x])[: len(x)],
    "rows unbound": lambda x: torch.stack(x.unbind(0)),
    "product of rows": lambda x: x @ x.t() @ x,
    "all": lambda x: x.mean() + x,
    "transposed": lambda x: x.t().contiguous().view(x.shape),
    "two orders": lambda x: x.reshape(-1, 2) + x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2),
}


OFTEN = {"softmax", "mean kept", "row", "transposed", "two orders"}


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(function, id=name, marks=[] if name in OFTEN else pytest.mark.slow)
        for name, function in MIXING.items()
    ],
)
def test_what_mixes_rows_is_refused(function):
    model, x = of(lambda m, x: m.head(function(x)), head=head())
    if function is MIXING["two orders"]:
        model, x = of(lambda m, x: m.head(function(x).view(-1, 4)), head=head())
    with pytest.raises(PlanError) as caught:
        planned(model, x, T)
    message = str(caught.value)
    known = ("mixes rows", "whose rows it would mix", "takes its number of rows", "other calls for")
    assert any(text in message for text in known)
    assert "test_plan_refusals.py:" in message or "other calls" in message


def test_a_model_without_masks():
    with pytest.raises(PlanError, match="no layer with masks comes before it, so every pass would"):
        planned(nn.Sequential(nn.Linear(4, 3)), torch.randn(B, 4), T)


def only(**named):
    """The rules of the harness, but for some operators."""

    def found(target, device):
        name = str(target).split(".")[1]
        return named[name] if name in named else rules(target, device)

    return found


def refused(function, **named):
    model, x = of(lambda m, x: m.head(function(x)), head=head())
    with pytest.raises(PlanError) as caught:
        build_plan(model, x, T, rules=only(**named))
    return str(caught.value)


def test_an_operator_without_a_rule():
    message = refused(torch.erfinv, erfinv=None)
    assert message.startswith(
        "No plan without allocations for aten.erfinv.default at erfinv (test_plan_refusals.py:"
    )
    assert (
        "there is no rule for it on cpu. Register one with bayes_dc.mc.lowering.lowering, or"
        in message
    )
    assert "engine='folded') runs the model as it is" in message


def test_random_operators():
    message = refused(lambda x: x + torch.rand_like(x), rand_like=None)
    assert "it draws from torch's generator" in message


def test_results_that_no_rule_computes():
    def first_only(c, *args, **kwargs):
        return any_rule(c, *args, **kwargs)[0], None

    message = refused(lambda x: x + x.max(1, keepdim=True)[1], max=first_only)
    assert "aten.max.dim at max" in message
    assert "its result 1 is not computed in a plan" in message


def test_other_devices():
    message = refused(lambda x: x.to("meta").to("cpu"))
    assert "it moves a tensor from cpu to meta" in message


def test_rules_can_ask_for_the_rows():
    def rows_first(c, x):
        return any_rule(c, c.rows_first(x))

    assert "masks are keyed by the inputs, which are not along its first dimension" in refused(
        lambda x: x.t().tanh().t(), tanh=rows_first
    )

    def last_two(c, x):
        c.within_rows(x, (-1, -2))
        return any_rule(c, x)

    assert "dimension of the inputs, whose rows it would mix" in refused(torch.tanh, tanh=last_two)


def test_aligned_views():
    """What a rule gets for an outer and an inner part of a row, and for a constant."""
    seen = []

    def add(c, x, y):
        out = c.out()
        seen.append(c.aligned(out, x, y, c.constant(lambda: torch.ones(1, 2))))
        return any_rule(c, x, y)

    def forward(m, x):
        y = m.one(x)
        inner = lambda t: t.view(-1, 2, 2, 2).transpose(0, 1).reshape(-1, 2)  # noqa: E731
        return m.head((inner(y) + inner(x)).view(2, -1, 2, 2).transpose(0, 1).flatten(1))

    model, x = of(forward, (8,), one=DropConnectLinear(8, 8), head=head(8))
    build_plan(model, x, T, rules=only(add=add))
    ((out, folded, plain, constant),) = seen
    assert out.shape == folded.shape == plain.shape == (2, Passes(), Rows(1, folded=False), 2, 2)
    assert constant.shape == (1, 1, 1, 1, 2)
    assert folded.layout(3, 5).strides == (60, 12, 4, 2, 1)
    assert plain.layout(3, 5).strides == (12, 0, 4, 2, 1)


def test_numbers_made_of_tensors():
    """They would be frozen: the tensor may be another at the next call."""
    model, x = of(lambda m, x: m.head(x * m.scale.item()), head=head())
    model.register_buffer("scale", torch.tensor(2.0))
    with pytest.raises(
        PlanError, match=r"it makes a Python number of a tensor, which may be anoth"
    ):
        planned(model, x, T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64])
@pytest.mark.parametrize("first", [nn.Linear, DropConnectLinear])
def test_inputs_of_another_dtype(first, dtype):
    """Tensors without values are multiplied in any dtypes; those of a call are not."""
    model, x = of(lambda m, x: m.head(m.first(x)), first=first(4, 4), head=head())
    with pytest.raises(PlanError, match=rf"it gets {dtype} and torch.float32, which torch does no"):
        planned(model, x.to(dtype), T)


def test_recurrent_layers_draw_nothing():
    model, x = of(lambda m, x: m.head(m.cell(x)[0][:, -1]), (3, 4), head=head())
    model.cell = nn.LSTM(4, 4, batch_first=True)
    with pytest.raises(PlanError, match="there is no rule for it on cpu"):
        build_plan(model, x, T)
