"""The engine on a GPU: graphs, no allocation, one launch for each layer and chunk."""

import gc

import pytest
import torch
from engine_cases import assert_near, assert_same, convnet, inputs, network
from torch.profiler import ProfilerActivity, profile

from bayes_dc import MonteCarloEngine, convert, predict_with_uncertainty
from bayes_dc.mc.engine_graphs import allocations, run
from bayes_dc.models import lenet5, mlp

pytestmark = pytest.mark.gpu

T = 12
KINDS = {
    "row": {"scope": "row"},
    "sample": {"scope": "sample"},
    "pass": {"scope": "pass"},
    "gaussian": {"sampler": "gaussian"},
    "dropout": {"scope": "row", "dropout": 0.25},
}


def model_of(kind):
    if kind == "convolutions":
        return convnet("cuda").to(memory_format=torch.channels_last)
    return network(device="cuda", **KINDS[kind])


def folded(model, x, **options):
    return predict_with_uncertainty(model, x, T, return_samples=True, engine="folded", **options)


def pools():
    """Memory pools that hold anything."""
    return {segment["segment_pool_id"] for segment in torch.cuda.memory._snapshot()["segments"]}


def eps_of(kind):
    """Convolutions may use TensorFloat-32, which cuDNN's switch allows unless told otherwise."""
    return 2.0**-10 if kind == "convolutions" else 2.0**-23


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "launches"])
@pytest.mark.parametrize("kind", [*KINDS, "convolutions"])
def test_equal_to_the_folded_path(kind, graph):
    model = model_of(kind)
    x = inputs(model, 5)
    engine = MonteCarloEngine(model, x, T, capacity=9, cuda_graph=graph)
    for seed, ids in ((0, None), (7, torch.tensor([3, 10**9, 0, 2**32 - 1, 8]).cuda()), (0, None)):
        got = engine(x, seed=seed, sample_ids=ids, return_samples=True)
        assert_near(got, folded(model, x, seed=seed, sample_ids=ids), eps_of(kind))
    assert engine(x).engine == f"engine, mode 'strict'{', CUDA graph' if graph else ''}"


@pytest.mark.parametrize("kind", ["row", "dropout"])
def test_graphs_launches_lengths_and_chunks_change_no_bit(kind):
    model = model_of(kind)
    x = inputs(model, 7)
    want = MonteCarloEngine(model, x, T)(x, return_samples=True)
    assert_same(MonteCarloEngine(model, x, T, cuda_graph=False)(x, return_samples=True), want)
    for rows in (7, 20, 50):
        engine = MonteCarloEngine(model, x, T, rows=rows)
        for n in (7, 1, 3, 7, 1):
            assert_same(engine(x[:n], return_samples=True), want, slice(0, n))


def test_seeds_ids_and_weights_change_between_replays():
    model = model_of("convolutions")
    x = inputs(model, 4)
    engine = MonteCarloEngine(model, x, T)
    first = engine(x)
    runs = engine._runner._runs
    (captured,) = (r.captured for r in runs.values())
    other = engine(x, seed=1)
    assert not torch.equal(other.mean, first.mean)
    assert_same(engine(x), first)
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean, model[1].running_var):
            tensor.mul_(1.25)
    assert_near(engine(x, return_samples=True), folded(model, x), eps_of("convolutions"))
    assert all(r.captured is captured for key, r in runs.items() if not key[1])


def test_results_are_never_written_over():
    model = model_of("row")
    x = inputs(model, 4)
    engine = MonteCarloEngine(model, x, T)
    first = engine(x)
    mean = first.mean.clone()
    for seed in range(1, 20):
        engine(x, seed=seed)
    assert torch.equal(first.mean, mean)
    out = engine(x, seed=3)
    got = engine(x, out=out)
    assert got.mean is out.mean
    assert_same(got, first)


def test_calls_on_several_streams_follow_each_other():
    model = model_of("row")
    x = inputs(model, 64)
    engine = MonteCarloEngine(model, x, T)
    want = [engine(x, seed=seed) for seed in range(4)]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        for seed, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found.append((seed, engine(x, seed=seed)))
    torch.cuda.synchronize()
    for seed, got in found:
        assert_same(got, want[seed])


@pytest.mark.parametrize("kind", [*KINDS, "convolutions"])
def test_a_run_asks_for_no_memory(kind):
    """100 strict runs without a graph, and a capture; the graph's own pool is empty."""
    model = model_of(kind)
    x = inputs(model, 5)
    engine = MonteCarloEngine(model, x, T, cuda_graph=False, rows=20)
    out = engine(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    for _ in range(100):
        engine(x, out=out)
    (prepared,) = engine._runner._runs.values()
    for _ in range(100):
        run(prepared.calls)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    for name in ("allocation.all.allocated", "segment.all.allocated", "num_alloc_retries"):
        assert after[name] == before[name], name
    before = pools()
    captured = MonteCarloEngine(model, x, T, rows=20)
    captured(x)  # refuses a strict capture that allocates
    assert captured.memory_bytes()["memory of CUDA graphs"] == 0
    assert pools() <= before


def test_the_peak_is_what_the_engine_lists():
    model = model_of("row")
    x = inputs(model, 64)
    gc.collect()
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    engine = MonteCarloEngine(model, x, T)
    out = engine(x)
    held = sum(engine.memory_bytes().values())
    engine(x, out=out)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        engine(x, out=out)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - start
    results = out.mean.untyped_storage().nbytes()
    # Each of about ten tensors is rounded up to 512 bytes.
    assert held + results <= peak <= held + results + 16 * 512


def test_an_allocation_in_a_strict_run_is_named():
    model = model_of("row")
    x = inputs(model, 5)
    engine = MonteCarloEngine(model, x, T)
    before = allocations(x.device)
    prepared = engine._runner._prepared(5, False)
    prepared.calls.append((torch.relu, (x,), {}))
    with pytest.raises(RuntimeError, match="A run of a plan without allocations asked CUDA's all"):
        engine(x)
    assert allocations(x.device) > before


@pytest.mark.parametrize(("rows", "chunks"), [(None, 1), (20, 3)])
def test_a_layer_is_launched_once_for_each_chunk(rows, chunks):
    """What runs on the device, as the profiler sees it."""
    torch.manual_seed(0)
    model = mlp(64, 10, hidden=(128, 96))
    convert(model)
    model = model.cuda()
    x = torch.randn(5, 64, device="cuda")
    engine = MonteCarloEngine(model, x, T, rows=rows)
    engine(x)
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU]
    with profile(activities=activities, acc_events=True) as found:
        engine(x)
        torch.cuda.synchronize()
    names = [e.name for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    linear = ("dropconnect_linear_fwd_kernel", "few_outputs_fwd_kernel")
    assert sum(name.startswith(linear) for name in names) == 3 * chunks
    assert sum("mc_stats_passes" in name for name in names) == chunks
    assert sum("mc_stats_summary" in name for name in names) == 1


def test_predictions_use_an_engine():
    model = model_of("row")
    x = inputs(model, 5)
    got = predict_with_uncertainty(model, x, T, return_samples=True)
    assert got.engine == "engine, mode 'workspace', CUDA graph"
    want = folded(model, x)
    assert_near(got, want)
    again = predict_with_uncertainty(model, x, T, return_samples=True)
    assert_same(again, got)
    assert predict_with_uncertainty(model, x, T, chunk=2).engine == "folded: chunk is given"


def test_a_model_without_a_plan_is_folded_and_says_why():
    class Mixing(torch.nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    model = torch.nn.Sequential(network(device="cuda"), Mixing())
    x = inputs(model, 5)
    got = predict_with_uncertainty(model, x, 3, chunk=1)
    assert got.engine == "folded: chunk is given"
    with pytest.raises(ValueError, match="works along the dimension of the inputs"):
        predict_with_uncertainty(model, x, 3, engine="engine")


def test_folding_a_model_without_a_plan_is_said():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0, device="cuda"))

        def forward(self, x):
            return x * self.scale.item()

    model = torch.nn.Sequential(network(device="cuda"), Scaled())
    x = inputs(model, 5)
    said = "^The passes ran folded: No plan .* Python number of a tensor.* Pass engine='folded'"
    with pytest.warns(UserWarning, match=said):
        got = predict_with_uncertainty(model, x, 3)
    assert_same(got, predict_with_uncertainty(model, x, 3, engine="folded"))


def test_lenet_in_the_memory_of_a_chunk():
    torch.manual_seed(0)
    model = lenet5((1, 28, 28), 10)
    convert(model)
    model = model.cuda().eval()
    x = torch.randn(33, 1, 28, 28, device="cuda")
    engine = MonteCarloEngine(model, x, T, memory=8 << 20)
    assert engine.plan.arena_bytes <= 8 << 20
    assert_near(engine(x, return_samples=True), folded(model, x), eps=2.0**-10)  # TensorFloat-32
