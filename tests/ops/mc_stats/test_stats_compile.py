"""The statistics kernels compile for Hopper on a machine without a GPU, and stay in registers."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")

TYPES = {"fp32": "*fp32", "bf16": "*bf16", "fp16": "*fp16", "fp64": "*fp64"}


def compiled(kernel, constants, warps, outputs, folder):
    """TTIR and PTX, and what cuobjdump says of the resources, for sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = {"y_ptr": TYPES[outputs], "votes_ptr": "*i64"}.get(name, "*fp64")
        else:
            signature[name] = "i32"
    index = {name: i for i, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(index[name],): value for name, value in constants.items()},
    )
    options = {"num_warps": warps, "enable_fp_fusion": False}
    result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    path = folder / "kernel.cubin"
    path.write_bytes(result.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    return result.asm["ttir"], result.asm["ptx"], usage.stdout


def assert_inputs_are_widened(ttir):
    """Multiples of B, of which six need more than 32 bits sooner than B, are made in int64."""
    uses = [line for line in ttir.splitlines() if re.search(r"%B\b(?!:)", line)]
    assert uses
    assert all("arith.extsi %B : i32 to i64" in line for line in uses), uses


@pytest.mark.parametrize("outputs", TYPES)
@pytest.mark.parametrize("classes", [1, 10, 1000, 5000])
@pytest.mark.parametrize("link", ["softmax", "identity"])
def test_update(link, classes, outputs, tmp_path):
    from bayes_dc.ops.mc_stats import triton_notes, triton_update
    from bayes_dc.ops.mc_stats.triton_rows import row_layout

    layout = row_layout(classes)
    softmax = link == "softmax"
    constants = {"SOFTMAX": softmax, "RANGES": not softmax, "SAMPLES": True, "STEPS": layout.steps}
    if classes <= layout.block:
        kernel = triton_notes.mc_stats_rows_kernel
        constants |= {"ROWS": triton_update.rows_of_tile(layout), "KEPT": True}
    else:
        kernel = triton_update.mc_stats_update_blocks_kernel
    ttir, ptx, usage = compiled(kernel, constants, layout.warps, outputs, tmp_path)
    assert_inputs_are_widened(ttir)
    assert ".f64" in ptx
    assert "atom." not in ptx
    if classes == 10 and softmax:
        assert int(re.search(r"STACK:(\d+)", usage).group(1)) == 0


@pytest.mark.parametrize("outputs", TYPES)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("link", ["softmax", "identity"])
def test_passes(link, kept, outputs, tmp_path):
    from bayes_dc.ops.mc_stats import triton_passes, triton_update

    softmax = link == "softmax"
    config = triton_update.passes_config(8 if outputs == "bf16" else 100, kept=kept)
    constants = {
        "SOFTMAX": softmax,
        "RANGES": not softmax,
        "KEPT": kept,
        "FUSED": True,
        "BLOCK": config.block,
        "UNROLL": config.unroll,
        "MANY": config.many,
        "AHEAD": config.ahead,
    }
    kernel = triton_passes.mc_stats_passes_kernel
    ttir, ptx, usage = compiled(kernel, constants, 1, outputs, tmp_path)
    assert_inputs_are_widened(ttir)
    assert "atom." not in ptx
    assert int(re.search(r"STACK:(\d+)", usage).group(1)) == 0


@pytest.mark.parametrize("inputs", [1, 1000])
@pytest.mark.parametrize("classes", [1, 10, 1000, 5000])
def test_summary(classes, inputs, tmp_path):
    from bayes_dc.ops.mc_stats import triton_summary
    from bayes_dc.ops.mc_stats.triton_rows import row_layout

    layout = row_layout(classes)
    warps = triton_summary.warps_of(layout, inputs)
    tile = triton_summary.tile_steps(layout)
    constants = {
        "J": 20,
        "ONE": classes <= 1 << tile,
        "STEPS": layout.steps,
        "TILE_STEPS": tile,
        "GROUP_STEPS": triton_summary.GROUP_STEPS,
        "PAIRS": triton_summary.PAIRS,
    }
    ttir, ptx, usage = compiled(
        triton_summary.mc_stats_summary_kernel,
        constants,
        warps,
        "fp64",
        tmp_path,
    )
    assert_inputs_are_widened(ttir)
    assert "atom." not in ptx
    if classes == 10:
        assert int(re.search(r"STACK:(\d+)", usage).group(1)) == 0
