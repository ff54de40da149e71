"""On a GPU: no allocation, replays of captured graphs, offsets beyond 32 bits."""

import pytest
import torch
import torch.nn.functional as F
from plain_harness import equal, numbers

pytestmark = pytest.mark.gpu
FAR = 2**31 + 64


def calls():
    """One call of every launcher by name, with its result and what torch says of it."""
    from bayes_dc.ops.plain.triton_affine import launch_affine_act
    from bayes_dc.ops.plain.triton_attention import launch_attention
    from bayes_dc.ops.plain.triton_conv2d import launch_conv2d
    from bayes_dc.ops.plain.triton_normalize import launch_group_norm, launch_layer_norm
    from bayes_dc.ops.plain.triton_pool import (
        launch_adaptive_avg_pool2d,
        launch_avg_pool2d,
        launch_max_pool2d,
    )
    from bayes_dc.ops.plain.triton_reduce import launch_reduce, launch_softmax_rows

    x = numbers(8, 64, 12, 12, dtype=torch.float16).cuda().to(memory_format=torch.channels_last)
    w = numbers(128, 64, 3, 3, dtype=torch.float16).cuda().to(memory_format=torch.channels_last)
    v = numbers(64, dtype=torch.float32).cuda()
    factors = numbers(128, dtype=torch.float32).cuda()
    q, k, values = (numbers(2, 3, 50, 64, dtype=torch.float16, seed=s).cuda() for s in range(3))
    pair = {"kernel_size": (2, 2), "stride": (2, 2)}
    small, one, row = x.new_empty(8, 64, 6, 6), x.new_empty(8, 64, 1, 1), x.new_empty(8, 64)
    of_conv = x.new_empty(8, 128, 12, 12).to(memory_format=torch.channels_last)
    pad, ending = {"padding": (1, 1)}, (factors, factors, True)
    every = {
        "affine": (launch_affine_act, (x, v, v, x, torch.empty_like(x)), {"relu": True}),
        "max pool": (launch_max_pool2d, (x, small.clone()), pair),
        "mean pool": (launch_avg_pool2d, (x, small.clone()), pair),
        "adaptive pool": (launch_adaptive_avg_pool2d, (x, one), {}),
        "layer norm": (launch_layer_norm, (x, None, None, torch.empty_like(x)), {"eps": 1e-5}),
        "group norm": (
            launch_group_norm,
            (x, v, v, torch.empty_like(x)),
            {"groups": 8, "eps": 1e-5},
        ),
        "mean": (launch_reduce, (x, row), {"dims": 2, "kind": "mean"}),
        "softmax": (launch_softmax_rows, (x, torch.empty_like(x)), {}),
        "attention": (launch_attention, (q, k, values, torch.empty_like(q)), {"scale": 0.125}),
        "convolution": (launch_conv2d, (x, w, None, of_conv), pad | {"epilogue": ending}),
        "depthwise": (launch_conv2d, (x, w[:64, :1].contiguous(memory_format=torch.channels_last),
                                      v.half(), torch.empty_like(x)), pad | {"groups": 64}),
    }  # fmt: skip
    return {
        name: (lambda f=f, a=a, o=o: f(*a, **o), a[1] if len(a) == 2 else a[-1])
        for name, (f, a, o) in every.items()
    }


NAMES = (
    "affine, max pool, mean pool, adaptive pool, layer norm, group norm, mean, softmax, attention, "
    "convolution, depthwise"
)


@pytest.mark.parametrize("name", NAMES.split(", "))
def test_nothing_is_allocated_and_graphs_replay(name):
    call, out = calls()[name]
    call()
    want = out.clone()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        call()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    out.fill_(float("nan"))
    graph.replay()
    equal(out, want)
    assert not want.isnan().any()


@pytest.fixture(scope="module")
def apart():
    """Two images 2**31 elements apart, in float16."""
    if torch.cuda.get_device_properties(0).total_memory < 20 * 2**30:
        pytest.skip("needs 20 GB")
    room = torch.empty(FAR + 4096, dtype=torch.float16, device="cuda")
    return room.as_strided((2, 16, 8, 8), (FAR, 1, 128, 16))


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "contiguous"])
def test_images_far_apart(apart, last):
    """Every offset that the images' distance is part of."""
    from bayes_dc.ops.plain.triton_affine import launch_affine_act
    from bayes_dc.ops.plain.triton_normalize import launch_layer_norm
    from bayes_dc.ops.plain.triton_pool import launch_max_pool2d
    from bayes_dc.ops.plain.triton_reduce import launch_reduce, launch_softmax_rows

    far = apart if last else apart.as_strided((2, 16, 8, 8), (FAR, 64, 8, 1))
    x = numbers(2, 16, 8, 8, dtype=torch.float16).cuda()
    far.copy_(x)
    pooled = x.new_empty(2, 16, 4, 4)
    launch_max_pool2d(far, pooled, kernel_size=(2, 2), stride=(2, 2))
    equal(pooled, F.max_pool2d(x, 2))
    means = x.new_empty(2, 16)
    launch_reduce(far, means, dims=2, kind="max")
    equal(means, x.amax((2, 3)))
    near = torch.empty_like(x)
    for launch in (
        lambda t, o: launch_affine_act(t, None, None, t, o, relu=True),
        lambda t, o: launch_softmax_rows(t, o),
        lambda t, o: launch_layer_norm(t, None, None, o, dims=3, eps=1e-5),
    ):
        far.copy_(x)
        launch(x, near)
        launch(far, far)
        equal(far, near)


def test_heads_and_convolutions_far_apart(apart):
    from bayes_dc.ops.plain.triton_attention import launch_attention
    from bayes_dc.ops.plain.triton_conv2d import launch_conv2d

    x = numbers(2, 16, 8, 8, dtype=torch.float16).cuda()
    apart.copy_(x)
    w = numbers(64, 16, 3, 3, dtype=torch.float16).cuda().to(memory_format=torch.channels_last)
    outs = [x.new_empty(2, 64, 6, 6).to(memory_format=torch.channels_last) for _ in range(2)]
    for t, out in zip((apart, x.to(memory_format=torch.channels_last)), outs, strict=True):
        launch_conv2d(t, w, None, out)
    equal(*outs)
    far = apart.flatten(2).transpose(1, 2)
    near = far.contiguous()
    outs = [torch.empty_like(near), far]
    launch_attention(near, near, near, outs[0], scale=0.25)
    launch_attention(far, near, near, far, scale=0.25)
    equal(far, outs[0])


def test_more_than_32_bits_of_elements():
    """An index of a single dimension."""
    from bayes_dc.ops.plain.triton_affine import launch_affine_act

    if torch.cuda.get_device_properties(0).total_memory < 20 * 2**30:
        pytest.skip("needs 20 GB")
    x = torch.full((FAR,), -1.0, dtype=torch.float16, device="cuda")
    x[-5:] = 3
    launch_affine_act(x, None, None, None, x, relu=True)
    assert x[-5:].tolist() == [3.0] * 5
    assert x[:-5].count_nonzero() == 0
