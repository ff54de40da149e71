"""Faults of random numbers elsewhere: seeds, counters, streams that repeat or run together.

Masks are read off the public functions: weights of ones let a mask through as it is.
"""

import numpy as np
import pytest
import torch
from torch import nn

from bayes_dc import (
    DropConnectLinear,
    MonteCarloEngine,
    convert,
    dropconnect_conv2d,
    dropconnect_linear,
    predict_with_uncertainty,
)
from bayes_dc import metrics as m
from bayes_dc.acquire import acquisition_scores, batchbald
from bayes_dc.config import Config
from bayes_dc.datasets import DataConfig, apply_shift, load_dataset
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys
from bayes_dc.rng import keep_digits, layer_key, masks, numba_normals, numba_rng, philox4x32
from bayes_dc.train import build_model
from bayes_dc.train.settings import ModelConfig
from bayes_dc.types import MaskKey, torch_seed


def outputs_masks(samples, N, *, p=0.5, seed=0, layer=0):
    """Masks along the outputs of one input: bool [samples, N]."""
    key = MaskKey(seed, layer)
    ids = torch.as_tensor(samples)
    x, weight = torch.ones(len(ids), 1), torch.ones(N, 1)
    return dropconnect_linear(x, weight, p=p, key=key, sample_ids=ids, scale="none") > 0


def inputs_masks(samples, K, *, p=0.5, seed=0, layer=0):
    """Masks along the inputs of one output: bool [samples, K]."""
    ids, weight = torch.as_tensor(samples), torch.ones(1, K)
    x = torch.ones(len(ids), K, requires_grad=True)
    key = MaskKey(seed, layer)
    dropconnect_linear(x, weight, p=p, key=key, sample_ids=ids, scale="none").sum().backward()
    return x.grad > 0


def full_masks(sample, N, K, *, p=0.5, seed=0, layer=0):
    """Mask of one sample, bool [N, K]: every row reads one input."""
    ids, key = torch.full((K,), sample), MaskKey(seed, layer)
    y = dropconnect_linear(torch.eye(K), torch.ones(N, K), p=p, key=key, sample_ids=ids)
    return y.t() > 0


def network():
    torch.manual_seed(0)
    model = mlp(5, 3, hidden=(8,))
    convert(model, 0.5)
    return model.eval()


def test_a_seed_is_its_value_not_its_address():
    # source: facebookresearch/xformers#173
    model, x = network(), torch.ones(4, 5)
    engine = MonteCarloEngine(model, x, T=3)
    for run in (
        lambda s: predict_with_uncertainty(model, x, 3, seed=s),
        lambda s: engine(x, seed=s),
    ):
        want, other = run(5), run(6)
        assert not torch.equal(want.mean, other.mean)
        for seed in (torch.tensor(5), torch.tensor(5), np.int64(5), np.uint8(5)):
            got = run(seed)
            assert torch.equal(got.mean, want.mean)
            assert got.seed == 5
    words = [full_masks(0, 8, 8, seed=s) for s in (5, torch.tensor(5), torch.tensor(5))]
    assert torch.equal(words[0], words[1])
    assert torch.equal(words[0], words[2])


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [
        ("00000000 00000000", "00000000 " * 4, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff", "ffffffff " * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "a4093822 299f31d0",
            "243f6a88 85a308d3 13198a2e 03707344",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
@pytest.mark.parametrize("wide", [np.uint32, np.uint64, np.int64])
def test_the_generator_is_philox_whatever_the_width_of_its_indices(key, counter, answer, wide):
    # source: triton-lang/triton#6832
    key, counter = (
        tuple(np.array([int(word, 16)], np.uint64).astype(wide) for word in words.split())
        for words in (key, counter)
    )
    got = philox4x32(key, counter)
    assert " ".join(f"{int(word[0]):08x}" for word in got) == answer


@pytest.mark.parametrize("other", [1, 2**16, 2**31, 2**32 - 1])
def test_no_stream_repeats_where_32_bits_of_a_flat_index_end(other):
    """256 × 256 weights: sample 65 536 begins 2³² numbers after sample 0."""
    # source: arrayfire/arrayfire#2007
    agree = (full_masks(0, 256, 256) == full_masks(other, 256, 256)).double().mean().item()
    assert abs(agree - 0.5) < 5 * 0.5 / 256


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
@pytest.mark.parametrize("sample", [40_000, 2**32 - 1])
def test_forward_and_gradients_have_one_mask_far_out(kind, sample):
    """256 × 256 weights: sample 40 000 begins beyond 2³¹."""
    # source: pytorch/pytorch#188015
    size, key = 256, MaskKey(3)
    weight = torch.ones(size, size, requires_grad=True)

    def run(x):
        ids = torch.full((len(x),), sample)
        if kind == "linear":
            return dropconnect_linear(x, weight, key=key, sample_ids=ids, scale="none")
        images, kernel = x[:, :, None, None], weight[:, :, None, None]
        y = dropconnect_conv2d(images, kernel, key=key, sample_ids=ids, scale="none")
        return y[:, :, 0, 0]

    forward = run(torch.eye(size)).detach().t()
    x = torch.ones(size, size, requires_grad=True)
    run(x).backward(torch.eye(size))
    assert set(forward.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(x.grad, forward)
    weight.grad = None
    run(torch.ones(1, size)).sum().backward()
    assert torch.equal(weight.grad, forward)


@pytest.mark.parametrize("seed", [0, 1, 16])
def test_seeds_that_a_compiler_would_specialise(seed):
    """The operators take words of a tensor: a seed cannot be a constant of a compilation."""
    # source: triton-lang/triton#3390
    want = masks(layer_key(seed, 0), np.array([7]), np.array([0]), 40, 9, keep_digits(0.5))[0]
    assert torch.equal(full_masks(7, 40, 9, seed=seed), torch.from_numpy(want))
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("bayes_dc::")]
    schemas = [getattr(torch.ops.bayes_dc, n.partition("::")[2]).default._schema for n in names]
    arguments = [{a.name: str(a.type) for a in schema.arguments} for schema in schemas]
    assert sum("key" in types for types in arguments) >= 6
    for types in arguments:
        assert "seed" not in types
        for name in {"key", "sample_ids", "pass_ids"} & types.keys():
            assert types[name] == "Tensor"


SEEDED = {
    "masks": lambda seed: full_masks(0, 16, 16, seed=seed),
    "prediction": lambda seed: predict_with_uncertainty(network(), torch.ones(4, 5), 3, seed=seed),
    "bootstrap": lambda seed: m.bootstrap_mean(torch.arange(99.0), resamples=50, seed=seed),
    "bootstrap of two sets": lambda seed: m.bootstrap_metric(
        m.auroc, torch.arange(20.0), torch.arange(20.0) + 3, resamples=50, seed=seed
    ),
    "shifted images": lambda seed: apply_shift(
        np.full((2, 8, 8, 1), 99, np.uint8), "gaussian_noise", 3, seed=seed
    ),
    "random choice": lambda seed: acquisition_scores(torch.ones(2, 9, 1), "random", seed=seed),
    "sampled labels": lambda seed: batchbald(
        torch.rand(6, 9, 3, generator=torch.Generator().manual_seed(0)).softmax(-1),
        6,
        configurations=3,
        seed=seed,
    ),
    "initial weights": lambda seed: build_model(ModelConfig(hidden=(4,)), (1, 2, 2), 3, seed=seed),
    "validation split": lambda seed: load_dataset(
        DataConfig(name="digits", validation_fraction=0.1, validation_seed=seed)
    ),
}


def numbers_of(result):
    """What a seeded call gave, as bytes."""
    if isinstance(result, nn.Module):
        return b"".join(t.detach().numpy().tobytes() for t in result.parameters())
    if isinstance(result, torch.Tensor | np.ndarray):
        return np.asarray(result).tobytes()
    if hasattr(result, "validation"):
        return result.validation.labels.numpy().tobytes()
    for name in ("mean", "gains"):
        if hasattr(result, name):
            return numbers_of(getattr(result, name))
    return repr(result).encode()


@pytest.mark.parametrize("name", SEEDED)
def test_all_64_bits_of_a_seed_count(name):
    """Torch's generator of the CPU reads the low 32 bits of a number only."""
    # source: mapequation/infomap#949
    run = SEEDED[name]
    found = [numbers_of(run(seed)) for seed in (7, 7 + 2**32, 7 + 2**33, 7 + 2**62, 7)]
    assert found[0] == found[4]
    assert len(set(found)) == 4


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_of_more_than_64_bits_is_refused(seed):
    # source: mapequation/infomap#949
    for run in SEEDED.values():
        if run not in (SEEDED["initial weights"], SEEDED["validation split"]):
            with pytest.raises(ValueError, match="seed must be"):
                run(seed)
    with pytest.raises(ValueError, match="seed"):
        Config.model_validate({"output_dir": "x", "data": {"name": "digits"}, "seed": seed})
    with pytest.raises(ValueError, match="validation_seed"):
        DataConfig(name="digits", validation_seed=seed)


def test_the_seed_for_torch_keeps_small_seeds_and_tells_the_others_apart():
    # source: mapequation/infomap#949
    assert [torch_seed(seed) for seed in (0, 1, 2**32 - 1)] == [0, 1, 2**32 - 1]
    highs = [*range(2000), 2**31, 2**32 - 1]
    found = {torch_seed(5 + (high << 32)) for high in highs}
    assert len(found) == len(highs)
    assert all(0 <= seed < 2**32 for seed in found)
    # what makes it necessary is still so; when this fails, torch_seed may go
    same = [torch.rand(3, generator=torch.Generator().manual_seed(s)) for s in (7, 7 + 2**32)]
    assert torch.equal(*same)


def test_no_sample_has_a_shifted_copy_of_anothers_mask():
    """64 samples × 1024 weights, every pair at every shift up to ± 64, along both axes."""
    # source: AMReX-Codes/amrex#5662
    others = ~torch.eye(64, dtype=torch.bool)
    for read in (outputs_masks, inputs_masks):
        signs = 2.0 * read(range(64), 1024) - 1
        for shift in range(65):
            length = 1024 - shift
            agreement = 0.5 + signs[:, :length] @ signs[:, shift:].t() / (2 * length)
            assert (agreement[others] - 0.5).abs().max() < 0.10


def test_layers_of_a_model_do_not_share_a_stream():
    """Two equal layers, one seed, one forward; what a stream is keyed to is documented."""
    # source: espressomd/espresso#3120
    model = nn.Sequential(*(DropConnectLinear(16, 16, bias=False, p=0.5) for _ in range(2)))
    for layer in model:
        nn.init.ones_(layer.weight)
    keys = MaskKeys(0)
    with keys.attached(model):
        keys.set(pass_ids=0, sample_ids=torch.zeros(16, dtype=torch.int64))
        first, second = (layer(torch.eye(16)) > 0 for layer in model)
    assert abs((first == second).double().mean().item() - 0.5) < 4 * 0.5 / 16
    torch.manual_seed(0)
    first, second = (layer.train()(torch.eye(16)) > 0 for layer in model)
    assert abs((first == second).double().mean().item() - 0.5) < 4 * 0.5 / 16
    assert "layer" in MaskKeys.__doc__
    # dropout of the same number has a stream of its own
    dropped = nn.Dropout(0.5)
    keys = MaskKeys(0)
    with keys.attached(nn.Sequential(model[0], dropped)):
        keys.set(pass_ids=0, sample_ids=torch.zeros(1, dtype=torch.int64))
        units = dropped(torch.ones(1, 256))[0] > 0
    mask = full_masks(0, 64, 4).flatten()  # unit e would have the bit of (e div 4, e mod 4)
    assert abs((units == mask).double().mean().item() - 0.5) < 4 * 0.5 / 16


@pytest.mark.parametrize("axis", ["n", "k"])
def test_four_neighbours_are_not_one_draw(axis):
    # source: pytorch/pytorch#198333
    bits = torch.stack([full_masks(sample, 64, 64) for sample in range(8)])
    bits = bits if axis == "k" else bits.transpose(1, 2)
    fours = bits.reshape(8, 64, 16, 4)
    share = (fours == fours[..., :1]).all(dim=-1).double().mean().item()
    assert abs(share - 0.125) < 0.0146  # four standard deviations of 8192 groups


@pytest.mark.parametrize("read", [outputs_masks, inputs_masks])
def test_a_small_probability_is_not_rounded_to_a_byte(read):
    # source: NVIDIA/apex#1614
    rate = 1 - read([0], 1_000_000, p=0.001).double().mean().item()
    assert abs(rate - 0.001) < 0.000126


def test_ten_million_draws_of_one_launch():
    # source: facebookresearch/xformers#164
    bits = outputs_masks(range(10_000), 1000)
    assert abs(bits.double().mean().item() - 0.5) < 0.00063
    packed = np.packbits(bits.numpy(), axis=1)
    assert len(np.unique(packed, axis=0)) == 10_000
    signs = 2.0 * bits[:1000] - 1
    agreement = 0.5 + (signs @ signs.t()) / 2000
    pairs = agreement[~torch.eye(1000, dtype=torch.bool)]
    # half a million pairs of 1000 fair bits: 6.5 standard deviations
    assert (pairs - 0.5).abs().max() < 6.5 * 0.5 / 1000**0.5


def test_the_words_at_the_ends_give_a_uniform_below_one():
    """Only the normals turn words into numbers; masks compare none. Radius² = −2 ln u."""
    # source: triton-lang/triton#10597
    words = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFF7F, 0xFFFFFFFF]
    a, b = (np.zeros(numba_normals.QUADS, np.uint64) for _ in range(2))
    a[: len(words)] = words
    for angle in words:
        b[:] = angle
        first, second = (np.empty(numba_normals.QUADS, np.float32) for _ in range(2))
        numba_normals._box_muller(a, b, first, second, len(words))
        pair = np.stack([first, second])[:, : len(words)].astype(np.float64)
        assert np.isfinite(pair).all()
        uniform = np.exp(-(pair**2).sum(axis=0) / 2)
        assert (uniform > 0).all()
        assert (uniform < 1).all()
        assert (np.diff(uniform[[0, 2, 3, 5]]) >= 0).all()
    assert numba_rng.mask_words(
        layer_key(0, 0), np.array([0]), np.array([0]), 1, 4, keep_digits(0.5)
    ).shape == (1, 4, 1)
