"""The kernel that keeps its weights compiles without a GPU, to the instructions it relies on."""

import re

import pytest
from hopper_sass import disassemble
from test_conv_hopper_gemm_compile import loop_with

pytestmark = pytest.mark.compiler
pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")

FIRST = {"H": 28, "W": 28, "C": 1, "OH": 28, "OW": 28, "N": 6, "BN": 8, "PH": 2, "PW": 2}
SECOND = {"H": 14, "W": 14, "C": 6, "OH": 10, "OW": 10, "N": 16, "BN": 16, "PH": 0, "PW": 0}
WIDEST = {**SECOND, "N": 32, "BN": 32, "KH": 4, "KW": 4}
LONGEST = {**SECOND, "KH": 8, "KW": 4, "PH": 2, "PW": 2}


def build(folder, layer, *, passes=1, pool=False, element="fp32", **others):
    """SASS and resource usage of a 5 × 5 kernel."""
    from bayes_dc.ops.conv2d.triton_few_kernel import few_channels_kernel

    constants = {
        **{
            "KH": 5,
            "KW": 5,
            "SH": 1,
            "SW": 1,
            "DH": 1,
            "DW": 1,
            "KEEP": 1,
            "BITS": 1,
            "SCALE": 2.0,
        },
        **{"HAS_BIAS": True, "ONE": True, "POOL": pool, "PASSES": passes, "BM": 32 if pool else 16},
        **{"DENSE": True, "WIDE": False, "ALIGN": 2 if layer["C"] % 2 == 0 else 1},
        **{"WIDTH": 1 if element == "fp32" else 2, "EPILOGUE": 4},
        **layer,
        **others,
    }
    return disassemble(few_channels_kernel, constants, {}, element, 1, folder)


def test_a_patch_is_read_once_for_all_passes(tmp_path):
    """32 elements of 16 positions, 7 of them past the end, and four products for every pass."""
    sass, usage = build(tmp_path, FIRST, passes=4)
    loop = loop_with(sass, "HMMA")
    assert sum("HMMA.1688.F32.TF32" in text for text in loop) == 4 * 4
    assert sum("LDG" in text for text in loop) == 14
    assert sum("STG.E.64" in text for text in loop) == 4 * 2
    assert len(loop) <= 300
    assert "STACK:0" in usage


def test_addresses_of_a_patch_are_constants(tmp_path):
    """A row of 30 numbers is contiguous: a load, two instructions of rounding, half a product."""
    sass, usage = build(tmp_path, SECOND)
    loop = loop_with(sass, "HMMA")
    loads = sum("LDG" in text for text in loop)
    assert loads == 4 * -(-150 // 8)
    assert len(loop) <= 4.5 * loads + 100
    assert "STACK:0" in usage


FORMS = [(FIRST, "fp32"), (SECOND, "fp32"), (SECOND, "bf16"), (WIDEST, "fp32"), (LONGEST, "bf16")]


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("layer", "element"), FORMS)
def test_nothing_spills(layer, element, pool, tmp_path):
    sass, usage = build(tmp_path, layer, pool=pool, element=element, ONE=False)
    assert "STACK:0" in usage
    assert not re.search(r"\b(STL|LDL)\b", sass)
    assert "HMMA" in sass
