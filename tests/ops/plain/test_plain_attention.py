"""Attention without a matrix of scores, against torch's in float64."""

import re

import pytest
import torch
import torch.nn.functional as F
from plain_harness import DTYPES, TRITON, as_exact_as, equal, numbers, on, room_like


def attend(q, k, v, out, **options):
    from bayes_dc.ops.plain.triton_attention import launch_attention

    launch_attention(q, k, v, out, scale=q.shape[-1] ** -0.5, **options)


def operands(*leading, L, S, D, DV=None, dtype=torch.float32, backend="interpreter"):
    sizes = (L, D), (S, D), (S, DV or D)
    return on(backend, *(numbers(*leading, *s, dtype=dtype, seed=i) for i, s in enumerate(sizes)))


def in_steps(q, k, v, causal=False, mask=None):
    """Scores, softmax and product in the type of ``q``: what the error is compared with."""
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -float("inf"))
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -float("inf"))
            if mask.dtype == torch.bool
            else (scores + mask)
        )
    return torch.softmax(scores, -1) @ v


def check(q, k, v, backend, causal=False, mask=None):
    out = room_like(q.new_empty(*q.shape[:-1], v.shape[-1]))
    attend(q, k, v, out, causal=causal, mask=mask)
    wide = None if mask is None else mask if mask.dtype == torch.bool else mask.double()
    want = F.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=wide, is_causal=causal
    )
    as_exact_as(out, in_steps(q, k, v, causal, mask), want, backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_accuracy(causal, dtype, backend):
    """Several blocks of queries and of keys with tails, features that are no power of two."""
    q, k, v = operands(2, 3, L=37, S=35, D=20, DV=12, dtype=dtype, backend=backend)
    check(q, k, v, backend, causal=causal)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("kind", ["bool", "add", "one for all heads"])
def test_masks(kind, backend):
    q, k, v = operands(2, 3, L=19, S=23, D=16, backend=backend)
    if kind == "bool":
        mask = numbers(2, 1, 19, 23, dtype=torch.float32) > -0.5
        mask[..., 0] = True
    else:
        mask = numbers(*((19, 23) if kind.startswith("one") else (2, 3, 19, 23)), dtype=q.dtype)
    (mask,) = on(backend, mask)
    check(q, k, v, backend, mask=mask)


@pytest.mark.parametrize("backend", TRITON)
def test_layouts(backend):
    """Heads cut out of one projection, the result in the layout of tokens; passes share keys."""
    tokens = numbers(2, 18, 3, 2, 16, dtype=torch.float32)  # image, token, q k v, head, feature
    (tokens,) = on(backend, tokens)
    q, k, v = (t.transpose(1, 2) for t in tokens.unbind(2))
    out = room_like(q.transpose(1, 2).contiguous()).transpose(1, 2)
    attend(q, k, v, out)
    eager = in_steps(q, k, v)
    as_exact_as(out, eager, in_steps(q.double(), k.double(), v.double()), backend)
    passes = torch.stack([q, 2 * q, -q])
    shared = [t.expand(3, *t.shape) for t in (k, v)]
    check(passes, *shared, backend)


@pytest.mark.parametrize("backend", TRITON)
def test_in_place_of_the_queries(backend):
    q, k, v = operands(2, L=40, S=21, D=16, backend=backend)
    want = room_like(q)
    attend(q, k, v, want)
    attend(q, k, v, q)
    equal(q, want)


@pytest.mark.parametrize("backend", TRITON)
def test_a_query_that_sees_nothing_gives_zeros(backend):
    q, k, v = operands(1, L=5, S=33, D=16, backend=backend)
    mask = torch.ones(5, 33, dtype=torch.bool, device=q.device)
    mask[2] = False
    mask[3, :20] = False  # nothing in its first block
    out = room_like(q)
    attend(q, k, v, out, mask=mask)
    assert not out[0, 2].any()
    rest = [0, 1, 3, 4]
    want = in_steps(q.double(), k.double(), v.double(), mask=mask)
    as_exact_as(out[:, rest], in_steps(q, k, v, mask=mask)[:, rest], want[:, rest], backend)


@pytest.mark.parametrize("backend", TRITON)
def test_sums_of_values_are_exact(backend):
    """Equal scores, a power of two of them: the mean of integers, bit for bit."""
    q, k, v = (t.round() for t in operands(3, L=6, S=32, D=16, backend=backend))
    out = room_like(q)
    attend(q * 0, k, v, out)
    equal(out, v.mean(1, keepdim=True).expand(out.shape))


@pytest.mark.parametrize("backend", TRITON)
def test_no_queries(backend):
    q, k, v = operands(2, L=0, S=4, D=16, backend=backend)
    attend(q, k, v, q.clone())


@pytest.mark.parametrize("backend", TRITON)
def test_too_many_features_are_refused(backend):
    q, k, v = operands(1, L=2, S=2, D=300, backend=backend)
    said = "attention on the GPU takes at most 256 features in a head; got q 300 and v 300."
    with pytest.raises(ValueError, match=re.escape(said)):
        attend(q, k, v, q.clone())
