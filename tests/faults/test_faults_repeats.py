"""Faults of repetition elsewhere: masks that stay, batches that decide, generators touched."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    MonteCarloEngine,
    convert,
    predict_with_uncertainty,
)
from bayes_dc import metrics as m
from bayes_dc.acquire import choose, joint_samples
from bayes_dc.datasets import DataConfig, apply_shift, load_dataset
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys
from bayes_dc.train import build_model
from bayes_dc.train.augment import Augmentation
from bayes_dc.train.schedule import epoch_order
from bayes_dc.train.settings import AugmentConfig, ModelConfig

FIELDS = ("mean", "variance", "entropy", "expected_entropy", "mutual_information")


def network(*, conv=False):
    """A network of fixed weights; torch's generators are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if conv:
            model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        else:
            model = nn.Sequential(*mlp(6, 3, hidden=(16, 8)), nn.Dropout(0.2))
        convert(model, 0.5)
    return model.eval()


def inputs(rows, *, conv=False):
    shape = (rows, 1, 6, 6) if conv else (rows, 6)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def assert_same(got, want, rows=slice(None)):
    for name in FIELDS:
        assert torch.equal(getattr(got, name), getattr(want, name)[rows]), name


@pytest.mark.parametrize("conv", [False, True], ids=["rows", "images"])
@pytest.mark.parametrize("path", ["folded", "engine"])
def test_an_input_does_not_see_its_batch(path, conv):
    """All at once, one by one, and in batches of two."""
    # source: nickgkan/3d_diffuser_actor#45
    model, x, ids = network(conv=conv), inputs(5, conv=conv), torch.arange(5)
    if path == "engine":
        engine = MonteCarloEngine(model, x, T=8, mode="workspace")

        def run(x, ids):
            return engine(x, seed=3, sample_ids=ids)

    else:

        def run(x, ids):
            return predict_with_uncertainty(model, x, 8, seed=3, sample_ids=ids, engine="folded")

    want = run(x, ids)
    for rows in (*ids.split(1), *ids.split(2), ids.flip(0)):
        got = run(x[rows], ids[rows])
        for name in FIELDS:
            gap = (getattr(got, name) - getattr(want, name)[rows]).abs().max().item()
            assert gap < 1e-5, name
    assert "sample_ids" in predict_with_uncertainty.__doc__


@pytest.mark.parametrize("path", ["folded", "engine"])
def test_a_smaller_last_batch_draws_its_own_masks(path):
    """7 inputs in batches of 4 and 3, twice, and in one of 7."""
    # source: baal-org/baal#15
    model, x, ids = network(), inputs(7), torch.arange(7)
    engine = MonteCarloEngine(model, x, T=4)

    def run(rows):
        if path == "engine":
            return engine(x[rows], seed=0, sample_ids=ids[rows])
        return predict_with_uncertainty(model, x[rows], 4, seed=0, sample_ids=ids[rows])

    first = [run(rows) for rows in ids.split(4)]
    again = [run(rows) for rows in ids.split(4)]
    for one, two in zip(first, again, strict=True):
        assert_same(one, two)
    whole = run(ids)
    for rows, part in zip(ids.split(4), first, strict=True):
        assert_same(part, whole, rows)


@pytest.mark.parametrize("kind", ["row", "sample", "pass", "gaussian", "convolution"])
def test_every_training_step_has_masks_of_its_own(kind):
    # source: PaddlePaddle/Paddle#7796
    if kind == "convolution":
        layer, x = DropConnectConv2d(2, 4, 3, p=0.5), torch.ones(3, 2, 6, 6)
    elif kind == "gaussian":
        layer, x = DropConnectLinear(16, 8, p=0.5, sampler="gaussian"), torch.ones(3, 16)
    else:
        layer, x = DropConnectLinear(16, 8, p=0.5, scope=kind), torch.ones(3, 16)
    layer.train()
    torch.manual_seed(4)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    assert torch.equal(layer(x), first)
    assert torch.equal(layer(x), second)
    keys = MaskKeys(4)
    with keys.attached(layer):
        for step in (0, 1):
            keys.set(pass_ids=step, sample_ids=torch.arange(3))
            first, second = second, layer(x)
    assert not torch.equal(first, second)


def states():
    """Everything that somebody else may be drawing from."""
    return (
        torch.get_rng_state().tolist(),
        repr(np.random.get_state()),  # noqa: NPY002
        random.getstate(),
        [state.tolist() for state in torch.cuda.get_rng_state_all()],
    )


SAMPLES = torch.rand(6, 9, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
IMAGES = np.full((2, 8, 8, 1), 99, np.uint8)
SEEDED = {
    "prediction": lambda: predict_with_uncertainty(network(), inputs(3), T=4, seed=9),
    "prediction of images": lambda: predict_with_uncertainty(
        network(conv=True), inputs(3, conv=True), T=4, seed=9
    ),
    "engine": lambda: MonteCarloEngine(network(), inputs(3), T=4)(inputs(3), seed=9),
    "joint samples": lambda: joint_samples(network()[:-1], inputs(3), T=4, seed=9),
    "choice of inputs": lambda: choose(SAMPLES, 4, "batchbald", seed=9, configurations=5),
    "random choice": lambda: choose(SAMPLES, 4, "random", seed=9),
    "bootstrap": lambda: m.bootstrap_mean(torch.arange(9.0), resamples=20, seed=9),
    "band": lambda: m.reliability_band(SAMPLES[0], torch.zeros(9, dtype=torch.long), n_bins=3),
    "shifted images": lambda: [apply_shift(IMAGES, n, 3, seed=9) for n in ("shot_noise", "jpeg")],
    "initial weights": lambda: build_model(ModelConfig(hidden=(4,)), (1, 2, 2), 3, seed=9),
    "validation split": lambda: load_dataset(DataConfig(name="digits", validation_fraction=0.1)),
    "order of an epoch": lambda: epoch_order(9, 9, 1),
    "changed images": lambda: Augmentation(
        AugmentConfig(shift=1, flip=True, cutout=2), 4, 9, 0, torch.device("cpu")
    )(torch.ones(4, 1, 6, 6), torch.arange(4)),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_call_with_a_seed_touches_no_global_generator(name):
    # source: pytorch/pytorch#120327
    torch.manual_seed(0)
    before, expected = states(), torch.rand(1)
    torch.manual_seed(0)
    SEEDED[name]()
    assert states() == before
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("in_dims", [None, 0])
def test_vmap_has_the_right_shape_and_masks_of_its_own(shape, in_dims):
    # source: pytorch/pytorch#92283
    layer = DropConnectLinear(shape[-1], 64, p=0.5).train()
    x = torch.ones(shape) if in_dims is None else torch.ones(4, *shape)
    # without a batched argument vmap cannot know how many calls there are: one that is not used
    calls = torch.arange(4)
    y = torch.vmap(lambda x, _: layer(x), in_dims=(in_dims, 0), randomness="different")(x, calls)
    assert y.shape == (4, *shape[:-1], 64)
    assert len(y.reshape(-1, 64).unique(dim=0)) == y[..., 0].numel()
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda x, _: layer(x), in_dims=(in_dims, 0))(x, calls)
