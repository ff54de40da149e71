"""Launch configurations as data: reading, refusing, finding the nearest."""

import importlib.resources
import subprocess
import sys
import timeit
from pathlib import Path

import pytest
import torch

from bayes_dc.ops import _tuned
from bayes_dc.ops._tuned import format as tuned_format

GPU = "NVIDIA Test 9000"
CUDA = torch.device("cuda", 0)
TEXT = """\
gpu: NVIDIA Test 9000
measured:
  linear_fwd: {torch: 2.11.0, triton: 3.6.0, date: 2026-01-31}
  linear_grouped_dw: {torch: 2.11.0, triton: 3.6.0, date: '2026-01-31'}
configs:
  linear_fwd:
  - {dtype: float32, M: 128, N: 1024, K: 1024, config: {rows: 1, warps: 1}}
  - {dtype: float32, M: 8192, N: 1024, K: 1024, config: {rows: 2, warps: 4}}
  - {dtype: float32, M: 8192, N: 16, K: 1024, config: {rows: 4}}
  - {dtype: float32, M: 2048, N: 1024, K: 1024, config: {rows: 8, warps: 1}}
  - {dtype: float32, M: 8, N: 1, K: 1, config: {rows: 16}}
  - {dtype: bfloat16, M: 128, N: 64, K: 64, config: {rows: 8}}
  linear_grouped_dw:
  - {dtype: float16, G: 4, R: 16, N: 64, K: 64, config: {rows: 16, stages: 3}}
"""


@pytest.fixture
def asked():
    """The devices that were asked for their names."""
    return []


@pytest.fixture
def gpu(monkeypatch, tmp_path, asked):
    """A machine with one GPU and the file of that GPU; returns the path of the file."""

    def get_device_name(index):
        asked.append(index)
        return GPU

    monkeypatch.setattr(torch.cuda, "get_device_name", get_device_name)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(importlib.resources, "files", lambda _: tmp_path)
    path = tmp_path / "nvidia-test-9000.yaml"
    path.write_text(TEXT, encoding="utf-8")
    forget()
    yield path
    forget()


def forget():
    _tuned._nearest.cache_clear()
    _tuned._of_device.cache_clear()


def fwd(M, N, K, dtype=torch.float32, device=CUDA):
    return _tuned.lookup("linear_fwd", device, dtype, M=M, N=N, K=K)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((128, 1024, 1024), {"rows": 1, "warps": 1}),  # the very shape
        ((500, 1024, 1024), {"rows": 1, "warps": 1}),
        ((512, 1024, 1024), {"rows": 1, "warps": 1}),  # halfway: the first
        ((600, 1024, 1024), {"rows": 8, "warps": 1}),  # by difference 128 would be nearer
        ((4 * 8192, 900, 1100), {"rows": 2, "warps": 4}),
        ((4 * 8192 + 1, 1024, 1024), None),
        ((8192, 10, 1024), {"rows": 4}),
        ((8192, 3, 1024), None),
        ((2, 1, 1), {"rows": 16}),
        ((2, 0, 0), {"rows": 16}),  # nothing counts as one
        ((0, 0, 0), None),
    ],
)
def test_the_nearest_shape_is_found(shape, config):
    """Nearest in the logarithms of the sizes, none of which is more than four times off."""
    assert fwd(*shape) == config


@pytest.mark.usefixtures("gpu")
def test_each_operator_and_type_has_its_own():
    assert fwd(128, 64, 64, torch.bfloat16) == {"rows": 8}
    sizes = {"K": 64, "N": 32, "R": 8, "G": 1}  # in any order
    found = _tuned.lookup("linear_grouped_dw", CUDA, torch.float16, **sizes)
    assert found == {"rows": 16, "stages": 3}


@pytest.mark.usefixtures("gpu")
def test_what_was_not_measured_is_none():
    """Then the launchers have defaults of their own."""
    assert fwd(128, 1024, 1024, torch.float16) is None
    assert fwd(128, 1024, 1024, torch.float64) is None
    assert fwd(128, 1024, 1024, device=None) is None
    assert fwd(128, 1024, 1024, device=torch.device("cpu")) is None
    assert _tuned.lookup("linear_dx", CUDA, torch.float32, M=1, N=1, K=1) is None


@pytest.mark.usefixtures("gpu")
def test_what_was_measured_can_be_ignored():
    with _tuned.ignored():
        assert fwd(128, 1024, 1024) is None
    assert fwd(128, 1024, 1024) == {"rows": 1, "warps": 1}


def test_an_unknown_gpu_has_none(gpu):
    gpu.unlink()
    assert fwd(128, 1024, 1024) is None
    assert _tuned.load(GPU) is None


def test_device_and_file_are_read_once(gpu, asked):
    """Capturing a CUDA graph allows no questions to the device."""
    first = fwd(128, 1024, 1024)
    gpu.unlink()
    assert fwd(128, 1024, 1024) == first
    assert fwd(77, 1024, 1024) == first
    assert fwd(77, 1024, 1024, device=torch.device("cuda")) == first
    assert asked == [0]


@pytest.mark.usefixtures("gpu")
def test_a_caller_cannot_change_what_was_read():
    fwd(128, 1024, 1024)["rows"] = 99
    assert fwd(128, 1024, 1024) == {"rows": 1, "warps": 1}


@pytest.mark.usefixtures("gpu")
def test_a_second_lookup_costs_less_than_two_microseconds():
    """It is part of every launch."""
    fwd(128, 1024, 1024)
    calls = 2000
    one = min(timeit.repeat(lambda: fwd(128, 1024, 1024), number=calls, repeat=20)) / calls
    assert one < 2e-6


@pytest.mark.usefixtures("gpu")
def test_wrong_sizes_are_refused():
    with pytest.raises(
        ValueError, match=r"^linear_fwd is looked up by the sizes M, N, K, got G, R"
    ):
        _tuned.lookup("linear_fwd", CUDA, torch.float32, G=1, R=2)


@pytest.mark.parametrize("device", [CUDA, torch.device("cpu"), None])
def test_an_unknown_operator_is_refused(device):
    """On any machine: None would mean a default for ever."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        _tuned.lookup("linear_up", device, torch.float32, M=1)
    assert str(caught.value) == (
        "Launch configurations are known for linear_fwd, linear_dx, linear_dw, linear_grouped_fwd, "
        "linear_grouped_dx, linear_grouped_dw, gaussian_linear, not for 'linear_up': look one of "
        "those up."
    )


@pytest.mark.parametrize(
    ("gpu_name", "name"),
    [
        ("NVIDIA H200", "nvidia-h200.yaml"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb.yaml"),
        ("Graphics Device (x/../y) ", "graphics-device-x-y.yaml"),
    ],
)
def test_file_names(gpu_name, name):
    assert _tuned.file_name(gpu_name) == name


def test_a_file_is_written_as_it_was_read():
    tuned = tuned_format.parse(TEXT, "file")
    assert tuned.measured["linear_fwd"] == {
        "torch": "2.11.0",
        "triton": "3.6.0",
        "date": "2026-01-31",
    }
    assert tuned_format.parse(tuned_format.dump(tuned), "file") == tuned
    odd = tuned._replace(gpu="a: b # c")
    assert tuned_format.parse(tuned_format.dump(odd), "file") == odd


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu:", "gpu: [", "is not YAML: "),
        (TEXT, "a list", "the file must be a mapping with the keys gpu, measured, configs, got 'a"),
        ("gpu: NVIDIA Test 9000", "gpu: 5", "gpu must be text, got 5"),
        ("gpu: NVIDIA Test 9000\n", "", "the file lacks the key 'gpu'; needed are gpu, measured,"),
        ("gpu:", "more: 1\ngpu:", "the file has the unknown key 'more'; known keys are gpu, "),
        ("  linear_fwd:\n", "  linear_up:\n", "configs has the unknown key 'linear_up'; known"),
        (
            "  linear_fwd: {torch",
            "  linear_dx: {torch",
            "measured has the unknown key 'linear_dx'; known keys are linear_fwd, linear_gr",
        ),
        ("torch: 2.11.0, ", "", "measured.linear_fwd lacks the key 'torch'; needed are torch, tri"),
        ("date: 2026", "day: 1, date: 2026", "measured.linear_fwd has the unknown key 'day'"),
        (
            "float16, G",
            "float64, G",
            "configs.linear_grouped_dw[0].dtype must be float32 or bfloat16 or float16, got",
        ),
        (
            "dtype: float16",
            "dtype: [float32]",
            "dtype must be float32 or bfloat16 or float16, got [",
        ),
        (
            "dtype: float16",
            "dtype: {a: 1}",
            "dtype must be float32 or bfloat16 or float16, got {'a",
        ),
        (
            "triton: 3.6.0, date: '",
            "triton: [3], date: '",
            "grouped_dw.triton must be text, got [3]",
        ),
        ("date: 2026-01-31", "date: ", "measured.linear_fwd.date must be text, got None"),
        ("gpu:", "gpu: other\ngpu:", "the key 'gpu' comes twice, again at line 2. "),
        (
            "  linear_grouped_dw:\n",
            "  linear_fwd:\n",
            "the key 'linear_fwd' comes twice, again at l",
        ),
        ("{rows: 4}", "{rows: 4, rows: 8}", "the key 'rows' comes twice, again at line 9. "),
        ("M: 128, ", "", "configs.linear_fwd[0] lacks the key 'M'; needed are dtype, M, N, K, co"),
        ("M: 128,", "M: 128, R: 1,", "configs.linear_fwd[0] has the unknown key 'R'; known keys"),
        ("M: 128,", "M: 128.5,", "configs.linear_fwd[0].M must be a whole number of at least 1, g"),
        ("M: 128,", "M: true,", "configs.linear_fwd[0].M must be a whole number of at least 1, g"),
        (
            "M: 128,",
            "M: 0,",
            "configs.linear_fwd[0].M must be a whole number of at least 1, got 0.",
        ),
        (
            "{rows: 4}",
            "{row: 4}",
            "configs.linear_fwd[2].config has the unknown key 'row'; known keys are rows, lanes, ",
        ),
        ("{rows: 4}", "{rows: two}", "configs.linear_fwd[2].config.rows must be a whole number of"),
        ("{rows: 4}", "{rows: -1}", "configs.linear_fwd[2].config.rows must be a whole number of"),
        ("{rows: 4}", "{rows: 0}", "configs.linear_fwd[2].config.rows must be a whole number of"),
        ("{rows: 4}", "{rows: 3}", "config.rows must be a power of two of at most 1024, got 3."),
        ("{rows: 4}", "{rows: 2048}", "must be a power of two of at most 1024, got 2048."),
        ("{rows: 4}", "[4]", "configs.linear_fwd[2].config must be a mapping with the keys rows, "),
        ("M: 128, N: 1024", "M: 8192, N: 1024", "configs.linear_fwd[1] is the same shape as conf"),
        (
            TEXT[TEXT.index("  - ") :],
            "    5\n",
            "configs.linear_fwd must be a list of entries, got 5",
        ),
    ],
)
def test_a_malformed_file_is_refused(gpu, old, new, message):
    """By its name and the key, with what to do; at the lookup, not at import."""
    assert old in TEXT
    gpu.write_text(TEXT.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        fwd(128, 1024, 1024)
    assert str(caught.value).startswith(f"{gpu}")
    assert message in str(caught.value)
    assert str(caught.value).endswith(
        "Correct it, or delete the file and write it again with scripts/tune.py."
    )


def test_shapes_are_read_like_entries():
    shapes = tuned_format.parse_shapes("linear_dx: [{dtype: float32, M: 1, N: 2, K: 3}]", "file")
    entry = tuned_format.Entry(torch.float32, {"M": 1, "N": 2, "K": 3}, {})
    assert shapes == {"linear_dx": [entry]}
    with pytest.raises(ValueError, match=r"^file: linear_dx\[0\] has the unknown key 'con"):
        tuned_format.parse_shapes(
            "linear_dx: [{dtype: float32, M: 1, N: 2, K: 3, config: {}}]", "file"
        )
    with pytest.raises(ValueError, match=r"A list of shapes looks like this: linear_fwd: \["):
        tuned_format.parse_shapes("", "file")
    with pytest.raises(
        ValueError, match=r"^file: the key 'linear_dx' comes twice, again at line 2"
    ):
        tuned_format.parse_shapes("linear_dx: []\nlinear_dx: []", "file")


def test_the_committed_files_are_well_formed():
    """Each is named after its GPU."""
    for path in Path(_tuned.__file__).parent.glob("*.yaml"):
        tuned = tuned_format.parse(path.read_text(encoding="utf-8"), path.name)
        assert _tuned.file_name(tuned.gpu) == path.name
        assert tuned.configs


def test_yaml_is_imported_with_the_first_file():
    code = (
        "import sys, torch; before = set(sys.modules); import bayes_dc; "
        "from bayes_dc.ops import _tuned; "
        "_tuned.lookup('linear_fwd', torch.device('cpu'), torch.float32, M=1, N=1, K=1); "
        "assert 'yaml' not in set(sys.modules) - before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
