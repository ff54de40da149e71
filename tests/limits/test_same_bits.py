"""The same bits: in another run, in another process, deterministic or not, compiled or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bits_child import everything, trained
from limit_cases import K, assert_same, every_layer, folded, inputs, network, planned
from torch import nn

from bayes_dc import DropConnectConv2d, DropConnectLinear
from bayes_dc.nn import MaskKeys

CHILD = Path(__file__).with_name("bits_child.py")


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_another_process():
    """It hashes words by another seed and allows deterministic algorithms only."""
    here = everything()
    done = subprocess.run(
        [sys.executable, str(CHILD)],
        env={**os.environ, "PYTHONPATH": str(CHILD.parents[2]), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == here


def test_no_memory_is_read_before_it_is_written(deterministic):
    """Deterministic mode fills new tensors with NaN: a result that read one would hold it."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    model = every_layer()
    assert all(tensor.isfinite().all() for tensor in trained(model))
    for got in (folded(model, inputs(5)), planned(model, 5)(inputs(5), return_samples=True)):
        assert all(tensor.isfinite().all() for tensor in (got.samples, got.mean, got.entropy_se))


@pytest.mark.parametrize("make", [network, pytest.param(every_layer, marks=pytest.mark.slow)])
def test_a_traced_training_step(make):
    """Forward and backward as torch.compile traces them, operator by operator."""
    torch.compiler.reset()
    model = make()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for got, want in zip(trained(model, call=compiled), trained(make()), strict=True):
        assert torch.equal(got, want)


LAYERS = {
    "row": lambda: DropConnectLinear(K, 5, scope="row"),
    "pass": lambda: DropConnectLinear(K, 5, scope="pass"),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (3, 2, 2)), DropConnectConv2d(3, 4, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYERS)
def test_a_compiled_layer(kind):
    """By inductor: output, dx and dw. The bias's gradient is a sum of torch's, to rounding."""
    torch.compiler.reset()
    layer = LAYERS[kind]()
    weight = layer.weight if kind != "convolution" else layer[1].weight
    keys, x = MaskKeys(3), inputs(7)
    with keys.attached(nn.Sequential(layer)):
        keys.set(pass_ids=0, sample_ids=torch.arange(7))
        found = []
        for call in (layer, torch.compile(layer, fullgraph=True)):
            given = x.clone().requires_grad_()
            y = call(given)
            found.append((y, *torch.autograd.grad(y, (given, weight), y.detach().cos())))
    for got, want in zip(found[1], found[0], strict=True):
        assert torch.equal(got, want)


def test_deterministic_mode_changes_no_prediction(deterministic):
    model, x = network(), inputs(5)
    engine = planned(model, 5)
    got = engine(x), folded(model, x)
    torch.use_deterministic_algorithms(False)
    assert_same(got[0], engine(x))
    assert_same(got[1], folded(model, x))
