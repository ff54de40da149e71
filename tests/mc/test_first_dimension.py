"""Masks are keyed by inputs: another dimension in their place is found, however many it has."""

import pytest
import torch
import torch.nn.functional as F
from fold_models import Apply, B, C, K, by_hand
from torch import nn

from bayes_dc import DropConnectLinear, predict_with_uncertainty
from bayes_dc.mc.moves import MOVES, moves_first

REMEDY = "Keep the inputs along the first dimension, [B, L, K] rather than [L, B, K]"


@pytest.fixture
def x():
    """As many time steps as inputs."""
    return torch.randn(B, B, K, generator=torch.Generator().manual_seed(1))


def steps(x, cells):
    return torch.stack([cells(x[:, t]) for t in range(x.shape[1])])


TO_FRONT = {
    "transpose": lambda x, cells: cells(x.transpose(0, 1)),
    "permute": lambda x, cells: cells(x.permute(1, 0, 2)),
    "movedim": lambda x, cells: cells(torch.movedim(x, 1, 0)),
    "swapaxes": lambda x, cells: cells(x.swapaxes(0, 1)),
    "named": lambda x, cells: cells(torch.transpose(input=x, dim0=0, dim1=1)),
    "in-place": lambda x, cells: cells(x.tanh().transpose_(0, 1)),
    "mT": lambda x, cells: cells(x[..., 0].mT.unsqueeze(-1).repeat(1, 1, K)),
    "einsum": lambda x, cells: cells(torch.einsum("blk,kj->lbj", x, torch.eye(K))),
    "stack": steps,
}


def mask(kind):
    if kind == "dropout":
        return nn.Dropout(0.5)
    if kind == "function":
        return Apply(lambda x: F.dropout(x, 0.5))
    return DropConnectLinear(8, 8, scope="sample")


def model_of(to_front, kind, then=lambda h: h.mean(dim=0)):
    torch.manual_seed(0)
    parts = nn.Linear(K, 8), mask(kind), nn.Linear(8, C)
    return Apply(lambda x, cells, masks, head: head(then(masks(to_front(x, cells)))), *parts)


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("kind", ["dropout", "function", "dropconnect"])
@pytest.mark.parametrize("name", TO_FRONT)
def test_time_steps_in_place_of_as_many_inputs(name, kind, chunk, x):
    """Nothing in the shapes tells them apart; one pass of more inputs does."""
    with pytest.raises(ValueError, match="another dimension in the place of the") as error:
        predict_with_uncertainty(model_of(TO_FRONT[name], kind), x, T=4, chunk=chunk)
    text = str(error.value)
    assert "both have 5 entries, and with 6 inputs they differ" in text
    assert "would be those of time steps, not of inputs, also with chunk=1" in text
    assert REMEDY in text
    assert "batch_first=True" in text


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("kind", ["dropout", "dropconnect"])
@pytest.mark.parametrize("name", TO_FRONT)
def test_inputs_that_come_back_before_the_masks(name, kind, chunk, x):
    """Time first in between: the last step, or the exchange undone, has the inputs first again."""
    for back in (lambda h: h[-1], lambda h: h.transpose(0, 1).mean(dim=1)):
        torch.manual_seed(0)
        to_front = TO_FRONT[name]
        model = Apply(
            lambda x, cells, masks, head, front=to_front, back=back: head(
                masks(back(front(x, cells)))
            ),
            *(nn.Linear(K, 8), mask(kind), nn.Linear(8, C)),
        )
        options = {"T": 7, "chunk": chunk, "return_samples": True}
        got = predict_with_uncertainty(model, x, **options)
        torch.testing.assert_close(got.samples, by_hand(model, x))


def test_more_inputs_that_do_not_fit_are_said(x):
    """A batch size fixed by hand: nothing can be told, and the passes are made."""
    head = nn.Linear(K, C)

    def fixed(x, dropout, head):
        return head(dropout(x.reshape(B, B, K).transpose(0, 1)).mean(dim=0))

    model = Apply(fixed, nn.Dropout(0.5), head)
    with pytest.warns(UserWarning, match="could not be told") as told:
        predict_with_uncertainty(model, x, T=2, chunk=1)
    assert str(told[0].message) == (
        "The model brings another dimension of 5 entries to where the 5 inputs were, before a "
        "layer with masks keyed by input. Which of them its masks are keyed by could not be told, "
        "because the model does not run with 6 inputs (RuntimeError). Keep the inputs along the "
        "first dimension (batch_first=True)."
    )


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("kind", ["dropout", "function", "dropconnect"])
def test_other_numbers_of_steps_are_refused_without_naming_chunk_1(kind, chunk):
    model = model_of(TO_FRONT["transpose"], kind)
    with pytest.raises(ValueError, match="A tensor of 4 rows met passes folded into") as error:
        predict_with_uncertainty(model, torch.ones(B, 4, K), T=7, chunk=chunk)
    text = str(error.value)
    assert "which draws a mask for every input: masks cannot be keyed on a tensor whose" in text
    assert "[B, L, K] rather than [L, B, K]" in text
    assert "batch_first=True" in text
    assert "chunk=1" not in text + "".join(getattr(error.value, "__notes__", []))
    assert "MaskKeys" not in text


def test_what_does_not_move_the_rows():
    x = torch.ones(4, 4, 4)
    for func, args in [
        (torch.transpose, (x, 1, 2)),
        (torch.Tensor.permute, (x, 0, 2, 1)),
        (torch.stack, ([x, x], 1)),
        (torch.einsum, ("bij,bjk->bik", x, x)),
        (torch.einsum, ("...k,kj->...j", x, x[0])),
    ]:
        assert func in MOVES
        assert not moves_first(func, args, {}, func(*args), 4)
    assert moves_first(torch.einsum, ("ib,bi", x[0], x[0]), {}, x, 4)
