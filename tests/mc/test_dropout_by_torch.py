"""Dropout whose masks torch draws itself: seeded, and said."""

import pytest
import torch
import torch.nn.functional as F
from fold_models import POSITIONS, Apply, C, K, T
from torch import nn

from bayes_dc import DropConnectLinear, predict_with_uncertainty


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        torch.manual_seed(0)
        self.cells = kind(K, 8, **options)
        self.head = nn.Linear(8, C)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


FOREIGN = [
    (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.5, batch_first=True), "LSTM", 0.5),
    (lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.5, batch_first=True), "GRU", 0.5),
    (lambda: Recurrent(nn.RNN, num_layers=2, dropout=0.5, batch_first=True), "RNN", 0.5),
    (lambda: attention(F.scaled_dot_product_attention), "scaled_dot_product_attention", 0.25),
    (lambda: encoder(), "multi-head attention", 0.25),
]


def attention(function):
    torch.manual_seed(0)
    return Apply(
        lambda x, head: head(function(x, x, x, dropout_p=0.25)[:, 0]),
        nn.Linear(K, C),
    )


def encoder(**options):
    torch.manual_seed(0)

    class Attends(nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x, need_weights=False)[0].flatten(1)

    layer = Attends(K, 2, dropout=0.25, batch_first=True, **options)
    return nn.Sequential(layer, nn.Linear(POSITIONS * K, C))


@pytest.mark.parametrize(("make", "name", "p"), FOREIGN, ids=[name for _, name, _ in FOREIGN])
def test_masks_that_torch_draws(make, name, p, tokens):
    """They repeat, they are said to depend on the batch, and no generator is touched."""
    model = make().eval()
    state = torch.get_rng_state()
    results = []
    for _ in range(2):
        with pytest.warns(UserWarning, match=f"Dropout inside {name} is drawn by torch") as told:
            results.append(predict_with_uncertainty(model, tokens, T=T, return_samples=True))
        assert len(told) == 1
    assert str(told[0].message).endswith(
        "it was seeded from the seed and the first pass of each forward, so results repeat, but "
        "they depend on batch and chunk."
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(results[0].samples, results[1].samples)
    assert results[0].dropout == {name: p}
    assert len(results[0].samples.flatten(1).unique(dim=0)) == T
    off = nn.Sequential(model, DropConnectLinear(C, C))
    quiet = predict_with_uncertainty(off, tokens, T=2, dropout=False)
    assert quiet.dropout == {}
    with pytest.warns(UserWarning, match="drawn by torch"):
        other = predict_with_uncertainty(model, tokens, T=T, seed=5)
    assert not torch.equal(other.mean, results[0].mean)


def test_either_interface_of_the_tf32_switch(tokens):
    """torch's own context for cuDNN raises once its parts have been given different switches."""
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        with pytest.warns(UserWarning, match="drawn by torch"):
            predict_with_uncertainty(FOREIGN[0][0](), tokens, T=2)
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    assert torch.backends.cudnn.enabled


def test_torch_draws_for_folded_rows_where_it_can(tokens):
    """After the first mask of ours all passes go through in one call."""
    model = nn.Sequential(nn.Dropout(0.5), *encoder())
    with pytest.warns(UserWarning, match="drawn by torch"):
        got = predict_with_uncertainty(model, tokens, T=T, chunk=T, return_samples=True)
    assert got.dropout == {"0": 0.5, "multi-head attention": 0.25}
    assert len(got.samples.flatten(1).unique(dim=0)) == T


def test_torch_cannot_draw_for_passes_that_are_not_there_yet(tokens):
    with pytest.raises(ValueError, match="multi_head_attention_forward draws its dropout") as error:
        predict_with_uncertainty(encoder(), tokens, T=T, chunk=3)
    assert str(error.value).endswith(
        "it cannot be repeated for 3 folded passes. Pass chunk=1, which runs one pass at a time, "
        "or dropout=False, which leaves dropout off."
    )


@pytest.mark.parametrize("options", [{"num_layers": 1}, {"num_layers": 2, "dropout": 0.0}], ids=str)
def test_recurrent_nets_without_dropout_draw_nothing(options, tokens):
    model = nn.Sequential(Recurrent(nn.LSTM, batch_first=True, **options), DropConnectLinear(C, C))
    assert predict_with_uncertainty(model, tokens, T=2).dropout == {}


def test_packed_sequences(tokens):
    class Packed(Recurrent):
        def forward(self, x):
            lengths = torch.full((len(x),), POSITIONS)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.head(self.cells(packed)[1][0][-1])

    model = nn.Sequential(Packed(nn.LSTM, num_layers=2, dropout=0.5, batch_first=True))
    with pytest.warns(UserWarning, match="Dropout inside LSTM"):
        got = predict_with_uncertainty(model, tokens, T=3)
    assert got.dropout == {"LSTM": 0.5}
    assert (got.variance > 0).all()
