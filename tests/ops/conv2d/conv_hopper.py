"""Convolutions for the Hopper kernel, in the model of a thread block and on a GPU."""

import torch
from conv_harness import KEY, Shape, assert_bitwise_equal, make_case

from bayes_dc.ops import _epilogue
from bayes_dc.ops.conv2d.reference import Geometry

SAME = Geometry(padding=(1, 1))
UNEVEN = Geometry(padding=(2, 1), dilation=(2, 1))
HALF = Geometry(stride=(2, 2), padding=(1, 1))
POINTS = Geometry(stride=(2, 2))
ODD = Shape(2, 3, 6, 5, 72, 80, 3, 3)
EVEN = Shape(2, 5, 8, 6, 64, 72, 3, 3)

# images, height, width, outputs, warps, stages, slots, taps down, by warp
CASES = {
    "own masks, one image": (ODD, SAME, (1, 4, 8, 64, 4, 3)),
    "own masks, two images": (ODD, SAME, (2, 8, 8, 64, 4, 2)),
    "own masks, four of three": (ODD, SAME, (4, 4, 4, 64, 4, 2)),
    "two fragments of a word": (Shape(1, 3, 6, 5, 136, 136, 3, 1), SAME, (2, 8, 8, 128, 4, 2)),
    "two groups of warps": (Shape(1, 3, 6, 5, 136, 136, 1, 3), SAME, (2, 4, 8, 128, 8, 3)),
    "taps of a column": (ODD, SAME, (1, 4, 8, 64, 4, 3, 2, 3)),
    "taps of a column, two images": (ODD, SAME, (2, 4, 8, 64, 4, 3, 3, 3)),
    "taps of a column, dilated": (ODD._replace(KW=2), UNEVEN, (1, 4, 8, 64, 4, 3, 2, 3)),
    "warp by warp": (ODD, SAME, (2, 4, 4, 128, 4, 2, 2, 1, 1)),
    "warp by warp, one image": (ODD, SAME, (1, 4, 4, 64, 4, 3, 3, 1, 1)),
    "dilated": (Shape(2, 2, 6, 5, 72, 80, 3, 2), UNEVEN, (1, 8, 8, 64, 4, 3)),
    "stride 2": (EVEN, HALF, (4, 4, 4, 64, 4, 2)),
    "stride 2, one tap": (EVEN._replace(KH=1, KW=1), POINTS, (2, 4, 4, 64, 4, 2)),
    "stride 2, dilated": (EVEN, Geometry((2, 2), (2, 2), (2, 3)), (2, 4, 4, 64, 4, 2)),
}
FORWARD_ONLY = {"stride 2, dilated"}


def check(
    launch, shape, at, tiles, *, transposed, p=0.3, dtype=torch.bfloat16, shared=False,
    finish=False, device="cpu",
):  # fmt: skip
    """Exactly the reference's integers, whatever lies in ``out`` before.

    The model (``device="cpu"``) computes in float64. ``finish``: with an epilogue.
    """
    from bayes_dc.ops._hopper import images_by_tma
    from bayes_dc.ops.conv2d.triton_hopper_gemm import HopperConfig

    case = make_case(shape, at, p, dtype, integers=True, shared=shared, bias=not transposed)
    case.x, case.gy = (t[:1].expand(t.shape) for t in (case.x, case.gy))
    source = case.gy if transposed else case.x
    assert images_by_tma(source, 1 if transposed else at.stride[0])
    want = case.expected()["dx" if transposed else "y"]
    kind = torch.float64 if device == "cpu" else dtype
    options = {}
    if finish:
        factors, summands = (torch.arange(want.shape[-1]) % n - 2.0 for n in (5, 4))
        want = (want * factors + summands).relu()
        epilogue = factors.to(device, kind), summands.to(device, kind), True
        options["ending"] = _epilogue.options(epilogue, epilogue[0][None])
    out = torch.full(want.shape, float("nan"), dtype=kind, device=device)
    bias = None if transposed else case.b.to(device, kind)
    source, w, samples, passes = (
        t.to(device) for t in (source[:1], case.w, case.sample_ids, case.pass_ids)
    )
    launch(
        *(source.expand(out.shape[0], -1, -1, -1, -1), w, bias),
        *(torch.tensor(KEY, device=device), samples, passes, out),
        stride=at.stride,
        padding=at.padding,
        dilation=at.dilation,
        keep=case.digits.keep,
        bits=case.digits.bits,
        scale=1.0,
        transposed=transposed,
        tiles=tiles and HopperConfig(*tiles),
        **options,
    )
    assert_bitwise_equal(out.cpu(), want, "out")
