"""The portable kernels compile without a GPU, with their default tiles, and nothing spills."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from bayes_dc.ops import _conv

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
TYPES |= {torch.float64: "fp64"}
IDS = ("key_ptr", "sample_ptr", "pass_ptr")
ALIGNED = ("outputs", "N", "stride_gp", "stride_gb", "stride_gh", "stride_gw")
ALIGNED_X = ("stride_xp", "stride_xb", "stride_xh", "stride_xw")
R, N = 1024, 64


def compiled(op: str, C: int, dtype: torch.dtype, kind: str, arch: int):
    """A kernel for 3 × 3 taps with its default configuration, and what it is called with."""
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from bayes_dc.ops.conv2d import triton_dw, triton_dx, triton_fwd

    K = 9 * C
    taps = _conv.Taps(3, 3, 1, 1, 1, 1, 1, 1)
    constants = {**taps._asdict(), "C": C, "KEEP": 1, "BITS": 1, "SCALE": 2.0, "PRECISION": kind}
    constants |= {"ACC": tl.float64 if dtype == torch.float64 else tl.float32}
    constants |= {"WIDE": False, "ONE": True}
    if op == "fwd":
        kernel = triton_fwd.dropconnect_conv2d_fwd_kernel
        config = _conv.fwd_config(R, N, C, K, dtype, kind)
        whole = config.inputs >= K
        constants |= {"HAS_BIAS": True, "EPILOGUE": 0, "WHOLE": whole}
        constants |= {"TAP": C % config.inputs == 0}
        constants |= {"TILES": config.tiles, "BN": config.outputs, "BK": config.inputs}
    elif op == "dx":
        kernel = triton_dx.dropconnect_conv2d_dx_kernel
        config = _conv.dx_config(R, N, C, dtype, kind)
        constants |= {"STEP_H": 1, "STEP_W": 1, "BN": config.outputs, "BC": config.inputs}
    else:
        kernel = triton_dw.dropconnect_conv2d_dw_kernel
        config = _conv.dw_config(R, N, C, K, dtype, kind)
        constants |= {"TAP": C % config.inputs == 0, "BN": config.outputs, "BK": config.inputs}
    if op != "dw":
        constants |= {"PAIRS": dtype.itemsize == 2, "ROWS_FIRST": bool(config.rows_first)}
    constants["BR"] = config.rows
    sums = "*fp64" if dtype == torch.float64 else "*fp32"
    signature, attributes = {}, {}
    aligned = (*ALIGNED, *(ALIGNED_X if C % 16 == 0 else ()))
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        pointer = "*i64" if name in IDS else f"*{TYPES[dtype]}"
        pointer = sums if op == "dw" and name == "out_ptr" else pointer
        signature[name] = pointer if name.endswith("_ptr") else "i32"
        if name in aligned or name.endswith("_ptr"):
            attributes[index,] = [["tt.divisibility", 16]]
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def dump(code, what: str, folder: Path) -> str:
    """SASS or resource usage of a compiled kernel."""
    path = folder / "kernel.cubin"
    path.write_bytes(code.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, what, path], capture_output=True, text=True, check=True).stdout


CASES = [
    (64, torch.bfloat16, "tf32", 90),
    (64, torch.bfloat16, "tf32", 80),
    (3, torch.float16, "tf32", 90),
    (64, torch.float32, "tf32", 90),
    (64, torch.float32, "ieee", 90),
    (64, torch.float64, "tf32", 90),
]


@pytest.mark.parametrize("op", ["fwd", "dx", "dw"])
@pytest.mark.parametrize(("C", "dtype", "kind", "arch"), CASES)
def test_kernels_compile_without_spills(C, dtype, kind, arch, op, tmp_path):
    code = compiled(op, C, dtype, kind, arch)
    usage = dump(code, "-res-usage", tmp_path)
    assert "STACK:0" in usage
    assert "LOCAL:0" in usage
    assert code.metadata.shared <= 96 * 1024
    sass = dump(code, "-sass", tmp_path)
    unit = {torch.float64: "DMMA", torch.float32: "FFMA" if kind == "ieee" else "GMMA"}
    expected = unit.get(dtype, "HMMA" if arch == 80 or (op, C) == ("dx", 3) else "HGMMA")
    assert re.search(expected, sass)
    if dtype.itemsize == 2 and C == 64:
        assert "LDGSTS" in sass  # tiles are copied ahead
