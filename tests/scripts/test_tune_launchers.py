"""scripts/tune.py with the real launchers, and the files it wrote: every choice is exact."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness
import pytest
import torch
from harness import Shape, assert_bitwise_equal, make_case

from bayes_dc.ops import _tuned
from bayes_dc.ops._tuned import format as tuned_format
from bayes_dc.ops._tuned import measure


def small(op, dtype=torch.float32):
    """A shape with tails along every dimension."""
    sizes = {"M": 21, "G": 2, "R": 21, "N": 40, "K": 44}
    return measure.Case(op, dtype, {name: sizes[name] for name in tuned_format.OPS[op].sizes})


def still_bench(backend):
    """A clock that stands still."""
    return measure.Bench(torch.device(harness.device_of(backend)), lambda call, _: 1.0, ())


@pytest.mark.interpreter
@pytest.mark.parametrize("op", tuned_format.OPS)
def test_the_real_launchers_can_be_measured(op, tune):
    """Their inputs, scratch, configurations and defaults, on the CPU."""
    kernel, case = tune.load_kernel(op), small(op)
    configs = [kernel.config(**tune.CANDIDATES[op][0])]
    found = measure.measure(case, kernel, configs, still_bench("interpreter"))
    assert found.tried == 2
    assert found.best == kernel.default(*case.sizes.values(), case.dtype, torch.device("cpu"))
    assert not _tuned._ignored


@pytest.mark.gpu
@pytest.mark.usefixtures("_tf32")
def test_tuning_on_a_gpu(tune, monkeypatch, capsys):
    """Small shapes, written and read back."""
    monkeypatch.setattr(tune, "gpu_workers", lambda: ThreadPoolExecutor(8))
    few = {op: candidates[:2] for op, candidates in tune.CANDIDATES.items()}
    monkeypatch.setattr(tune, "CANDIDATES", few)
    monkeypatch.setattr(tune, "DTYPES", {"float32": torch.float32})
    shapes = {"linear_fwd": [(70, 40, 24)], "linear_dw": [(300, 40, 24)]}
    monkeypatch.setattr(tune, "SHAPES", shapes)
    assert tune.main([]) == 0
    tuned = _tuned.load(torch.cuda.get_device_name())
    assert [len(entries) for entries in tuned.configs.values()] == [1, 1]
    assert capsys.readouterr().out.count(" tried") == 2


def committed():
    """Every configuration of the committed files, once."""
    found = {}
    for path in sorted(Path(_tuned.__file__).parent.glob("*.yaml")):
        tuned = tuned_format.parse(path.read_text(encoding="utf-8"), path.name)
        for op, entries in tuned.configs.items():
            for entry in entries:
                key = (op, entry.dtype, tuple(entry.config.items()))
                found[key] = f"{path.stem}-{op}-{entry.dtype}-{list(entry.config.values())}"
    return [pytest.param(*key, id=name) for key, name in found.items()]


def test_every_committed_file_is_as_the_command_writes_it():
    """Header line and every field."""
    for path in Path(_tuned.__file__).parent.glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        tuned = tuned_format.parse(text, path.name)
        assert text == tuned_format.dump(tuned)
        for op, entries in tuned.configs.items():
            assert all(tuple(e.config) == tuned_format.OPS[op].fields for e in entries)


@pytest.mark.parametrize("backend", harness.TRITON)
@pytest.mark.parametrize(("op", "dtype", "config"), committed())
def test_every_committed_configuration_gives_equal_bits(
    op, dtype, config, backend, tune, monkeypatch
):
    """On integers, with tails along every dimension: tuning changes speed only."""
    kernel = tune.load_kernel(op)
    chosen = kernel.config(**dict(config))
    if op == "gaussian_linear":  # draws are not integers: those of the default
        measure.measure(small(op, dtype), kernel, [chosen], still_bench(backend))
        return
    monkeypatch.setattr(harness, "launchers", lambda _: (kernel.launch,) * 3)
    name = {"fwd": "y", "dx": "dx", "dw": "dw"}[op.rpartition("_")[2]]
    R = 21 if "R" in tuned_format.OPS[op].sizes else 1
    shape = Shape(1, 11, R, 40, 44) if backend == "cuda" else Shape(1, 3, R, 33, 12)
    case = make_case(shape, dtype=dtype, integers=True)
    got = case.run(backend, only=name, config=chosen)[name]
    assert_bitwise_equal(got, case.expected()[name], name)
