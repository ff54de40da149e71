"""The tensor-core kernels compile for Hopper without a GPU, to the instructions they rely on."""

import re

import pytest
from hopper_sass import disassemble

pytestmark = pytest.mark.compiler
pytest.importorskip("triton", reason="needs triton's compiler")

MASK = {"KEEP": 1, "BITS": 1, "SCALE": 2.0}


@pytest.mark.parametrize("element", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("transposed", "epilogue"), [(False, 0), (False, 7), (True, 0)], ids=["fwd", "epilogue", "dx"]
)
def test_masked_weights_stay_in_registers(transposed, epilogue, element, tmp_path):
    """wgmma reads masked weights from registers, four in a row without a wait; nothing spills."""
    from bayes_dc.ops.linear.triton_wgmma_gemm import masked_gemm_kernel

    rows, columns, depth = 256, 128, 64 if element == "bf16" else 32
    blocks = {
        "rows_desc": [1, 1, rows, depth],
        "w_desc": [depth, columns] if transposed else [columns, depth],
    }
    constants = MASK | {"HAS_BIAS": True, "TRANSPOSED": transposed, "BM": columns}
    constants |= {"STAGES": 3, "UNROLL": 2, "EPILOGUE": epilogue}
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


@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_a_tile_of_weights_serves_several_groups(element, tmp_path):
    """One PRMT for each register of weights and group, and no wait inside; nothing spills."""
    from bayes_dc.ops.linear.triton_wgmma_parts_kernel import masked_parts_kernel

    depth = 64 if element == "bf16" else 32
    blocks = {"x_desc": [8, 1, 16, depth], "w_desc": [128, depth]}
    constants = MASK | {"HAS_BIAS": True, "BM": 128, "PARTS": 7, "STAGES": 4}
    constants |= {"BY_SAMPLE": False}
    sass, usage = disassemble(masked_parts_kernel, constants, blocks, element, 8, tmp_path)
    products = re.findall(r"HGMMA\S+ R\d+, (R\d+|gdesc\S+), gdesc\S+, \S+?( gsb0)? ;", sass)
    assert len(products) == 7 * 4
    assert all(first.startswith("R") for first, _ in products)
    assert sum(bool(waits) for _, waits in products) == 7
    assert len(re.findall(r"\bPRMT\b", sass)) < 12 * 16
    assert "STACK:0" in usage
    assert "LOCAL:0" in usage
    assert not re.search(r"\b(STL|LDL)\b", sass)
