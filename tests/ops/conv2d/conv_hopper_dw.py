"""Weight gradients for the Hopper kernel, in the model of a thread block and on a GPU."""

import torch
from conv_harness import KEY, Shape, assert_bitwise_equal, make_case

from bayes_dc.ops.conv2d.reference import Geometry

SAME = Geometry(padding=(1, 1))
HALF = Geometry(stride=(2, 2), padding=(1, 1))

# rows, taps, blocks, warps, stages
CASES = {
    "four images of a tile": (Shape(1, 6, 4, 4, 64, 64, 3, 3), SAME, (64, 3, 1, 4, 3)),
    "tails, two passes": (Shape(2, 5, 4, 3, 72, 136, 3, 1), SAME, (64, 3, 1, 8, 4)),
    "two images of a tile": (Shape(1, 5, 4, 7, 40, 72, 3, 1), SAME, (64, 3, 1, 4, 2)),
    "an image of a tile": (Shape(2, 3, 8, 7, 64, 72, 3, 1), SAME, (64, 3, 1, 4, 3)),
    "tiles of an image": (Shape(1, 3, 9, 12, 64, 64, 3, 2), SAME, (32, 3, 1, 4, 2)),
    "dilated": (
        Shape(1, 6, 9, 12, 64, 64, 3, 2),
        Geometry(padding=(0, 1), dilation=(2, 3)),
        (64, 3, 1, 4, 3),
    ),
    "five rows of the kernel": (Shape(1, 3, 5, 6, 40, 64, 5, 1), SAME, (64, 3, 1, 4, 3)),
    "stride 2": (Shape(2, 5, 8, 8, 40, 72, 3, 2), HALF, (64, 3, 1, 4, 3)),
    "stride 2, one tap": (
        Shape(1, 5, 8, 6, 64, 256, 1, 1),
        Geometry(stride=(2, 2)),
        (64, 1, 2, 8, 3),
    ),
    "one result": (Shape(1, 9, 8, 8, 64, 64, 1, 1), Geometry(), (64, 1, 1, 4, 3)),
    "three blocks of outputs": (Shape(1, 5, 4, 4, 64, 192, 1, 1), Geometry(), (64, 1, 3, 4, 3)),
}


def check(
    launch, shape, at, tiles, *, splits=1, shared=False, p=0.5, dtype=torch.bfloat16, device="cpu"
):
    """Exactly the reference's integers, whatever lies in ``out`` before.

    The model (``device="cpu"``) computes in float64.
    """
    from bayes_dc.ops.conv2d.triton_hopper_dw import DwConfig

    case = make_case(shape, at, p, dtype, integers=True, shared=shared)
    case.x = case.x[:1].expand(case.x.shape)
    want = case.expected()["dw"]
    kind = torch.float64 if device == "cpu" else torch.float32
    out = torch.full((splits, *want.shape), float("nan"), dtype=kind, device=device)
    gy, x, samples, passes = (
        t.to(device) for t in (case.gy, case.x[:1], case.sample_ids, case.pass_ids)
    )
    launch(
        *(gy, x.expand(case.x.shape), torch.tensor(KEY, device=device), samples, passes, out),
        stride=at.stride,
        padding=at.padding,
        dilation=at.dilation,
        keep=case.digits.keep,
        bits=case.digits.bits,
        scale=1.0,
        tiles=tiles and DwConfig(*tiles),
    )
    assert_bitwise_equal(out.cpu().double().sum(dim=0), want, "dw")
