"""CPU launchers in a workspace allocate nothing: not through torch, and nothing large from libc."""

import malloc_counter

PROGRAM = """
import torch
from torch.profiler import ProfilerActivity, profile
from bayes_dc.ops.conv2d import cpu as conv
from bayes_dc.ops.dropout import cpu as dropout
from bayes_dc.ops.gaussian import cpu as gaussian
from bayes_dc.ops.linear import cpu as linear

torch.set_num_threads(2)
P, S = 8, 16
at = (torch.tensor([1, 2]), torch.arange(S), torch.arange(P))
digits = {"keep": 3, "bits": 3, "scale": 1.6}
PAD = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}

def room(size):
    return torch.empty(size, dtype=torch.uint8)

def rows(dtype, shared):
    x = torch.randn(1 if shared else P, S, 1, 150).to(dtype).expand(P, S, 1, 150)
    return x, torch.randn(1100, 150).to(dtype), torch.empty(P, S, 1, 1100, dtype=dtype)

def linear_call(dtype, shared):
    x, w, out = rows(dtype, shared)
    b = torch.randn(1100).to(dtype)
    space = room(linear.workspace_bytes(x, w, b, out))
    return lambda: linear.launch_fwd(x, w, b, *at, out, **digits, workspace=space)

def gaussian_call(dtype, shared, packed):
    x, w, out = rows(dtype, shared)
    x = x[:1] if shared else x
    packed = gaussian.pack_weights(w) if packed else None
    space = room(gaussian.workspace_bytes(x, w, None, out, packed=packed is not None))
    options = dict(digits, packed=packed, workspace=space)
    return lambda: gaussian.launch_linear(x, w, None, *at, out, **options)

def conv_call(dtype, shared, channels_last, depthwise=False, bits=3, C=48, pool=False):
    x = torch.randn(1 if shared else P, S, 12, 12, C).to(dtype)
    out = torch.empty(P, S, 12 // (1 + pool), 12 // (1 + pool), C, dtype=dtype)
    if not channels_last:
        x, out = (t.transpose(2, 4).contiguous().transpose(2, 4) for t in (x, out))
    x = x.expand(P, -1, -1, -1, -1)
    w = torch.randn(C, 3, 3, 1 if depthwise else C).to(dtype)
    b = torch.randn(C).to(dtype)
    geometry = dict(PAD, groups=C if depthwise else 1, pool=pool)
    space = room(conv.workspace_bytes(x, w, out, **geometry))
    options = dict(digits, bits=bits, keep=min(3, 1 << bits), workspace=space, **geometry)
    return lambda: conv.launch_fwd(x, w, b, *at, out, **options)

def dropout_call(dtype, by_channel):
    x = torch.randn(P, S, 40, 30).to(dtype)
    out = torch.empty_like(x)
    space = room(dropout.workspace_bytes(x, out))
    options = dict(digits, by_channel=by_channel, workspace=space)
    return lambda: dropout.launch_dropout(x, *at, out, **options)

calls = {}
def add(dtype, shared):
    name = f"{dtype} shared={shared}"
    calls["linear " + name] = linear_call(dtype, shared)
    calls["gaussian " + name] = gaussian_call(dtype, shared, shared)
    calls["conv first " + name] = conv_call(dtype, shared, False)
    calls["conv last " + name] = conv_call(dtype, shared, True)
    calls["dropout " + name] = dropout_call(dtype, shared)

add(torch.float32, False)
add(torch.float32, True)
add(torch.float64, False)
add(torch.bfloat16, True)
calls["depthwise first"] = conv_call(torch.float32, False, False, True)
calls["depthwise last"] = conv_call(torch.float32, False, True, True)
calls["plain convolution"] = conv_call(torch.float32, False, False, bits=0)
for last in (False, True):  # channels first: positions are the lanes
    calls[f"few outputs last={last}"] = conv_call(torch.float32, False, last, C=6)
    calls[f"pooled last={last}"] = conv_call(torch.float32, True, last, C=6, pool=True)
calls["pooled, many outputs"] = conv_call(torch.bfloat16, False, False, pool=True)
allocate = calls["seen"] = lambda: torch.empty(10_000).add_(1)

def through_torch(call):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    events = found.profiler.kineto_results.events()
    return sum(e.name() == "[memory]" and e.nbytes() > 0 for e in events)

report = {}
for name, call in calls.items():
    for _ in range(3):  # compiled, tables made, all threads of the pool started
        call()
    report[name] = counted(call, 3)
    report[name]["torch"] = through_torch(call)
"""


def test_launchers_in_a_workspace_allocate_nothing(tmp_path):
    """No allocation through torch; no malloc of 4 KiB or more, no aligned one, no mapping."""

    report = malloc_counter.count(malloc_counter.build(tmp_path), PROGRAM)
    seen = report.pop("seen")
    assert seen["malloc"] + seen["aligned"] > 0
    assert seen["torch"] > 0
    assert len(report) == 28
    for name, found in report.items():
        assert found == {"malloc": 0, "aligned": 0, "mmap": 0, "largest": 0, "torch": 0}, name
