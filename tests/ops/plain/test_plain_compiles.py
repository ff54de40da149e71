"""The kernels of plain layers compile for Hopper without a GPU: whole vectors, no spills."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")


def build(kernel, arguments, constants, warps, folder, stages=3):
    """SASS and bytes of stack; ``arguments``: a type, a number, or a tuple of numbers each."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constexprs, attributes = {}, {}

    def one(value, path):
        """As the launcher specialises it: 1 is a constant, a multiple of 16 is known as one."""
        if value == 1:
            constexprs[path] = 1
            return "constexpr"
        if isinstance(value, str) or value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return value if isinstance(value, str) else "i32"

    signature = {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], constexprs[i,] = "constexpr", constants[name]
        elif isinstance(arguments[name], tuple):
            signature[name] = tuple(one(v, (i, j)) for j, v in enumerate(arguments[name]))
        else:
            signature[name] = one(arguments[name], (i,))
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    path = folder / "kernel.cubin"
    path.write_bytes(code.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

    def dump(what):
        command = [tool, what, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert code.metadata.shared <= 227 * 1024
    return dump("-sass"), int(re.search(r"STACK:(\d+)", dump("-res-usage"))[1])


def vectors(sass):
    """128-bit loads and stores, and all of them."""
    whole, every = r"\b(?:LDG|STG)\.E\.128", r"\b(?:LDG|STG)\."
    return len(re.findall(whole, sass)), len(re.findall(every, sass))


@pytest.mark.parametrize("element", ["bf16", "fp32"])
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "contiguous"])
def test_affine(last, element, tmp_path):
    """64 channels of 32 × 32: factors along a row, or one for each."""
    import triton.language as tl

    from bayes_dc.ops.plain.triton_affine import BY_BOTH, BY_COLUMN, BY_ROW, affine_act_kernel

    whole, factors = ((64, 1), (0, 1)) if last else ((65536, 1024, 1), (0, 1, 0))
    arguments = {f"{name}_strides": whole for name in ("x", "residual", "out")}
    arguments |= {f"{name}_strides": factors for name in ("scale", "shift")}
    arguments |= {f"{name}_ptr": f"*{element}" for name in ("x", "residual", "out")}
    arguments |= {"scale_ptr": "*fp32", "shift_ptr": "*fp32"}
    arguments |= {"sizes": (0, 64)[: len(whole) - 1], "rows": 7, "column_tiles": 3}
    arguments |= {"columns": 64 if last else 1024}
    kind = BY_COLUMN if last else BY_ROW
    constants = {"X": BY_BOTH, "SCALE": kind, "SHIFT": kind, "RESIDUAL": BY_BOTH, "RELU": True}
    constants |= {"ACC": tl.float32, "WIDE": False}
    constants |= {"BR": 64, "BC": 64} if last else {"BR": 4, "BC": 1024}
    sass, stack = build(affine_act_kernel, arguments, constants, 8, tmp_path)
    assert stack == 0
    # 4096 elements by 256 threads, read twice and written once.
    assert vectors(sass)[0] >= 3 * 4096 // 256 * (2 if element == "bf16" else 4) // 16
    if last:
        assert len(set(vectors(sass))) == 1


@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_pool(element, tmp_path):
    """A vector of channels for each tap."""
    import triton.language as tl

    from bayes_dc.ops.plain.triton_pool import pool2d_kernel

    arguments = {"x_ptr": f"*{element}", "out_ptr": f"*{element}", "B": 9, "C": 64, "H": 32}
    arguments |= {"W": 32, "OH": 16, "OW": 16, "column_tiles": 3, "divisor": 0}
    for name in "xo":
        steps = {"b": 65536, "c": 1, "h": 2048, "w": 64}
        arguments |= {f"stride_{name}{axis}": step for axis, step in steps.items()}
    constants = dict.fromkeys(("KH", "KW", "SH", "SW"), 2) | {"PH": 0, "PW": 0, "DH": 1, "DW": 1}
    constants |= {"MAXIMUM": True, "ADAPTIVE": False, "WITH_PADDING": False, "UNROLL": True}
    constants |= {"CHANNELS_LAST": True, "ACC": tl.float32, "WIDE": False, "BR": 16, "BC": 64}
    sass, stack = build(pool2d_kernel, arguments, constants, 4, tmp_path)
    assert stack == 0
    assert len(set(vectors(sass))) == 1


@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_rows(element, tmp_path):
    """LayerNorm of 768 features reads each once, in vectors."""
    import triton.language as tl

    from bayes_dc.ops.plain.triton_normalize import normalize_kernel

    arguments = {f"{name}_ptr": f"*{element}" for name in ("x", "weight", "bias", "out")}
    arguments |= {"rows": 7, "columns": 768, "row_sizes": (0,), "column_sizes": (0,)}
    arguments |= {"x_rows": (768,), "o_rows": (768,), "w_rows": (0,), "b_rows": (0,)}
    arguments |= {f"{name}_columns": (1,) for name in "xwbo"}
    constants = {"EPS": 1e-5, "WEIGHT": True, "BIAS": True, "ACC": tl.float32, "WHOLE": True}
    constants |= {"WIDE": False, "BR": 2, "BC": 1024}
    sass, stack = build(normalize_kernel, arguments, constants, 4, tmp_path)
    assert stack == 0
    assert len(set(vectors(sass))) == 1


@pytest.mark.parametrize(
    ("element", "features", "masked"),
    [
        ("bf16", 64, ""),
        ("bf16", 64, "add"),
        ("bf16", 128, ""),
        ("bf16", 128, "add"),
        ("fp32", 64, ""),
        ("fp64", 64, ""),
    ],
)
def test_attention(element, features, masked, tmp_path):
    """With its default tiles; 16 bits are multiplied by four warps at once."""
    import torch
    import triton.language as tl

    from bayes_dc.ops.plain import triton_attention

    types = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
    tiles = triton_attention.config(197, features, types[element], masked=bool(masked))
    names = ("q", "k", "v", "m", "o")
    arguments = {f"{name}_ptr": f"*{element}" for name in ("q", "k", "v", "mask", "out")}
    arguments |= {f"{name}_heads": (features * 2364, features) for name in names}
    arguments |= {f"stride_{name}": 12 * features for name in ("ql", "ks", "vs", "ol")}
    arguments |= {f"stride_{name}": 1 for name in ("qd", "kd", "vd", "ms", "od")}
    arguments |= {"L": 197, "S": 197, "D": features, "DV": features, "blocks": 4}
    arguments |= {"sizes": (0, 12), "stride_ml": 197}
    constants = {"FACTOR": 0.1, "MASK": masked, "WIDE_MASK": False, "CAUSAL": False}
    constants |= {"PRECISION": "tf32x3" if element == "fp32" else "tf32"}
    constants |= {"ACC": tl.float64 if element == "fp64" else tl.float32}
    constants |= {"BM": tiles.queries, "BN": tiles.keys, "BD": features, "BV": features}
    kernel = triton_attention.attention_kernel
    sass, stack = build(kernel, arguments, constants, tiles.warps, tmp_path, tiles.stages)
    assert stack == 0
    assert re.search("DMMA" if element == "fp64" else "HGMMA", sass)
