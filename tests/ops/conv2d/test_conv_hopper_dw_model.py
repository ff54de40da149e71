"""The Hopper kernel of the weight gradient in NumPy: boxes, taps, runs of images and bits."""

import contextlib
import re

import block_model
import numpy as np
import pytest
import torch
from block_model import Pointer, TensorMap, run
from conv_harness import Shape
from conv_hopper_dw import CASES, SAME, check

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
pytestmark = pytest.mark.compiler


def from_memory(argument):
    """An argument of the kernel as the model takes it."""
    if hasattr(argument, "block_shape"):
        view = argument.base.as_strided(argument.shape, argument.strides)
        return TensorMap(view, list(argument.block_shape))
    return Pointer(argument.numpy().reshape(-1)) if torch.is_tensor(argument) else argument


def assembly(text, constraints, args, **options):
    """Inline assembly that names the bits of 32 outputs, each register its own, and the model's."""
    if "shf.r.wrap.b32" in text:
        word, _, every = args
        return word & every
    if "@p add.rn.f32" in text:
        acc, products, kept = args
        bit = np.uint32(1) << (np.arange(acc.shape[1]) % 32).astype(np.uint32)
        return block_model.value(np.where((kept & bit) != 0, acc + products, acc))
    return _MODELS_OWN(text, constraints, args, **options)


_MODELS_OWN = block_model._asm


@pytest.fixture
def launch(monkeypatch):
    """``triton_hopper_dw.launch``, whose kernel runs in the model."""
    from bayes_dc.ops.conv2d import triton_hopper_dw

    kernel = triton_hopper_dw.conv_dw_kernel

    class Launcher:
        def __getitem__(self, grid):
            def call(*args, num_warps, **constants):
                run(kernel, *grid, num_warps, *map(from_memory, args), **constants)

            return call

    nothing = contextlib.nullcontext()
    monkeypatch.setattr(block_model, "_asm", assembly)
    monkeypatch.setattr(triton_hopper_dw, "conv_dw_kernel", Launcher())
    monkeypatch.setattr(triton_hopper_dw._launch, "on_device_of", lambda t: nothing)
    return triton_hopper_dw.launch


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_mask_for_every_image(launch, name, splits):
    check(launch, *CASES[name], splits=splits)


@pytest.mark.parametrize("name", ["tails, two passes", "tiles of an image", "stride 2"])
def test_one_mask_for_a_pass(launch, name):
    check(launch, *CASES[name], splits=2, shared=True)


def test_several_digits(launch):
    check(launch, *CASES["an image of a tile"], p=0.3)


def test_more_splits_than_images(launch):
    """Programs without an image write zeros."""
    check(launch, *CASES["four images of a tile"], splits=9)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (4, 4), (7, 7), (3, 70)])
@pytest.mark.parametrize("shared", [False, True])
def test_default_tiles(launch, shared, size):
    check(launch, Shape(1, 3, *size, 32, 40, 3, 1), SAME, None, shared=shared)


def test_bits_of_a_thread():
    """The PTX adds, for every lane, what the words' bits keep of the layout's 32 results."""
    from bayes_dc.ops.conv2d.triton_hopper_kept import add_kept_text, gather_text

    rng = np.random.default_rng(0)
    for lane in range(32):
        words = rng.integers(0, 1 << 32, (2, 2), dtype=np.uint64)  # row of 8 · i, outputs / 32
        # Bases of the registers: n 1, row 8, n 8, n 16, n 32.
        row = [i >> 1 & 1 for i in range(32)]
        n = [(i & 1) + 2 * (lane % 4) + 8 * (i >> 2 & 3) + 32 * (i >> 4) for i in range(32)]
        word = [int(words[r, m // 32]) for r, m in zip(row, n, strict=True)]
        kept = [w >> (m % 32) & 1 for w, m in zip(word, n, strict=True)]
        turns = [*word, *[m & 6 for m in n]]
        gathered = thread(gather_text.fn(), [*[0] * 32, *turns, *[0xFFFFFFFF] * 32])
        assert len(set(gathered)) == 1
        assert set(thread(gather_text.fn(), [*[0] * 32, *turns, *[0] * 32])) == {0}
        sums = thread(add_kept_text.fn(), [*[0] * 32, *[100] * 32, *range(32), *gathered])
        assert sums == [100 + i * k for i, k in enumerate(kept)]


def thread(text, operands):
    """The first 32 operands after one thread's run of the few instructions that are used."""
    values, low = dict(enumerate(operands)), (1 << 32) - 1

    def value(name):
        key = int(name[1:]) if name[0] == "$" else name
        return values[key] if key in values else int(name, 0)

    for line in filter(None, re.split(r";\s*", text.strip("{} "))):
        guard, name, *rest = re.fullmatch(r"(@p )?(\S+) (.*)", line.strip(), re.DOTALL).groups()
        target, *sources = [part.strip() for part in rest[0].split(",")]
        key = int(target[1:]) if target[0] == "$" else target
        if name in {".reg"}:
            values |= dict.fromkeys(["p", "t", "s", "v", "v0", "v1", "v2", "v3"], 0)
            continue
        a = [value(s) for s in sources]
        if name in {"mov.f32", "mov.b32"}:
            values[key] = a[0]
        elif name == "mul.lo.u32":
            values[key] = a[0] * a[1] & low
        elif name == "shr.u32":
            values[key] = a[0] >> a[1]
        elif name == "sub.u32":
            values[key] = (a[0] - a[1]) & low
        elif name == "shf.r.wrap.b32":
            values[key] = (((a[1] << 32) | a[0]) >> (a[2] & 31)) & low
        elif name == "lop3.b32":
            assert a[3] == 0xE4
            values[key] = (a[0] & a[2]) | (a[1] & ~a[2] & low)
        elif name == "and.b32":
            values[key] = a[0] & a[1]
        elif name == "setp.ne.s32":
            values[key] = a[0] != a[1]
        else:
            assert name == "add.rn.f32"
            values[key] = a[0] + a[1] if not guard or values["p"] else values[key]
    return [values[i] for i in range(32)]
