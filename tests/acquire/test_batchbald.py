"""BatchBALD against the definition, and what joint samples change."""

import itertools
import math
import sys

import pytest
import torch

from bayes_dc.acquire import batchbald, choose
from bayes_dc.metrics import expected_entropy, mutual_information


def sharp(T, N, C, seed=0, power=4):
    """Random distributions, some of them nearly sure."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(T, N, C, generator=generator, dtype=torch.float64) ** power
    return p / p.sum(dim=2, keepdim=True)


def information(samples, indices):
    """I(y_1 … y_b; w) by all C^b configurations."""
    T, _, C = samples.shape
    total = 0.0
    for labels in itertools.product(range(C), repeat=len(indices)):
        joint = torch.ones(T, dtype=torch.float64)
        for i, y in zip(indices, labels, strict=True):
            joint = joint * samples[:, i, y]
        q = joint.mean().item()
        total -= q * math.log(q) if q > 0 else 0.0
    return total - expected_entropy(samples)[list(indices)].sum().item()


def rounding(samples, b):
    """Sums of C^b terms of at most log C^b each, T passes deep."""
    T, _, C = samples.shape
    return 4 * (C**b + T) * b * math.log(C) * 2.0**-53


@pytest.mark.parametrize("seed", range(4))
def test_every_step_takes_the_best_addition(seed):
    """Greedy by exhaustive search over candidates and configurations."""
    p = sharp(6, 8, 3, seed)
    batch = batchbald(p, 4)
    chosen = []
    for index, gain in zip(batch.indices.tolist(), batch.gains.tolist(), strict=True):
        before = information(p, chosen) if chosen else 0.0
        gains = {i: information(p, [*chosen, i]) - before for i in range(8) if i not in chosen}
        assert index == max(gains, key=gains.get)
        assert gain == pytest.approx(gains[index], abs=rounding(p, 4))
        chosen.append(index)
    assert batch.gains.sum().item() == pytest.approx(information(p, chosen), abs=rounding(p, 4))


def test_the_first_is_that_of_bald():
    p = sharp(10, 30, 5)
    batch = batchbald(p, 1)
    bald = mutual_information(p)
    assert batch.indices.tolist() == [int(bald.argmax())]
    assert batch.gains[0].item() == pytest.approx(bald.max().item(), abs=rounding(p, 1))


def test_gains_fall():
    """Submodularity: what an input adds can only shrink."""
    gains = batchbald(sharp(8, 12, 3, 5), 6, configurations=3**6).gains
    assert (gains[1:] <= gains[:-1] + 1e-12).all()
    assert (gains >= -1e-12).all()


def test_a_sample_of_configurations_is_unbiased():
    """Mean over seeds within its own standard error of all configurations."""
    p = sharp(12, 4, 3, 2)
    exact = batchbald(p, 4, configurations=3**4)
    runs = [batchbald(p, 4, configurations=20, seed=seed) for seed in range(30)]
    assert all(run.indices[:3].tolist() == exact.indices[:3].tolist() for run in runs)
    # 27 configurations are too many, so the last gain is estimated; four inputs leave one choice
    assert all(run.indices.tolist() == exact.indices.tolist() for run in runs)
    last = torch.stack([run.gains[3] for run in runs])
    error = last.std().item() / math.sqrt(len(runs))
    assert error > 0
    assert abs(last.mean().item() - exact.gains[3].item()) < 4 * error


def test_more_configurations_estimate_better():
    p = sharp(12, 6, 4, 3)
    exact = batchbald(p, 6, configurations=4**6).gains[-1]

    def spread(configurations):
        runs = [batchbald(p, 6, configurations=configurations, seed=s).gains[-1] for s in range(12)]
        return (torch.stack(runs) - exact).square().mean().sqrt().item()

    # a sample 16 times as large should be 4 times as good; half of that is asked for
    assert spread(640) < spread(40) / 2


def test_sampled_configurations_run_to_large_batches():
    """40 inputs have 10**40 configurations; products of 40 probabilities do not underflow."""
    p = sharp(20, 60, 10, 4, power=12)
    batch = batchbald(p, 40, configurations=100)
    assert len(set(batch.indices.tolist())) == 40
    assert batch.gains.isfinite().all()


def copies(own_masks, seed=0):
    """A pool of 6 inputs, each there twice; with own masks the copy's passes are others."""
    p = sharp(400, 6, 3, seed)
    again = p
    if own_masks:
        order = torch.randperm(400, generator=torch.Generator().manual_seed(seed))
        again = p[order]  # the same distribution over passes, no pass in common
    return torch.cat([p, again], dim=1)


def test_a_copy_adds_little_in_joint_samples():
    """BALD takes the best input and its copy; BatchBALD two that differ."""
    p = copies(own_masks=False)
    first, second = choose(p, 2, "bald").tolist()
    assert second == first + 6
    first, second = choose(p, 2, "batchbald").tolist()
    assert second != first + 6


def test_masks_of_their_own_hide_the_copy():
    """Then every pair looks independent: gains are those of BALD, and the copy is taken."""
    p = copies(own_masks=True)
    batch = batchbald(p, 4)
    assert batch.indices[1] == batch.indices[0] + 6
    bald = mutual_information(p)[batch.indices]
    # T passes find dependence by chance, about (C − 1)² / 2T nats for each pair
    chance = 3 * 4 / (2 * 400)
    assert (batch.gains - bald).abs().max() < 4 * chance
    first = int(batch.indices[0])
    pair = [first, first + 6]
    shared = copies(own_masks=False)
    known = information(shared, pair) - information(shared, pair[:1])
    assert known < batch.gains[1].item() - 4 * chance


def test_sure_passes_and_impossible_classes():
    """Probabilities 0 and 1: no NaN, and one label settles which pass is right."""
    p = torch.zeros(3, 4, 3, dtype=torch.float64)
    for t, label in enumerate((0, 1, 2)):
        p[t, :, label] = 1
    batch = batchbald(p, 3)
    assert batch.indices.tolist() == [0, 1, 2]
    assert batch.gains.tolist() == pytest.approx([math.log(3), 0, 0], abs=1e-15)
    assert batchbald(p, 3, configurations=3).gains.tolist() == pytest.approx(
        [math.log(3), 0, 0], abs=1e-15
    )


def test_equal_arguments_give_equal_bits():
    p = sharp(9, 40, 4, 6)
    state = torch.get_rng_state()
    first = batchbald(p, 6, configurations=64, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    again = batchbald(p, 6, configurations=64, seed=3)
    assert torch.equal(first.indices, again.indices)
    assert torch.equal(first.gains, again.gains)


def test_chunks_of_candidates_change_nothing(monkeypatch):
    p = sharp(9, 40, 4, 6)
    whole = batchbald(p, 4)
    module = sys.modules["bayes_dc.acquire.batchbald"]
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64 * 4 * 7)
    parts = batchbald(p, 4)
    assert torch.equal(whole.indices, parts.indices)
    # matrix products of other sizes may round differently
    assert (whole.gains - parts.gains).abs().max() <= rounding(p, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes(dtype):
    p = sharp(5, 6, 3).to(dtype)
    batch = batchbald(p.requires_grad_(), 2)
    assert batch.gains.dtype == torch.float64
    assert not batch.gains.requires_grad


@pytest.mark.parametrize(
    ("samples", "count", "options", "message"),
    [
        (torch.rand(3, 4), 1, {}, r"samples must be class probabilities \[T, N, C\].*\[3, 4\]"),
        (torch.ones(2, 3, 4, dtype=torch.int64), 1, {}, "dtype torch.int64.*joint_samples"),
        ([[1.0]], 1, {}, "got list"),
        (torch.rand(2, 0, 3), 1, {}, "nothing to choose"),
        (sharp(2, 3, 2), 4, {}, "count must be an integer in 1 … 3; got 4"),
        (sharp(2, 3, 2), 0, {}, "count must be an integer in 1 … 3; got 0"),
        (sharp(2, 3, 2), True, {}, "got True"),
        (sharp(2, 3, 2), 1.0, {}, r"got 1\.0"),
        (sharp(2, 3, 5), 1, {"configurations": 4}, "configurations must be an integer of at least"),
        (sharp(2, 3, 2), 1, {"seed": -1}, "seed must be an integer in 0 … 9223372036854775807"),
    ],
)
def test_refusals(samples, count, options, message):
    with pytest.raises(ValueError, match=message):
        batchbald(samples, count, **options)
