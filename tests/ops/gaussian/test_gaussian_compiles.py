"""The kernels compile for Hopper on a machine without a GPU, to the instructions they rely on."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")

ELEMENTS = ["bf16", "fp16", "fp32"]
ALIGNED = (
    *("N", "K", "stride_xp", "stride_xs", "stride_xr", "stride_wn", "stride_qn", "stride_o"),
    *("stride_op", "stride_os", "stride_or", "stride_mp", "stride_ms", "stride_mr"),
    *("stride_vp", "stride_vs", "stride_vr"),
)
"""Integers that are multiples of 16 for aligned tensors."""
ONES = dict.fromkeys(
    ("stride_xk", "stride_wk", "stride_qk", "stride_on", "stride_mn", "stride_vn", "stride_b"), 1
)


def disassemble(kernel, types, constants, warps, folder, source_class=None):
    """Instructions and stack bytes of a kernel for sm_90; arguments without a type are i32."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    index = {name: i for i, name in enumerate(kernel.arg_names)}
    constants |= {name: 1 for name in ONES if name in index}
    source = (source_class or ASTSource)(
        fn=kernel,
        signature={n: "constexpr" if n in constants else types.get(n, "i32") for n in index},
        constexprs={(index[name],): value for name, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for name, i in index.items()
            if (name.endswith("_ptr") or name in ALIGNED) and name not in constants
        },
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}
    )
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    text = [
        subprocess.run([tool, flag, path], capture_output=True, text=True, check=True).stdout
        for flag in ("-sass", "-res-usage")
    ]
    return text[0], int(re.search(r"STACK:(\d+)", text[1]).group(1))


def pointers(element, names):
    ids = dict.fromkeys(("key_ptr", "sample_ptr", "pass_ptr"), "*i64")
    return ids | dict.fromkeys(names, f"*{element}")


def count(sass, pattern):
    return len(re.findall(pattern, sass))


@pytest.mark.parametrize("element", ELEMENTS)
def test_tensor_cores_do_not_wait_for_normals(element, tmp_path):
    """Hopper: no wait inside a step's products, and the loads are TMA's."""
    gluon = pytest.importorskip("triton.experimental.gluon._runtime")
    from triton.experimental.gluon import language as gl

    from bayes_dc.ops.gaussian import triton_hopper

    size = 4 if element == "fp32" else 2
    inputs = triton_hopper.STEP_BYTES // size
    kinds = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}

    def descriptor(kind, rows):
        layout = gl.NVMMASharedLayout.get_default_for([rows, inputs], kinds[kind])
        return f"tensordesc<{kind}[{rows}, {inputs}],{layout!r}>"

    types = pointers(element, ("b_ptr", "out_ptr")) | {
        "x_desc": descriptor(element, triton_hopper.ROWS),
        "w_desc": descriptor(element, triton_hopper.OUTPUTS),
        "squares_desc": descriptor("bf16", triton_hopper.OUTPUTS),
    }
    constants = {
        "MEAN_SCALE": 1.0,
        "VAR_SCALE": 1.0,
        "HAS_BIAS": True,
        "STAGES": triton_hopper.STAGES,
        "NOISE_WARPS": triton_hopper.NOISE_WARPS,
        "NOISE_REGISTERS": triton_hopper.NOISE_REGISTERS,
        "LOAD_REGISTERS": triton_hopper.LOAD_REGISTERS,
    }
    sass, stack = disassemble(
        triton_hopper.gaussian_hopper_kernel,
        types,
        constants,
        triton_hopper.WARPS,
        tmp_path,
        gluon.GluonASTSource,
    )
    # Four k of 16 bytes' worth for each sum, twice: inside the loop and for the last step.
    assert count(sass, "HGMMA") == 2 * (4 + inputs // 16)
    assert count(sass, r"WARPGROUP\.DEPBAR") == 2
    assert count(sass, "UTMALDG") == 3
    assert stack <= 16  # a register or two outside the loops


@pytest.mark.parametrize("draw", [True, False])
@pytest.mark.parametrize("element", ELEMENTS)
def test_the_portable_kernel_uses_tensor_cores_without_spills(element, draw, tmp_path):
    from bayes_dc.ops.gaussian import triton_moments

    config = triton_moments.GaussianConfig()
    types = pointers(element, ("x_ptr", "w_ptr", "b_ptr", "out_ptr"))
    types |= {"squares_ptr": "*bf16", "var_ptr": "*fp32"}
    constants = {
        "MEAN_SCALE": 1.0,
        "VAR_SCALE": 1.0,
        "HAS_BIAS": True,
        "DRAW": draw,
        "EVEN_K": True,
        "WIDEN": False,
        "BM": config.rows,
        "BN": config.outputs,
        "BK": config.inputs,
        "STAGES": config.stages,
    }
    kernel = triton_moments.gaussian_linear_kernel
    sass, stack = disassemble(kernel, types, constants, config.warps, tmp_path)
    assert count(sass, "HGMMA") >= 4
    assert stack == 0


def test_draws_take_few_instructions(tmp_path):
    """The library's sine, cosine and logarithm would take more than twice as many."""
    import triton.language as tl

    from bayes_dc.ops.gaussian import triton_draw

    types = pointers("fp32", ("mean_ptr", "var_ptr", "out_ptr"))
    constants = {"ACC": tl.float32, "BM": 8, "QUADS": 32}
    sass, stack = disassemble(triton_draw.gaussian_draw_kernel, types, constants, 4, tmp_path)
    normals = 8 * 4 * 32 / 128  # of each thread
    assert count(sass, r"/\*[0-9a-f]{4}\*/ ") <= 100 * normals
    assert stack == 0
