"""The Hopper kernel compiles without a GPU, to the instructions it relies on."""

import re

import pytest
from hopper_sass import disassemble

pytestmark = pytest.mark.compiler
pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
VIEWS_MAY_OVERLAP = pytest.importorskip("bayes_dc.ops._hopper").VIEWS_MAY_OVERLAP

STRIDES = ("M", "C", "stride_tap", "stride_op", "stride_ob", "stride_oh", "stride_ow")


def build(folder, tiles, *, transposed, element="bf16", stride=1, own=True, **others):
    """SASS and resource usage of a 3 × 3 kernel with these tiles."""
    from bayes_dc.ops.conv2d.triton_hopper_kernel import masked_conv_kernel

    images, height, width, outputs, warps, stages, slots, down, by_warp = tiles
    depth = 64 if element == "bf16" else 32
    constants = {
        **{"KEEP": 1, "BITS": 1, "SCALE": 2.0, "HAS_BIAS": True, "TRANSPOSED": transposed},
        **{"TAPS": (3, stride, 1, 1, 1, 1), "KH": 3, "BM": outputs, "STAGES": stages},
        **{"IMAGES": images, "PARTS": images if own else 1, "DOWN": down, "SLOTS": slots},
        "BY_WARP": bool(by_warp),
        **others,
    }
    box = [1 if down > 1 else images, height, 1, width, depth]
    blocks = {
        "source_desc": box,
        "edge_desc": [1, down - 1, 1, width, depth] if down > 1 else box,
        "w_desc": [depth, 1, outputs] if transposed else [outputs, 1, depth],
    }
    return disassemble(masked_conv_kernel, constants, blocks, element, warps, folder, STRIDES)


def loop_with(sass: str, instruction: str) -> list[str]:
    """Instructions of the shortest loop that holds ``instruction``."""
    lines = re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?) ;", sass)
    at = {int(address, 16): i for i, (address, _) in enumerate(lines)}
    bodies = []
    for i, (_, text) in enumerate(lines):
        target = re.search(r"BRA\S* .*?0x([0-9a-f]+)", text)
        first = at.get(int(target[1], 16), i) if target else i
        body = [text for _, text in lines[first:i]]
        if any(instruction in text for text in body):
            bodies.append(body)
    return min(bodies, key=len)


COLUMN = pytest.mark.skipif(not VIEWS_MAY_OVERLAP, reason="this Triton refuses such views")
TILES = {
    "one image": (1, 8, 16, 128, 4, 3, 3, 1, 0),
    "taps of a column": (1, 8, 32, 64, 4, 3, 2, 3, 0),
    "two images": (2, 8, 8, 128, 4, 3, 3, 1, 0),
    "eight images": (8, 4, 4, 128, 4, 2, 2, 1, 1),
}
LARGE = ["one image", pytest.param("taps of a column", marks=COLUMN), "two images"]


@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
@pytest.mark.parametrize("name", LARGE)
def test_masked_weights_stay_in_registers(name, transposed, tmp_path):
    """wgmma takes them from there, one tile's products in a row without a wait; nothing spills."""
    sass, usage = build(tmp_path, TILES[name], transposed=transposed)
    images, _, _, outputs, warps, *_ = TILES[name]
    products = re.findall(r"HGMMA\S+ R\d+, (R\d+|gdesc\S+), gdesc\S+, \S+?( gsb0)? ;", sass)
    tiles = images if images > 1 else 3  # two steps in the loop, one after it
    assert len(products) == 4 * outputs // (16 * warps) * tiles
    assert all(first.startswith("R") for first, _ in products)
    assert sum(bool(waits) for _, waits in products) == tiles
    assert "STACK:0" in usage
    assert not re.search(r"\b(STL|LDL)\b", sass)


@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
def test_instructions_of_a_weight(transposed, tmp_path):
    """Two selections for two weights; a shift, a multiplication, serves four."""
    images, _, _, outputs, warps, *_ = TILES["eight images"]
    sass, usage = build(tmp_path, TILES["eight images"], transposed=transposed)
    weights = images * outputs * 64 // (32 * warps)
    loop = loop_with(sass, "HMMA")
    count = {
        name: sum(bool(re.search(rf"\b{name}\b", text)) for text in loop)
        for name in ("PRMT", "SHF", "IMAD", "HMMA")
    }
    assert count["PRMT"] == weights // 2
    assert count["HMMA"] == weights * 16 // 64
    assert count["SHF"] <= 8
    assert count["IMAD"] <= weights // 2
    assert len(loop) <= 2.4 * weights
    assert "STACK:0" in usage


@pytest.mark.parametrize(
    ("options", "tiles"),
    [
        ({"transposed": True, "stride": 2}, (8, 4, 4, 64, 4, 2, 2, 1, 1)),
        ({"transposed": False, "stride": 2, "element": "fp32"}, (1, 8, 16, 128, 4, 3, 3, 1, 0)),
        ({"transposed": True, "own": False}, (4, 8, 8, 128, 8, 3, 3, 1, 0)),
    ],
)
def test_other_forms_do_not_spill(options, tiles, tmp_path):
    sass, usage = build(tmp_path, tiles, **options)
    assert "MMA" in sass
    assert "STACK:0" in usage


@pytest.mark.parametrize("name", ["one image", pytest.param("taps of a column", marks=COLUMN)])
def test_without_masks_both_operands_stay_in_shared_memory(name, tmp_path):
    """With an epilogue: nothing is drawn, nothing spills, weights are never in registers."""
    options = {"transposed": False, "own": False, "BITS": 0, "EPILOGUE": 7}
    sass, usage = build(tmp_path, TILES[name], **options)
    _, _, _, outputs, warps, *_ = TILES[name]
    loop = loop_with(sass, "HGMMA")
    products = [text for text in loop if "HGMMA" in text]
    assert len(products) == 4 * outputs // (16 * warps)
    assert all(re.match(r"HGMMA\S+ R\d+, gdesc", text) for text in products)
    assert not re.search(r"\b(LDSM|PRMT|STL|LDL)\b", "".join(loop))
    assert "STACK:0" in usage


def test_an_epilogue_does_not_spill(tmp_path):
    for name in ("one image", "two images"):
        sass, usage = build(tmp_path, TILES[name], transposed=False, EPILOGUE=7)
        assert "STACK:0" in usage
        assert not re.search(r"\b(STL|LDL)\b", sass)
