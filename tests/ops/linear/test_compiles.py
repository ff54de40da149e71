"""The kernels compile for Hopper on a machine without a GPU, to the instructions they rely on."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")


def disassemble(kernel, constants, folder: Path) -> str:
    """SASS of a kernel with float32 pointers, 16-byte aligned, for sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("key_ptr", "sample_ptr", "pass_ptr"):
            signature[name] = "*i64"
        else:
            signature[name] = "*fp32" if name.endswith("_ptr") else "i32"
    index = {name: i for i, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(index[name],): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for n, i in index.items() if n.endswith("_ptr")},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout


COMMON = {"KEEP": 1, "BITS": 1, "SCALE": 2.0, "PTX": True}


@pytest.mark.parametrize("name", ["fwd", "dx", "dw"])
def test_masks_are_predicates(name, tmp_path):
    """Most multiply-adds are predicated, and predicates come from R2P, several at a time."""
    import triton.language as tl

    from bayes_dc.ops import _launch
    from bayes_dc.ops.linear import triton_dw, triton_dx, triton_fwd

    shape = (16384, 1024, 1024)
    common = COMMON | {"ACC": tl.float32}
    row = {"TAIL": False, "STRIDE_WN": 1024}
    if name == "fwd":
        config = _launch.fwd_config(*shape)
        kernel = triton_fwd.dropconnect_linear_fwd_kernel
        block = {"HAS_BIAS": True, "VECTOR": True, "BM": config.rows * config.lanes}
        constants = common | row | block
    elif name == "dx":
        config = _launch.dx_config(*shape)
        kernel = triton_dx.dropconnect_linear_dx_kernel
        block = {"ROWS": config.rows, "QUADS": config.quads, "LANES": config.lanes}
        constants = common | row | block | {"VECTOR_GY": True, "VECTOR_W": True}
    else:
        config = _launch.dw_config(*shape)
        kernel = triton_dw.dropconnect_linear_dw_kernel
        constants = common | {"VECTOR_GY": True, "VECTOR_X": True, "QUADS": config.quads}
    sass = disassemble(kernel, constants, tmp_path)
    every = len(re.findall(r"\bFFMA\b", sass))
    predicated = len(re.findall(r"@P\d FFMA\b", sass))
    assert every >= 128
    assert predicated >= 0.9 * every
    assert 4 * len(re.findall(r"\bR2P\b", sass)) >= 0.5 * predicated
