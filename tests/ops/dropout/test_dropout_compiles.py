"""The kernels compile for Hopper without a GPU: vectors in and out, one call for 128 elements."""

import re

import pytest

pytestmark = pytest.mark.compiler
triton = pytest.importorskip("triton", reason="needs triton's compiler")


def build(monkeypatch, folder, kernel, constants, warps, element="fp32"):
    """SASS and stack bytes, of aligned tensors."""
    import test_gaussian_compiles as compiles
    import triton.language as tl

    aligned = ("E", "stride_xp", "stride_xs", "stride_op", "stride_os")
    monkeypatch.setattr(compiles, "ALIGNED", aligned)
    types = compiles.pointers(element, ("x_ptr", "out_ptr"))
    constants = {"SCALE": 2.0, "ACC": tl.float32} | constants
    return compiles.disassemble(kernel, types, constants, warps, folder)


def instructions(sass):
    return len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", sass, re.MULTILINE))


@pytest.mark.parametrize("element", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("bits", "keep", "most"), [(1, 1, 26), (9, 461, 36)])
def test_rows(bits, keep, most, element, monkeypatch, tmp_path):
    """128-bit loads and stores; few instructions for an element, as memory is what it waits for."""
    from bayes_dc.ops.dropout.triton_dropout import keyed_dropout_row_kernel

    constants = {"KEEP": keep, "BITS": bits, "CALLS": 32}
    sass, stack = build(
        monkeypatch, tmp_path, keyed_dropout_row_kernel, constants, 4, element=element
    )
    assert stack == 0
    vectors = 4096 // 128 * (4 if element == "fp32" else 2) // 16
    assert len(re.findall(r"LDG\.E\.128", sass)) == vectors
    assert len(re.findall(r"STG\.E\.128", sass)) == vectors
    assert instructions(sass) / (4096 / 128) < most


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_units(last, by_channel, monkeypatch, tmp_path):
    from bayes_dc.ops.dropout.triton_dropout import keyed_dropout_unit_kernel

    constants = {"KEEP": 1, "BITS": 1, "BY_CHANNEL": by_channel, "CHANNELS_LAST": last}
    constants |= {"WIDE": False, "BLOCK": 1024}
    sass, stack = build(monkeypatch, tmp_path, keyed_dropout_unit_kernel, constants, 4)
    assert stack == 0
    assert instructions(sass) / (1024 / 128) < 150
