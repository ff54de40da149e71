"""The Hopper kernel of the weight gradient compiles without a GPU, to what it relies on."""

import re
from typing import NamedTuple

import pytest
from hopper_sass import disassemble

pytestmark = pytest.mark.compiler
pytest.importorskip("triton", reason="needs triton's compiler")


class Form(NamedTuple):
    """Images, rows and columns of a tile; one mask for all; whether it holds whole images."""

    box: tuple[int, int, int]
    shared: bool = False
    whole: bool = True
    taps: int = 3
    blocks: int = 1


FORMS = {
    "4 × 4 pixels": Form((4, 4, 4)),
    "8 × 8 pixels": Form((1, 8, 8)),
    "16 × 16 pixels": Form((1, 4, 16), whole=False),
    "one tap": Form((1, 8, 8), taps=1, blocks=2),
    "one tap and block": Form((1, 8, 8), taps=1),
    "one mask": Form((4, 4, 4), shared=True),
}


@pytest.mark.parametrize("name", FORMS)
def test_products_are_added_while_others_are_made(name, tmp_path):
    """A predicated addition for each weight, seven predicates from one R2P, no spills."""
    from bayes_dc.ops.conv2d.triton_hopper_dw_kernel import conv_dw_kernel

    box, shared, whole, taps, blocks = FORMS[name]
    constants = {"KEEP": 1, "BITS": 1, "SCALE": 2.0, "KH": taps, "KW": 3, "SH": 1, "SW": 1}
    constants |= {"PH": 1, "PW": 1, "DH": 1, "DW": 1, "TAPS": taps, "NB": blocks, "STAGES": 3}
    constants |= {"RUN": (shared, True, whole, True)}
    tiles = {"gy_desc": [1, *box, 64], "x_desc": [*box[:2], 1, box[2], 64]}
    folder, divisible = tmp_path, ("N", "C", "stride_oz")
    sass, usage = disassemble(conv_dw_kernel, constants, tiles, "bf16", 4, folder, divisible)
    units = taps * blocks
    # Groups of an iteration and one after the loop; steps of 16 positions, of those that add too.
    groups = 4 if whole and not shared else 1
    steps = (4 if shared else 4 // box[0]) * (groups if groups > 1 else 2)
    assert len(re.findall(r"\bHGMMA\b", sass)) == units * steps
    assert len(re.findall(r"@!?P\d FADD\b", sass)) == 32 * units * (groups + 1)
    assert len(re.findall(r"\bR2P\b", sass)) == 5 * units * (groups + 1)
    # One product may be on its way, of another unit than the one that is added; where ptxas loses
    # track, it waits for every single one.
    waits = re.findall(r"DEPBAR\.LE gsb0, (0x\d)", sass)
    assert (waits.count("0x0") <= 2) == (units > 1)
    assert waits.count("0x1") >= (units - 1) * groups
    loop = sass[sass.index("HGMMA") : sass.rindex("HGMMA")]
    assert not re.search(r"\b(STL|LDL)\b", loop)
    assert "LOCAL:0" in usage
