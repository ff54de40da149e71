"""Rules of reductions, products of activations and moved elements against the operators."""

import pytest
import torch
import torch.nn.functional as F
from rule_cases import SOME, check, inputs

REDUCTIONS = {
    "mean": lambda a, b: a.mean((2, 3)),
    "mean, kept": lambda a, b: a.mean((2, 3), keepdim=True),
    "sum": lambda a, b: a.sum(-1),
    "sum of all": lambda a, b: a.sum((1, 2, 3))[:, None],
    "sum, permuted": lambda a, b: a.permute(0, 2, 3, 1).sum((1, 2)),
    "sum in float64": lambda a, b: a.sum((1, 2, 3), dtype=torch.float64)[:, None],
    "count": lambda a, b: (a > 0).sum(1),
    "amax": lambda a, b: a.amax(1),
    "amin": lambda a, b: a.amin((2, 3)),
    "max": lambda a, b: a.max(1)[0],
    "place of max": lambda a, b: a.max(1)[1],
    "min": lambda a, b: a.min(2)[0],
    "argmax": lambda a, b: a.argmax(1),
    "argmin": lambda a, b: a.argmin(-1),
    "var": lambda a, b: a.var(1),
    "var, biased": lambda a, b: a.var((2, 3), correction=0),
    "var_mean": lambda a, b: torch.cat(torch.var_mean(a, dim=1), 1),
    "std": lambda a, b: a.std((2, 3)),
    "norm": lambda a, b: torch.linalg.vector_norm(a, dim=(1, 2, 3))[:, None],
    "norm of order 1": lambda a, b: torch.linalg.vector_norm(a, 1, dim=1),
    "prod": lambda a, b: a.prod(1),
    "any": lambda a, b: (a > 0.5).any(1),
    "all": lambda a, b: (a > -0.5).all(1),
    "cumsum": lambda a, b: a.cumsum(1),
    "softmax": lambda a, b: a.softmax(1),
    "softmax, last": lambda a, b: a.softmax(-1),
    "log_softmax": lambda a, b: a.log_softmax(-1),
    "log_softmax, channels": lambda a, b: a.log_softmax(1),
    "logsumexp": lambda a, b: a.logsumexp((2, 3)),
    "logsumexp of infinities": lambda a, b: (a.log() * 0 + a).logsumexp(1),
}
LARGE = {
    "sum": lambda a, b: a.sum((1, 2, 3))[:, None],
    "amax": lambda a, b: a.amax((1, 2, 3))[:, None],
    "mean": lambda a, b: a.mean((1, 2, 3))[:, None],
    "var": lambda a, b: a.var((1, 2, 3))[:, None],
}
MOVES = {
    "stack": lambda a, b: torch.stack([a, b], 1),
    "stack, last": lambda a, b: torch.stack([a, b], -1),
    "cat": lambda a, b: torch.cat([a, b], 1),
    "cat, thrice": lambda a, b: torch.cat([a, b, a], -1),
    "cat, dtypes": lambda a, b: torch.cat([a, b.double()], 1),
    "cat, constant": lambda a, b: torch.cat([b, ones(a).expand(len(a), 4, 6, 6)], 1),
    "hstack": lambda a, b: torch.hstack([a, b]),
    "slice_scatter": lambda a, b: torch.slice_scatter(a, b[:, :1] * 2, 1, 0, 1),
    "select_scatter": lambda a, b: torch.select_scatter(a, b[:, 0] * 2, 1, 0),
    "written in place": lambda a, b: written(a, b),
    "gather": lambda a, b: a.gather(1, (b > 0).long()),
    "products": lambda a, b: a @ b.transpose(-1, -2),
    "bmm": lambda a, b: torch.bmm(a[:, 0], b[:, 1]),
    "baddbmm": lambda a, b: torch.baddbmm(a[:, 0], a[:, 0], b[:, 1], beta=0.5, alpha=2),
    "broadcast product": lambda a, b: a @ b[:, :1],
    "outer product": lambda a, b: torch.einsum("bchw,bcij->bhwij", a, b),
    "attention": lambda a, b: F.scaled_dot_product_attention(a, b, a),
    "attention, causal": lambda a, b: F.scaled_dot_product_attention(a, b, b, is_causal=True),
    "attention, heads apart": lambda a, b: attention_of_heads(a, b),
}
SELECTIONS = {
    "index": lambda a, b: a[:, [0, 2]],
    "index from the end": lambda a, b: a[:, :, [-1, 1]],
    "index_select": lambda a, b: a.index_select(1, torch.tensor([0, 1])),
    "embedding": lambda a, b: F.embedding((a[:, :, 0, 0] * 2).long().clamp(0, 8), table(a)),
    "repeat": lambda a, b: a.repeat(1, 2, 1, 3),
    "repeat, permuted": lambda a, b: a.permute(0, 2, 3, 1).repeat(1, 2, 1, 1),
    "tile": lambda a, b: torch.tile(a, (1, 2, 1, 1)),
    "repeat_interleave": lambda a, b: a.repeat_interleave(2, 1),
    "flip": lambda a, b: a.flip(2, 3),
    "roll": lambda a, b: a.roll((1, -2), (2, 3)),
    "tril": lambda a, b: a.tril(),
    "pad": lambda a, b: F.pad(a, (1, 2, 0, 1), value=2.0),
    "pad, cut": lambda a, b: F.pad(a, (-1, 1, 0, -2)),
    "pad, reflect": lambda a, b: F.pad(a, (1, 2, 3, 1), mode="reflect"),
    "pad, replicate": lambda a, b: F.pad(a, (1, 1, 1, 1), mode="replicate"),
    "pad, circular": lambda a, b: F.pad(a, (1, 1, 1, 1), mode="circular"),
    "upsample": lambda a, b: F.interpolate(a, scale_factor=2),
    "upsample to": lambda a, b: F.interpolate(a, size=(5, 9)),
    "pixel_shuffle": lambda a, b: F.pixel_shuffle(a, 2),
    "pixel_unshuffle": lambda a, b: F.pixel_unshuffle(a, 2),
    "channel_shuffle": lambda a, b: F.channel_shuffle(a, 2),
    "unfold": lambda a, b: F.unfold(a, 2),
    "linear": lambda a, b: F.linear(a, table(a)[:3, :6]),
    "linear, permuted": lambda a, b: F.linear(a.permute(0, 2, 3, 1), table(a)[:3, :4]),
    "linear, turned": lambda a, b: F.linear(a.transpose(2, 3), table(a)[:3, :6], table(a)[0, :3]),
    "matmul": lambda a, b: a @ table(a)[:6, :3],
    "matmul from the left": lambda a, b: table(a)[:3, :6] @ a,
    "matrix times vector": lambda a, b: a[:, 0] @ table(a)[0, :6],
    "addmm": lambda a, b: torch.addmm(table(a)[0, :3], a[:, 0, 0], table(a)[:6, :3]),
    "einsum": lambda a, b: torch.einsum("bchw,ck->bkhw", a, table(a)[:4, :2]),
    "attention, masked": lambda a, b: F.scaled_dot_product_attention(
        a, a, a, attn_mask=torch.ones(6, 6, dtype=torch.bool).tril()
    ),
}


def ones(a):
    return torch.ones(1, 4, 6, 6, dtype=a.dtype)


def table(a):
    return torch.linspace(-1, 1, 54, dtype=a.dtype).view(9, 6).sin()


def written(a, b):
    c = a.clone()
    c[:, 0] = b[:, 1] * 2
    c[:, 1:3] = 1.0
    return c


def attention_of_heads(a, b):
    q, k = (t.permute(0, 2, 1, 3).reshape(-1, 6, 4, 6).transpose(1, 2) for t in (a, b))
    return F.scaled_dot_product_attention(q, k, q).transpose(1, 2).flatten(2)


def test_reductions():
    check(list(REDUCTIONS.values()), inputs(4, 6, 6), names=list(REDUCTIONS), steps=8)


def test_one_result_of_many_entries():
    check(list(LARGE.values()), inputs(3, 128, 128, rows=2), names=list(LARGE))


@pytest.mark.parametrize("kind", SOME)
def test_two_tensors(kind):
    check(list(MOVES.values()), inputs(4, 6, 6), kind, names=list(MOVES), steps=16)


def test_selections():
    check(list(SELECTIONS.values()), inputs(4, 6, 6), names=list(SELECTIONS), steps=8)
