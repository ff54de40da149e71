"""What the benchmark of the engine compares with, and what it counts."""

import pytest
import torch
from torch import nn

from benchmarks import engine, engine_allocator


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("mlp", 784 * 1024 + 1024 * 1024 + 1024 * 10),
        ("lenet5", 28 * 28 * 6 * 25 + 10 * 10 * 16 * 6 * 25 + 400 * 120 + 120 * 84 + 84 * 10),
    ],
)
def test_multiply_adds_of_an_input(name, work):
    plain, size = engine.plain_network(name)
    assert engine.work_of(plain, torch.zeros(1, *size)) == work


def test_the_loop_draws_a_mask_for_every_pass_and_weight():
    plain, size = engine.plain_network("lenet5")
    model = engine.one_mask_network(plain.requires_grad_(False))
    x = torch.randn(2, *size)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(plain(x), plain(x))
    found = engine.loop_prediction(model, x, 3)
    assert found.mean.sum(dim=1).allclose(torch.ones(2))
    assert (found.variance > 0).any()


def test_every_layer_of_a_kind_draws_in_its_way():
    for name, kinds in engine.KINDS.items():
        plain, _ = engine.plain_network(name)
        for options in kinds.values():
            model = engine.masked_network(plain, options)
            layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
            for layer in layers:
                assert all(getattr(layer, key) == value for key, value in options.items())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_allocator_of_a_gpu_needs_a_gpu():
    with pytest.raises(SystemExit, match="that of a GPU: there is none on this machine"):
        engine_allocator.main()
