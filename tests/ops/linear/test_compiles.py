"""The kernels compile for Hopper on a machine without a GPU, to the instructions they rely on."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")


def disassemble(kernel, constants, folder: Path, num_warps=1, **options) -> str:
    """SASS of a kernel with float32 pointers, 16-byte aligned, for sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {name: 0 for name in ("EPILOGUE",) if name in kernel.arg_names} | constants
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
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps} | options
    )
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout


COMMON = {"KEEP": 1, "BITS": 1, "SCALE": 2.0, "PTX": True}
SHAPE = (16384, 1024, 1024)


def forward(**options):
    from bayes_dc.ops import _launch
    from bayes_dc.ops.linear.triton_fwd import dropconnect_linear_fwd_kernel

    config = _launch.fwd_config(*SHAPE)
    sizes = {"LANES": 32, "ROWS": config.rows, "QUADS": config.quads, "WARPS": 1}
    sizes |= {"GROUPS": 4, "RANGES": 16, "ONE_X": False}
    return (
        dropconnect_linear_fwd_kernel,
        {"HAS_BIAS": True, "STAGED": True, "EVEN": True} | sizes | options,
        {"maxnreg": config.registers},
    )


def input_gradient():
    from bayes_dc.ops import _launch
    from bayes_dc.ops.linear.triton_dx import dropconnect_linear_dx_kernel

    config = _launch.dx_config(*SHAPE)
    block = {"ROWS": config.rows, "QUADS": config.quads, "LANES": config.lanes}
    layout = {"TAIL": False, "STRIDE_WN": 1024, "VECTOR_GY": True, "VECTOR_W": True}
    return dropconnect_linear_dx_kernel, block | layout, {}


def weight_gradient(**options):
    from bayes_dc.ops import _launch
    from bayes_dc.ops.linear.triton_dw import dropconnect_linear_dw_kernel

    block = {"LANES": 32, "ROWS": _launch.dw_config(*SHAPE).rows}
    return dropconnect_linear_dw_kernel, {"STAGED": True, "EVEN": True} | block | options, {}


@pytest.mark.parametrize("build", [forward, input_gradient, weight_gradient])
def test_masks_are_predicates(build, tmp_path):
    """Most multiply-adds are predicated, and predicates come from R2P, several at a time."""
    import triton.language as tl

    kernel, constants, options = build()
    sass = disassemble(kernel, COMMON | {"ACC": tl.float32} | constants, tmp_path, **options)
    every = len(re.findall(r"\bFFMA\b", sass))
    predicated = len(re.findall(r"@P\d FFMA\b", sass))
    assert every >= 128
    assert predicated >= 0.9 * every
    at_once = 4 if build is input_gradient else 8
    assert at_once * len(re.findall(r"\bR2P\b", sass)) >= 0.9 * predicated


@pytest.mark.parametrize(
    "build", [forward, lambda: forward(WARPS=4), weight_gradient], ids=["fwd", "parts", "dw"]
)
def test_tiles_are_copied_ahead(build, tmp_path):
    """Copies go to shared memory on their own, and are waited for before a tile is read."""
    import triton.language as tl

    kernel, constants, options = build()
    warps = constants.get("WARPS", 1)
    sass = disassemble(
        kernel, COMMON | {"ACC": tl.float32} | constants, tmp_path, num_warps=warps, **options
    )
    assert len(re.findall(r"\bLDGSTS\b", sass)) >= 12
    loop = sass[sass.index("LDGDEPBAR") :]
    first_wait, first_use = loop.index("DEPBAR.LE"), re.search(r"@P\d FFMA", loop).start()
    assert first_wait < first_use


@pytest.mark.parametrize(
    ("sizes", "registers"),
    [({"WARPS": 16, "QUADS": 2}, 128), ({"WARPS": 4, "QUADS": 1, "LANES": 8, "GROUPS": 2}, 0)],
    ids=["warps", "lanes"],
)
def test_parts_move_nothing_in_their_loop(sizes, registers, tmp_path):
    """Two instructions for a masked product, or three of a last layer's few, moves included."""
    import triton.language as tl

    kernel, constants, _ = forward(**sizes)
    options = {"maxnreg": registers} if registers else {}
    sass = disassemble(
        kernel,
        COMMON | {"ACC": tl.float32} | constants,
        tmp_path,
        num_warps=sizes["WARPS"],
        **options,
    )
    code = re.findall(r"/\*([0-9a-f]{4,5})\*/ +(.*?);", sass)
    places = [int(at, 16) for at, _ in code]
    ends = [
        (int(to[1], 16), place)
        for place, (_, text) in zip(places, code, strict=True)
        if (to := re.search(r"\bBRA\b.*0x([0-9a-f]+)", text)) and int(to[1], 16) < place
    ]
    loops = [[t for at, (_, t) in zip(places, code, strict=True) if a <= at <= b] for a, b in ends]
    body = min((loop for loop in loops if any("FFMA" in t for t in loop)), key=len)
    products = sum("FFMA" in text for text in body)
    assert products == 32 * sizes["QUADS"] * constants["GROUPS"]
    assert len(body) < (2.2 if constants["GROUPS"] == 4 else 3.2) * products


def test_a_row_of_few_outputs_is_on_its_way_before_anything_is_known(tmp_path):
    """All copies are begun before a load is waited for, and no register is spilled."""
    from bayes_dc.ops.linear.triton_few_fwd import few_outputs_fwd_kernel

    shape = {"TILES": 1, "OUTPUTS": 10, "QUADS": 16, "RANGES": 16, "EARLY": True}
    constants = {k: v for k, v in COMMON.items() if k != "PTX"} | {"HAS_BIAS": True} | shape
    sass = disassemble(few_outputs_fwd_kernel, constants, tmp_path, num_warps=8)
    copies = [m.start() for m in re.finditer(r"\bLDGSTS\b", sass)][:11]
    loads = [m.start() for m in re.finditer(r"\bLDG\b", sass)]
    assert len(copies) == 11
    assert copies[-1] < sass.index("DEPBAR.LE")
    assert sass.index("ACQBULK") < min(*copies, *loads)
    assert not re.search(r"\b(LDL|STL)\b", sass)


@pytest.mark.parametrize("sizes", [{}, {"WARPS": 16, "QUADS": 2}, {"STAGED": False}], ids=str)
def test_nothing_is_read_before_the_launch_before_has_ended(sizes, tmp_path):
    """A program that begins early waits first; loads do not move past that."""
    import triton.language as tl

    kernel, constants, options = forward(**sizes, EARLY=True)
    sass = disassemble(
        kernel,
        COMMON | {"ACC": tl.float32} | constants,
        tmp_path,
        num_warps=constants["WARPS"],
        **options,
    )
    reads = [m.start() for m in re.finditer(r"\b(LDG|LDGSTS|LD)\b", sass)]
    assert reads
    assert sass.index("ACQBULK") < min(reads)
