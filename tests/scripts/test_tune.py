"""scripts/tune.py: what is chosen, skipped, refused and written; every written choice is exact."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bayes_dc.ops import _grouped, _tuned
from bayes_dc.ops._tuned import format as tuned_format
from bayes_dc.ops._tuned import measure

SHAPE = {"M": 6, "N": 5, "K": 4}
CASE = measure.Case("linear_fwd", torch.float32, SHAPE)


class Machine:
    """A launcher that multiplies on the CPU, and a clock that knows how long each choice takes."""

    def __init__(self, **ms):
        """Milliseconds by rows: r1=2.0 means that rows=1 takes 2 ms."""
        self.ms = {int(name[1:]): time for name, time in ms.items()}
        self.launched = Counter()
        self.last = None
        self.refused = self.wrong = None
        self.bench = measure.Bench(torch.device("cpu"), self.milliseconds, (RuntimeError,))
        self.kernel = measure.Kernel(self.launch, self.config, self.default, self.scratch)

    @staticmethod
    def config(**fields):
        return _grouped.GroupedConfig(**fields)

    def default(self, *sizes_dtype_device):
        assert _tuned._ignored  # whatever was measured before
        return self.config(rows=1)

    @staticmethod
    def scratch(case, w):
        assert w.shape == (case.sizes["N"], case.sizes["K"])
        return {"extra": w + 1}

    def launch(self, x, w, b, key, sample_ids, pass_ids, out, *, keep, bits, scale, extra, config):
        assert extra.shape == w.shape
        assert (key.shape, sample_ids.shape[0], pass_ids.shape) == ((2,), x.shape[1], (1,))
        if config.rows == self.refused:
            raise RuntimeError("out of something")
        self.launched[config.rows] += 1
        self.last = config
        torch.add(scale * x @ w.t(), b, out=out)
        if config.rows == self.wrong:
            out[0, 0, 0, 0] += 1

    def milliseconds(self, call, repeat_ms):
        assert repeat_ms > 0
        call()
        return self.ms[self.last.rows]

    def configs(self):
        return [self.config(rows=rows) for rows in self.ms]


def test_the_fastest_is_chosen():
    machine = Machine(r1=2.0, r2=1.0, r4=1.5)
    found = measure.measure(CASE, machine.kernel, machine.configs(), machine.bench)
    assert (found.best.rows, found.best_ms, found.default_ms) == (2, 1.0, 2.0)
    assert (found.tried, found.skipped) == (3, Counter())


def test_the_default_is_timed_with_the_best_few():
    """Also where many candidates are faster."""
    machine = Machine(r1=9.0, **{f"r{n}": 1.0 + n for n in range(2, 8)})
    found = measure.measure(CASE, machine.kernel, machine.configs(), machine.bench)
    assert (found.best.rows, found.default_ms, found.tried) == (2, 9.0, 7)
    assert machine.launched[1] > machine.launched[7]


@pytest.mark.parametrize(
    ("ms", "rows"),
    [
        ({1: 1.009, 2: 1.0, 4: 1.0}, 1),  # within 1 %: the default
        ({1: 1.02, 2: 1.009, 4: 1.0}, 2),  # within 1 %: the first of the candidates
        ({1: 1.02, 4: 1.0, 2: 1.011}, 4),
    ],
)
def test_of_equals_the_simplest_is_chosen(ms, rows):
    order = [Machine.config(rows=n) for n in (2, 4)]
    times = {Machine.config(rows=n): time for n, time in ms.items()}
    assert measure.choose(times, Machine.config(rows=1), order).rows == rows


def test_what_does_not_fit_is_skipped_and_counted(tune):
    machine = Machine(r1=2.0, r2=1.0, r4=0.5)
    machine.refused = 4
    configs = machine.configs()
    with ThreadPoolExecutor(2) as pool:
        measure.compile_ahead(
            [CASE], lambda _: machine.kernel, lambda _: configs, machine.bench, pool
        )
    found = measure.measure(CASE, machine.kernel, configs, machine.bench)
    assert (found.best.rows, found.tried, found.skipped) == (2, 2, Counter(RuntimeError=1))
    line = tune.line_of(found)
    assert line.startswith("linear_fwd float32 6×5×4 ")
    assert "2.0000    1.0000 +100.0 %  rows=2 " in line
    assert line.endswith("(2 tried, skipped 1 RuntimeError)")


def test_a_default_that_does_not_run_is_an_error():
    machine = Machine(r1=2.0, r2=1.0)
    machine.refused = 1
    with pytest.raises(measure.TuneError) as caught:
        measure.measure(CASE, machine.kernel, machine.configs(), machine.bench)
    assert str(caught.value).startswith("linear_fwd float32 6×5×4: the default configuration Group")
    assert str(caught.value).endswith(
        "does not run: RuntimeError: out of something. "
        "Leave the shape out if it is too large for this GPU."
    )


def test_other_bits_end_the_run():
    """However fast."""
    machine = Machine(r1=2.0, r2=0.1)
    machine.wrong = 2
    with pytest.raises(measure.TuneError) as caught:
        measure.measure(CASE, machine.kernel, machine.configs(), machine.bench)
    assert "gives other bits than the default on integers, at 1 of 30 places. That is a " in str(
        caught.value
    )


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("forgotten", ["out", "partial"])
def test_what_a_launch_does_not_write_ends_the_run(forgotten, rows):
    """Not even where memory happens to hold the result: of the default, too, and of the room."""
    machine = Machine(r1=2.0, r2=1.0)
    room, right = torch.zeros(5, 4), machine.launch

    def launch(x, w, b, *at, partial, config, **options):
        assert partial is room
        if forgotten != "out" or config.rows != rows:
            right(x, w, b, *at, config=config, **options)
        if forgotten == "partial" and config.rows == rows:
            at[3].add_(partial.sum())

    kernel = machine.kernel._replace(launch=launch, room=lambda case, w: {"partial": room})
    with pytest.raises(measure.TuneError) as caught:
        measure.measure(CASE, kernel, machine.configs(), machine.bench)
    other = "gives other bits than the default"
    what = "leaves NaN, or reads what it has not written," if rows == 1 else other
    assert f"{what} on integers, at 30 of 30 places. That is a bug of the kernel, so the" in str(
        caught.value
    )


def test_every_candidate_of_every_shape_is_compiled_ahead():
    machine = Machine(r1=1.0, r2=1.0)
    cases = [CASE._replace(sizes=SHAPE | {"M": M}) for M in (1, 2, 3)]
    cases += [CASE._replace(dtype=torch.bfloat16)]
    with ThreadPoolExecutor(1) as pool:
        measure.compile_ahead(
            cases, lambda _: machine.kernel, lambda _: machine.configs(), machine.bench, pool
        )
    assert machine.launched == {1: 4, 2: 4}


def test_own_shapes_are_added_to_the_default_ones(tune, tmp_path):
    path = tmp_path / "shapes.yaml"
    path.write_text(
        "linear_fwd: [{dtype: float16, M: 9, N: 8, K: 7}, {dtype: float32, M: 1, N: 2, K: 3}]"
    )
    extra = tune.read_shapes(path)
    cases = tune.cases_of("linear_fwd", [(1, 2, 3)], extra)
    assert [str(case) for case in cases] == [
        "linear_fwd float32 1×2×3",
        "linear_fwd bfloat16 1×2×3",
        "linear_fwd float16 1×2×3",
        "linear_fwd float16 9×8×7",
    ]
    assert len(tune.cases_of("linear_dx", [(1, 2, 3)], extra)) == 3


def test_the_tables_name_what_the_files_know(tune):
    """Every operator has shapes and candidates, in the words of the format."""
    assert list(tune.SHAPES) == list(tune.CANDIDATES)
    assert set(tune.SHAPES) <= set(tuned_format.OPS)
    for op, shapes in tune.SHAPES.items():
        assert {len(shape) for shape in shapes} == {len(tuned_format.OPS[op].sizes)}
        fields = [tuple(sorted(c.items())) for c in tune.CANDIDATES[op]]
        assert len(fields) == len(set(fields))
        assert {name for c in tune.CANDIDATES[op] for name in c} <= set(tuned_format.OPS[op].fields)


@pytest.mark.parametrize("dtype", tuned_format.DTYPES.values(), ids=tuned_format.DTYPES)
def test_every_candidate_has_tiles_that_the_tensor_cores_take(tune, dtype):
    """A word of the mask has 32 outputs, a product 16 rows and inputs, in every type."""
    for op in (op for op in tune.CANDIDATES if op.startswith("linear_grouped")):
        found = tune.candidates_of(op, dtype, _grouped.GroupedConfig)
        assert len(found) == len(set(found)) >= 6
        for c in found:
            assert (c.outputs % 32, c.inputs % 16, c.rows % 16) == (0, 0, 0), (op, c)
            assert min(c.outputs, c.inputs, c.rows) > 0


@pytest.fixture
def run(tune, monkeypatch):
    """Tune two operators on a machine where rows=2 is the best."""
    machine = Machine(r1=2.0, r2=1.0)
    monkeypatch.setattr(tune, "SHAPES", {"linear_fwd": [(6, 5, 4)], "gaussian_linear": [(6, 5, 4)]})
    candidates = [{"rows": 1}, {"rows": 2}]
    monkeypatch.setattr(tune, "CANDIDATES", dict.fromkeys(tune.SHAPES, candidates))
    monkeypatch.setattr(tune, "load_kernel", lambda op: machine.kernel)
    monkeypatch.setattr(tune, "merged", merged_by(tune.merged))

    def call(*options):
        arguments = tune.parse_arguments(options)
        with ThreadPoolExecutor(1) as pool:
            return tune.tune(arguments, machine.bench, pool, "NVIDIA Test")

    return call


def merged_by(merged):
    """Leave the fields out that linear_fwd does not have, which the machine's choices do."""

    def call(old, gpu, op, results):
        tuned = merged(old, gpu, op, results)
        entries = [e._replace(config={"rows": e.config["rows"]}) for e in tuned.configs[op]]
        return tuned._replace(configs=tuned.configs | {op: entries})

    return call


def test_what_was_chosen_is_written(run, tmp_path, capsys):
    pytest.importorskip("triton", reason="its version is written")
    assert run() == []
    tuned = _tuned.load("NVIDIA Test")
    assert tuned.gpu == "NVIDIA Test"
    assert list(tuned.configs) == list(tuned.measured) == ["linear_fwd", "gaussian_linear"]
    assert [e.dtype for e in tuned.configs["linear_fwd"]] == list(tuned_format.DTYPES.values())
    assert tuned.configs["linear_fwd"][0] == (torch.float32, SHAPE, {"rows": 2})
    assert tuned.measured["linear_fwd"]["torch"] == torch.__version__
    assert [p.name for p in tmp_path.iterdir()] == ["nvidia-test.yaml"]
    out = capsys.readouterr().out
    assert out.startswith("NVIDIA Test: milliseconds of the default and of the best configuration")
    assert out.count("+100.0 %  rows=2") == 6
    assert out.endswith("nvidia-test.yaml written\n")


def test_the_other_operators_stay(run, tmp_path):
    pytest.importorskip("triton", reason="its version is written")
    path = tmp_path / "nvidia-test.yaml"
    entry = tuned_format.Entry(torch.float32, {"M": 1, "N": 1, "K": 1}, {"rows": 8})
    how = {"torch": "1", "triton": "1", "date": "1999-12-31"}
    ops = ("linear_fwd", "linear_dx")
    old = tuned_format.Tuned("NVIDIA Test", dict.fromkeys(ops, how), {op: [entry] for op in ops})
    path.write_text(tuned_format.dump(old))
    assert run("--op", "linear_fwd") == []
    new = _tuned.load("NVIDIA Test")
    assert (new.measured["linear_dx"], new.configs["linear_dx"]) == (how, [entry])
    assert new.configs["linear_fwd"][0].config == {"rows": 2}
    assert new.measured["linear_fwd"] != how


def test_a_dry_run_writes_nothing(run, tmp_path, capsys):
    pytest.importorskip("triton", reason="its version is written")
    assert run("--dry-run") == []
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out.endswith("nothing written\n")


def test_the_budget_leaves_operators_out(run, tune, tmp_path, monkeypatch, capsys):
    """An operator is written when all its shapes were measured."""
    pytest.importorskip("triton", reason="its version is written")
    assert run("--budget-seconds", "0") == ["linear_fwd", "gaussian_linear"]
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out.endswith("nothing written\n")
    clock = iter(range(1000))
    monkeypatch.setattr(tune.time, "monotonic", lambda: next(clock))
    left_out = run("--budget-seconds", "8")
    assert left_out == ["gaussian_linear"]
    assert list(_tuned.load("NVIDIA Test").configs) == ["linear_fwd"]


@pytest.mark.usefixtures("_tf32")
def test_exit_codes(tune, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Test")
    monkeypatch.setattr(tune, "gpu_bench", lambda: None)
    monkeypatch.setattr(tune, "gpu_workers", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(tune, "tune", lambda *_: ["linear_dw"])
    assert tune.main([]) == 1
    assert capsys.readouterr().err == "the budget left out, as they were: linear_dw\n"
    monkeypatch.setattr(tune, "tune", lambda *_: [])
    assert tune.main([]) == 0

    def fail(*_):
        raise measure.TuneError("what went wrong")

    monkeypatch.setattr(tune, "tune", fail)
    assert tune.main([]) == 2
    assert capsys.readouterr().err == "error: what went wrong\n"


def test_shapes_that_cannot_be_read(run, tmp_path):
    with pytest.raises(OSError, match=r"no\.yaml"):
        run("--shapes", str(tmp_path / "no.yaml"))
    (tmp_path / "bad.yaml").write_text("linear_fwd: [{M: 1}]")
    with pytest.raises(ValueError, match=r"bad\.yaml: linear_fwd\[0\] lacks the key 'dtype'"):
        run("--shapes", str(tmp_path / "bad.yaml"))


def test_without_a_gpu_it_says_so(tune, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.main(["--dry-run"]) == 2
    assert capsys.readouterr().err == (
        "error: no CUDA GPU to time on; run this where torch.cuda.is_available() is True\n"
    )


@pytest.mark.usefixtures("_tf32")
def test_workers_may_use_tensor_float_32_as_the_command_does(tune, monkeypatch):
    """Or they would compile other kernels than are measured."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**31, 2**31))
    torch.set_float32_matmul_precision("highest")
    with tune.gpu_workers() as pool:
        assert pool.submit(torch.get_float32_matmul_precision).result() == "high"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Test")
    monkeypatch.setattr(tune, "gpu_bench", lambda: None)
    monkeypatch.setattr(tune, "gpu_workers", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(tune, "tune", lambda *_: [])
    tune.main([])
    assert torch.get_float32_matmul_precision() == "high"
    assert _grouped.uses_tensor_cores(16, torch.float32)
