"""The tensor-core kernels compile for Hopper without a GPU, to the instructions they rely on."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")

MASK = {"KEEP": 1, "BITS": 1, "SCALE": 2.0}
POINTERS = {"key_ptr": "*i64", "sample_ptr": "*i64", "pass_ptr": "*i64"}


def disassemble(kernel, constants, blocks, element, warps, folder: Path) -> tuple[str, str]:
    """SASS and resource usage for sm_90; ``blocks``: tensor map → block."""
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    types = {"bf16": gl.bfloat16, "fp32": gl.float32}
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in blocks:
            layout = gl.NVMMASharedLayout.get_default_for(blocks[name], types[element])
            signature[name] = f"tensordesc<{element}{blocks[name]},{layout!r}>"
        elif name.endswith("_ptr"):
            signature[name] = POINTERS.get(name, f"*{element}")
        else:
            signature[name] = "i32"
    index = {name: i for i, name in enumerate(kernel.arg_names)}
    source = GluonASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(index[name],): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for n, i in index.items() if n.endswith("_ptr")},
    )
    target = GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": warps})
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

    def dump(what: str) -> str:
        command = [tool, what, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return dump("-sass"), dump("-res-usage")


@pytest.mark.parametrize("element", ["bf16", "fp32"])
@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
def test_masked_weights_stay_in_registers(transposed, element, tmp_path):
    """wgmma reads masked weights from registers, four in a row without a wait; nothing spills."""
    from bayes_dc.ops.linear.triton_wgmma_gemm import masked_gemm_kernel

    rows, columns, depth = 256, 128, 64 if element == "bf16" else 32
    blocks = {
        "rows_desc": [1, 1, rows, depth],
        "w_desc": [depth, columns] if transposed else [columns, depth],
    }
    constants = MASK | {"HAS_BIAS": True, "TRANSPOSED": transposed, "BM": columns}
    constants |= {"STAGES": 3, "UNROLL": 2}
    sass, usage = disassemble(masked_gemm_kernel, constants, blocks, element, 8, tmp_path)
    products = re.findall(r"HGMMA\S+ R\d+, (R\d+|gdesc\S+), gdesc\S+, \S+?( gsb0)? ;", sass)
    assert len(products) == 8
    assert all(first.startswith("R") for first, _ in products)
    assert sum(bool(waits) for _, waits in products) == 2
    assert "STACK:0" in usage
    assert "LOCAL:0" in usage
    assert not re.search(r"\b(STL|LDL)\b", sass)


@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_products_of_a_group_are_added_under_predicates(element, tmp_path):
    """Two instructions for each weight and group, and no spills."""
    from bayes_dc.ops.linear.triton_wgmma_dw import grouped_dw_kernel

    rows, along = (64, False) if element == "bf16" else (32, True)
    block = [1, 1, 128, rows] if along else [1, 1, rows, 128]
    constants = MASK | {"ALONG": along, "STAGES": 4}
    blocks = {"gy_desc": block, "x_desc": block}
    sass, usage = disassemble(grouped_dw_kernel, constants, blocks, element, 8, tmp_path)
    assert len(re.findall(r"\bHGMMA\b", sass)) == 16
    assert len(re.findall(r"@!?P\d FADD\b", sass)) == 3 * 64
    assert "STACK:0" in usage
    assert not re.search(r"\b(STL|LDL)\b", sass)
