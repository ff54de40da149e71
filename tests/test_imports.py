"""Who imports whom, and what `import bayes_dc` does: nothing but define its names."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import bayes_dc

ROOT = Path(bayes_dc.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Sub-package → what it may import of the package, beside itself.
ALLOWED = {
    "types": set(),
    "command_line": set(),
    "rng": {"types"},
    "ops": {"rng", "types"},
    "nn": {"ops", "rng", "types"},
    "models": set(),
    "metrics": {"types"},
    "datasets": {"types"},
    "mc": {"nn", "ops", "rng", "types"},
    "train": {"nn", "models", "metrics", "datasets", "mc", "types"},
    "report": {"mc", "metrics", "types"},
    "acquire": {"nn", "mc", "metrics", "datasets", "types"},
    "config": {
        *("nn", "ops", "rng", "models", "metrics", "datasets", "mc", "train", "acquire", "types"),
    },
    "__init__": {"datasets", "mc", "metrics", "models", "nn", "ops", "types"},
}

# Inside an op: part → what it may import of the same op, of ops, and of rng.
OP_PARTS = {
    "__init__": {"api", "op"},
    "api": {"op", "reference", "rng", "gaussian", "_arguments", "_results"},
    "op": {
        "cpu",
        "triton",
        "triton_few",
        "factors",
        "_conv",
        "_device",
        "_grouped",
        "_launch",
        "_register",
    },
    "reference": {"rng", "linear.reference"},
    "cpu": {
        *("_cpu", "factors", "rng", "_cpu_memory", "_cpu_pack", "_cpu_tasks", "_epilogue"),
        "_threads",
    },
    "_cpu": {
        *("_cpu", "rng", "_cpu_emit", "_cpu_interleave", "_cpu_memory", "_cpu_pack", "_cpu_tasks"),
        "_threads",
    },
    "triton": {
        *("triton_fma", "triton_rows", "triton_notes", "triton_passes", "triton_noise"),
        "triton_producers",
        *("triton_wgmma_gemm", "triton_wgmma_dw", "triton_staged_fwd", "triton_staged_dw"),
        *("triton_sums", "triton_parts_fwd", "triton_elements_fwd", "triton_few_fwd"),
        *("triton_ends", "triton_stage"),
        *("triton_hopper_gemm", "triton_hopper_dw", "triton_direct", "triton_patches"),
        "triton_few",
        *("factors", "rng", "_splits", "_tiles"),
        *("_conv", "_coordinates", "_device", "_epilogue", "_grouped", "_hopper", "_launch"),
        *("triton_narrow_fwd", "triton_wgmma_parts", "_parts", "_tuned"),
    },
    "triton_fma": set(),
    "triton_stage": {"triton_fma"},
    "triton_kept": set(),
    "triton_sums": {"triton_fma", "triton_stage", "rng"},
    "triton_staged_fwd": {"triton_kept", "triton_stage", "triton_sums"},
    "triton_parts_fwd": {"triton_kept", "triton_stage", "triton_sums"},
    "triton_elements_fwd": {"triton_fma", "triton_sums", "rng"},
    "triton_ends": set(),
    "triton_few_fwd": {
        *("triton_ends", "triton_kept", "triton_stage", "triton_sums", "_coordinates", "_launch"),
    },
    "triton_staged_dw": {"triton_fma", "triton_stage", "_coordinates", "rng"},
    "triton_rows": set(),
    "triton_notes": {"triton_rows"},
    "triton_passes": {"triton_notes"},
    "triton_noise": {"rng"},
    "triton_producers": {"_hopper", "rng"},
    "triton_patches": {"_tiles", "rng"},
    "triton_direct": {"triton_patches", "_conv", "_launch", "_tiles", "rng"},
    "triton_few_kernel": {"triton_patches", "_wgmma"},
    "triton_few": {"triton_few_kernel", "_conv", "_device", "_launch"},
    "triton_wgmma_gemm": {"_wgmma", "_device", "_grouped", "_hopper", "_launch"},
    "triton_wgmma_parts_kernel": {"_hopper", "_wgmma"},
    "triton_wgmma_parts": {
        *("triton_wgmma_parts_kernel", "_device", "_grouped", "_hopper", "_launch", "_parts"),
    },
    "triton_narrow_fwd": {"rng", "_grouped", "_launch", "_parts", "_tiles"},
    "triton_wgmma_dw": {"_wgmma", "_device", "_grouped", "_hopper", "_launch"},
    "triton_hopper_walk": {"_wgmma"},
    "triton_hopper_store": {"_wgmma"},
    "triton_hopper_products": {"triton_hopper_walk", "_hopper", "_wgmma"},
    "triton_hopper_kernel": {
        *("triton_hopper_walk", "triton_hopper_products", "triton_hopper_store"),
        *("_hopper", "_wgmma"),
    },
    "triton_hopper_gemm": {"triton_hopper_kernel", "_device", "_hopper", "_launch"},
    "triton_hopper_kept": {"_wgmma"},
    "triton_hopper_dw_steps": {"_hopper", "_wgmma"},
    "triton_hopper_dw_kernel": {"triton_hopper_dw_steps", "triton_hopper_kept", "_hopper"},
    "triton_hopper_dw": {
        *("triton_hopper_dw_kernel", "triton_hopper_dw_steps", "_device", "_hopper", "_launch"),
    },
    "factors": set(),
    # Plain layers: they share a way to walk over strides, and the convolution's kernels.
    "_strided": set(),
    "triton_strided": set(),
    "triton_affine": {"_strided", "triton_strided", "_launch"},
    "triton_normalize": {"_strided", "triton_strided", "_launch"},
    "triton_reduce": {"_strided", "triton_strided", "_launch"},
    "triton_pool": {"_strided", "triton_reduce", "_launch"},
    "triton_attention": {"_strided", "triton_strided", "_device", "_launch"},
    "triton_conv2d": {"conv2d.triton_fwd"},
}


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


def imports(path):
    """Modules a file imports anywhere, with `from package import module` resolved."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
    return found


def ours(path):
    return {name for name in imports(path) if name.split(".")[0] == "bayes_dc"}


def part_of(module):
    """'bayes_dc.ops.linear.op' → 'ops'; 'bayes_dc' → '__init__'."""
    return [*module.split("."), "__init__"][1]


def ids(path):
    return str(path.relative_to(ROOT))


def test_the_table_covers_the_package():
    """A new sub-package needs a row; a row without one is stale."""
    parts = {part_of(module) for module in MODULES}
    assert parts == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_imports_follow_the_table(path):
    here = part_of(module_name(path))
    foreign = {part_of(name) for name in ours(path)} - {here}
    assert foreign <= ALLOWED[here]


def op_part(name):
    """The row of OP_PARTS of a file of an op."""
    if name.startswith("triton_"):
        return name if name in OP_PARTS else "triton"
    return "_cpu" if name.startswith("_cpu_") else name


# _tuned holds data of all ops and is none.
OP_FILES = [p for p in FILES if p.parent.parent.name == "ops" and p.parent.name != "_tuned"]


@pytest.mark.parametrize("path", OP_FILES, ids=ids)
def test_imports_inside_an_op_go_one_way(path):
    """api → op → {cpu, triton_*} → rng, api → reference: implementations do not see each other."""
    op = module_name(path.parent / "__init__.py")
    here = op_part(path.stem)
    seen = set()
    for name in ours(path):
        if name.startswith(f"{op}."):
            seen.add(op_part(name.removeprefix(f"{op}.")))
        elif part_of(name) == "ops":
            seen.add(name.removeprefix("bayes_dc.ops").removeprefix("."))
        else:
            seen.add(part_of(name))
    assert seen - {"types"} <= OP_PARTS[here]


def may_import_triton(path):
    if path.parent.parent.name == "ops":
        return path.stem.startswith("triton_")
    shared = ("_coordinates", "_hopper", "_launch", "_splits", "_tiles", "_wgmma")
    return ids(path) in {"rng/device.py", *(f"ops/{name}.py" for name in shared)}


@pytest.mark.parametrize("path", [p for p in FILES if not may_import_triton(p)], ids=ids)
def test_only_kernels_import_triton(path):
    assert "triton" not in {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", [p for p in FILES if "models" in p.parts], ids=ids)
def test_models_are_torch_only(path):
    others = {n.split(".")[0] for n in imports(path)} - {"torch", "bayes_dc"}
    assert others <= sys.stdlib_module_names


INSIDERS = {"tune.py"}  # times the launchers themselves
SCRIPTS = sorted(
    p
    for name in ("scripts", "benchmarks")
    for p in ROOT.parent.glob(f"{name}/*.py")
    if p.name not in INSIDERS
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_scripts_use_public_names(path):
    """No underscore, and sub-packages rather than their files."""
    for name in ours(path):
        assert not any(part.startswith("_") for part in name.split("."))
        assert part_of(name) in {*ALLOWED}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "bayes_dc":
            assert not [alias.name for alias in node.names if alias.name.startswith("_")]


def test_public_names():
    """At most 15, each there, each in a documented place."""
    assert len(bayes_dc.__all__) <= 15
    assert bayes_dc.__all__ == sorted(set(bayes_dc.__all__))
    for name in bayes_dc.__all__:
        assert getattr(bayes_dc, name).__doc__


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "__init__.py"], ids=ids)
def test_sub_packages_list_what_they_export(path):
    module = sys.modules.get(module_name(path)) or __import__(module_name(path), fromlist=["_"])
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


IMPORT = """
import json, logging, sys, warnings
import numpy, torch
for blocked in {blocked}:
    sys.modules[blocked] = None
def state():
    return {{
        "dtype": str(torch.get_default_dtype()),
        "torch": torch.get_rng_state().sum().item(),
        "numpy": str(numpy.random.get_state()),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "filters": str(warnings.filters),
        "handlers": str(logging.getLogger().handlers),
        "level": logging.getLogger().level,
        "excepthook": str(sys.excepthook),
        "argv": sys.argv,
        "path": sys.path,
    }}
before, loaded = state(), set(sys.modules)
import bayes_dc
after = state()
report = {{
    "changed": [name for name in before if before[name] != after[name]],
    "loaded": sorted({{name.split(".")[0] for name in set(sys.modules) - loaded}}),
    "names": [name for name in dir(bayes_dc) if not name.startswith("_")],
    "all": bayes_dc.__all__,
}}
{then}
print(json.dumps(report))
"""


def fresh_interpreter(*, blocked=(), then=""):
    """Report of a process that imports torch and NumPy first, so that theirs is not ours."""
    code = IMPORT.format(blocked=list(blocked), then=then)
    result = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:bayes_dc", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT.parent,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def fresh():
    return fresh_interpreter()


def test_import_changes_no_global_state(fresh):
    assert fresh["changed"] == []


def test_import_loads_no_heavy_package(fresh):
    """They are loaded where they are used."""
    heavy = {"matplotlib", "jinja2", "numba", "llvmlite", "sklearn", "torchvision", "triton"}
    heavy |= {"pydantic", "yaml", "PIL", "scipy", "safetensors", "tqdm"}
    # torch's compiler takes a second to load and brings sympy.
    assert not {*heavy, "sympy"} & set(fresh["loaded"])


def test_import_defines_the_public_names_and_its_parts(fresh):
    """Sub-packages that were imported on the way are attributes too; nothing else is."""
    parts = {part for part in ALLOWED if not part.startswith("_")}
    assert set(fresh["all"]) <= set(fresh["names"]) <= {*fresh["all"], *parts}


RUN = """
import torch
model = bayes_dc.models.mlp(6, 3, hidden=(5,))
bayes_dc.convert(model, p=0.5)
model(torch.ones(4, 6)).sum().backward()
prediction = bayes_dc.predict_with_uncertainty(model, torch.ones(4, 6), T=5)
report["variance"] = prediction.variance.sum().item()
from bayes_dc.metrics import ece
report["ece"] = ece(prediction.mean, torch.zeros(4, dtype=torch.int64)).item()
"""


@pytest.mark.parametrize("blocked", ["triton", "matplotlib"])
def test_import_and_a_prediction_work_without(blocked):
    """Triton has no wheel for every platform; plots may be unwanted."""
    report = fresh_interpreter(blocked=[blocked], then=RUN)
    assert report["variance"] > 0
    assert 0 <= report["ece"] <= 1


NO_CUDA = """
def asked_for_cuda(*_, **__):
    raise AssertionError("CUDA was asked for")
torch.cuda._lazy_init = asked_for_cuda
"""


def test_a_prediction_on_a_cpu_never_asks_for_cuda(monkeypatch):
    """Nor does a training step: a machine without a driver would refuse, or wait for it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    report = fresh_interpreter(then=NO_CUDA + RUN)
    assert report["variance"] > 0
