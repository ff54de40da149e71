"""The kernels that ours are compared with compile for Hopper on a machine without a GPU."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")


def sass(kernel, types, constants, warps, tmp_path):
    """SASS for sm_90; ``types`` gives the pointers, the rest are int32."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in names
    }
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    options = {"num_warps": warps}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("wide", [False, True])
def test_published_style(dtype, wide, tmp_path):
    from benchmarks import published

    types = dict.fromkeys(("left_ptr", "right_ptr", "out_ptr"), f"*{dtype}")
    constants = {"WIDE": wide, "TILE": published.TILE, "STEP": published.STEP}
    text = sass(published.dropped_contraction_kernel, types, constants, published.WARPS, tmp_path)
    # Twenty wide products for each Philox call, less what is known beforehand in the first rounds
    # and unused in the last: no draw is shared between weights.
    draws = published.TILE**2 * published.STEP // (32 * published.WARPS)
    assert text.count("IMAD.HI") + text.count("IMAD.WIDE") >= 16 * draws


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_masked_copies(dtype, tmp_path):
    from benchmarks import expand

    types = dict.fromkeys(("w_ptr", "out_ptr"), f"*{dtype}")
    text = sass(expand.masked_copies_kernel, types, {"BLOCK": expand.BLOCK}, expand.WARPS, tmp_path)
    assert "STG" in text
