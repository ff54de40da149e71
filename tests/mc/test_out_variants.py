"""Which functions of torch write into ``out``, or in place, without allocating: measured."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rule_cases import allocations

import bayes_dc.mc

TABLE = Path(bayes_dc.mc.__file__).with_name("out_variants.md")
aten, nn = torch.ops.aten, torch._C._nn


def calls(device):
    """Every call of the table, with operands on a device."""
    at = {"device": device}
    x, y = torch.rand(8, 4, 8, 8, **at), torch.rand(8, 4, 8, 8, **at)
    half, whole = torch.tensor(0.5, **at), torch.zeros(8, 4, 8, 8, dtype=torch.int64, **at)
    mask, truth = x > 0.5, torch.empty(8, 4, 8, 8, dtype=torch.bool, **at)
    wide, row = torch.empty(8, 4, 8, 8, dtype=torch.float64, **at), torch.rand(4, 1, 1, **at)
    two, index = torch.empty(8, 8, 8, 8, **at), torch.tensor([0, 2], **at)
    part, rows = torch.empty(8, 2, 8, 8, **at), torch.empty(2, 64, **at)
    padded, large = torch.empty(8, 4, 10, 10, **at), torch.empty(8, 4, 16, 16, **at)
    matrix, weight = torch.rand(32, 64, **at), torch.rand(48, 64, **at)
    bias, product = torch.rand(48, **at), torch.empty(32, 48, **at)
    turned, batch = torch.rand(32, 128, **at)[:, ::2], torch.empty(8, 8, 8, **at)
    kernel, image = torch.rand(6, 4, 3, 3, **at), torch.empty(8, 6, 6, 6, **at)
    patches, pooled = torch.empty(8, 36, 36, **at), torch.empty(8, 4, 4, 4, **at)
    places = torch.empty(8, 4, 4, 4, dtype=torch.int64, **at)
    mean, none, mean2 = torch.rand(4, **at), torch.empty(0, **at), torch.empty(8, 4, **at)
    stat, stat2 = torch.empty(8, 4, 8, 1, **at), torch.empty(8, 4, 8, 1, **at)
    line, one = torch.rand(1, 1 << 16, **at), torch.empty(1, **at)
    at = torch.empty(8, 8, 8, dtype=torch.int64, **at)
    return {
        "torch.relu": lambda: aten.relu.out(x, out=y),
        "torch.clamp_min": lambda: torch.clamp_min(x, 0, out=y),
        "torch.relu_": lambda: torch.relu_(y),
        "torch.sigmoid": lambda: torch.sigmoid(x, out=y),
        "F.gelu": lambda: nn.gelu(x, out=y),
        "F.silu": lambda: nn.silu(x, out=y),
        "F.log_sigmoid": lambda: nn.log_sigmoid(x, out=y),
        "torch.isnan": lambda: torch.isnan(x),
        "torch.add": lambda: torch.add(x, x, out=y),
        "torch.add, in place": lambda: torch.add(y, x, out=y),
        "torch.add, a Python number": lambda: torch.add(x, 0.5, out=y),
        "torch.add, a constant": lambda: torch.add(x, half, out=y),
        "torch.mul, a Python number": lambda: torch.mul(x, 0.5, out=y),
        "torch.pow, a Python number": lambda: torch.pow(x, 0.5, out=y),
        "torch.gt, a Python number": lambda: torch.gt(x, 0.5, out=truth),
        "torch.add, other dtype": lambda: torch.add(x, whole, out=y),
        "torch.where": lambda: torch.where(mask, x, half, out=y),
        "torch.addcmul": lambda: torch.addcmul(row, x, row, out=y),
        "Tensor.copy_": lambda: y.copy_(x.transpose(2, 3)),
        "Tensor.copy_, converting": lambda: wide.copy_(x),
        "torch.cat": lambda: torch.cat([x, x], 1, out=two),
        "torch.index_select": lambda: torch.index_select(x, 1, index, out=part),
        "F.embedding": lambda: aten.embedding.out(weight, index, out=rows),
        "torch.gather": lambda: torch.gather(x, 1, whole, out=y),
        "torch.flip": lambda: aten.flip.out(x, [3], out=y),
        "F.pad": lambda: aten.constant_pad_nd.out(x, [1, 1, 1, 1], 0.0, out=padded),
        "F.interpolate, nearest": lambda: nn.upsample_nearest2d(x, [16, 16], out=large),
        "torch.mm": lambda: torch.mm(matrix, weight.t(), out=product),
        "torch.addmm": lambda: torch.addmm(bias, matrix, weight.t(), out=product),
        "F.linear": lambda: nn.linear(matrix, weight, bias, out=product),
        "F.linear, strided input": lambda: nn.linear(turned, weight, bias, out=product),
        "torch.bmm": lambda: torch.bmm(x[:, 0], x[:, 1], out=batch),
        "torch.baddbmm, α": lambda: torch.baddbmm(
            batch, x[:, 0], x[:, 1], beta=0, alpha=0.5, out=batch
        ),
        "torch.einsum": lambda: torch.einsum("bchw,bcij->bhwij", x, x),
        "F.conv2d": lambda: aten.convolution.out(
            x, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, out=image
        ),
        "F.conv2d by im2col": lambda: nn.thnn_conv2d(
            x, kernel, [3, 3], None, [1, 1], [0, 0], out=image
        ),
        "F.unfold": lambda: nn.im2col(x, [3, 3], [1, 1], [0, 0], [1, 1], out=patches),
        "F.max_pool2d, with places": lambda: nn.max_pool2d_with_indices(
            x, 2, 2, out=(pooled, places)
        ),
        "F.avg_pool2d": lambda: nn.avg_pool2d(x, 2, out=pooled),
        "F.adaptive_avg_pool2d": lambda: nn.adaptive_avg_pool2d(x, 4, out=pooled),
        "F.batch_norm": lambda: aten.native_batch_norm.out(
            x, None, None, mean, mean, False, 0.1, 1e-5, out=y, save_mean=none, save_invstd=none
        ),
        "F.layer_norm": lambda: aten.native_layer_norm.out(
            x, [8], None, None, 1e-5, out0=y, out1=stat, out2=stat2
        ),
        "F.group_norm": lambda: F.group_norm(x, 2),
        "torch.softmax": lambda: torch.softmax(x, -1, out=y),
        "torch.softmax, in place": lambda: torch.softmax(y, -1, out=y),
        "torch.log_softmax": lambda: torch.log_softmax(x, -1, out=y),
        "torch.logsumexp": lambda: torch.logsumexp(x, (2, 3), out=mean2),
        "F.scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(x, x, x),
        "torch.sum": lambda: torch.sum(x, (2, 3), out=mean2),
        "torch.mean": lambda: torch.mean(x, (2, 3), out=mean2),
        "torch.amax": lambda: torch.amax(x, (2, 3), out=mean2),
        "torch.var": lambda: torch.var(x, (2, 3), out=mean2),
        "torch.linalg.vector_norm": lambda: torch.linalg.vector_norm(x, 2, (2, 3), out=mean2),
        "torch.sum, one result": lambda: torch.sum(line, 1, out=one),
        "torch.argmax": lambda: torch.argmax(x, 1, out=at),
        "torch.cumsum": lambda: torch.cumsum(x, 1, out=y),
    }


def table():
    """{call: (what it allocates on a CPU, on a GPU)}: "no" or "yes"."""
    lines = re.findall(r"^\| `(.+?)` \| (\w+) \| (\w+) \|", TABLE.read_text(), re.MULTILINE)
    return {name: (cpu, cuda) for name, cpu, cuda in lines}


def test_the_table_names_every_call():
    assert list(table()) == list(calls("cpu"))


def measured(device):
    """ "no" or "yes" for every call, warm."""
    found = {}
    for name, call in calls(device).items():
        call()
        call()
        found[name] = "yes" if allocations(call, device) else "no"
    return found


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_cpu():
    """What torch's allocator is asked for, on the installed version, by several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # one alone needs no room for the sums of the others
    try:
        found = measured("cpu")
    finally:
        torch.set_num_threads(threads)
    assert found == {name: row[0] for name, row in table().items()}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_cuda():
    """The same on the GPU; cuBLAS has taken its workspace before."""
    assert measured("cuda") == {name: row[1] for name, row in table().items()}
