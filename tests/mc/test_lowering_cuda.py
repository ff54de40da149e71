"""The rules on a GPU, against the operators there; strict plans allocate nothing."""

import pytest
import torch
from rule_cases import check, inputs
from test_lowering_elementwise import BINARY, UNARY
from test_lowering_layers import CONVOLUTIONS, LAYERS, POOLS, ChannelsLast, layers
from test_lowering_reductions import MOVES, REDUCTIONS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_precision():
    """Products in float32: their errors are then those of the reference."""
    cudnn = torch.backends.cudnn  # its older switch wants all of its kinds alike
    switches = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    yield
    for switch, precision in zip(switches, before, strict=True):
        switch.fp32_precision = precision


ON_THE_HOST = {"prelu", "prelu by channel", "cat, constant", "cumsum"}
"""Cases that make tensors on the CPU, or have no kernel on a GPU."""


def groups(table, size=12):
    names = [name for name in table if name not in ON_THE_HOST]
    return [names[i : i + size] for i in range(0, len(names), size)]


@pytest.mark.parametrize("names", groups(UNARY), ids=str)
def test_functions_of_one_tensor(names):
    functions = [lambda a, b, f=UNARY[n]: f(a) for n in names]
    check(functions, inputs(4, 6, 6).cuda(), names=names)


@pytest.mark.parametrize("kind", ["folded", "folded and plain"])
@pytest.mark.parametrize("table", [BINARY, MOVES], ids=["elementwise", "moves"])
def test_functions_of_two_tensors(table, kind):
    names = [n for n in table if n not in ON_THE_HOST]
    check([table[n] for n in names], inputs(4, 6, 6).cuda(), kind, names=names, steps=16)


def test_reductions():
    names = [n for n in REDUCTIONS if n not in ON_THE_HOST]
    functions = [REDUCTIONS[n] for n in names]
    check(functions, inputs(4, 6, 6).cuda(), names=names, steps=16)


@pytest.mark.parametrize("mode", ["strict", "workspace"])
def test_convolutions(mode):
    made = [layer.cuda() for layer in layers(CONVOLUTIONS)]
    check(made, inputs(4, 6, 6).cuda(), names=list(CONVOLUTIONS), mode=mode, steps=16)


@pytest.mark.parametrize("table", [LAYERS, POOLS], ids=["layers", "pools"])
@pytest.mark.parametrize("last", [False, True])
def test_layers(table, last):
    some = {n: make for n, make in table.items() if n != "adaptive max"}
    made = [layer.cuda() for layer in layers(some)]
    if last:
        made = [ChannelsLast(layer) for layer in made]
    check(made, inputs(4, 6, 6).cuda(), names=list(some), steps=32)
