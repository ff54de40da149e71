"""Convolutions for the kernel that keeps its weights, in the model of a block and on a GPU."""

import torch
import torch.nn.functional as F
from conv_harness import KEY, Shape, assert_bitwise_equal, make_case
from torch import Tensor

from bayes_dc.ops import _epilogue
from bayes_dc.ops.conv2d.reference import Geometry

PLAIN = Geometry()
SAME = Geometry(padding=(2, 2))
UNEVEN = Geometry((2, 3), (3, 1), (2, 1))
DILATED = Geometry((1, 2), (1, 3), (1, 2))

# passes, tiles, rows, warps
CASES = {
    "first layer": (Shape(5, 3, 9, 8, 1, 6, 5, 5), SAME, (2, 2, 16, 1)),
    "one pass each": (Shape(2, 3, 9, 8, 1, 6, 5, 5), SAME, (1, 3, 32, 1)),
    "rows that end within a word": (Shape(2, 2, 7, 8, 6, 16, 5, 5), PLAIN, (1, 1, 16, 1)),
    "four warps": (Shape(3, 1, 9, 12, 3, 9, 3, 2), SAME, (2, 1, 32, 4)),
    "strides and dilated rows": (Shape(3, 2, 9, 10, 3, 30, 3, 3), UNEVEN, (2, 2, 16, 2)),
    "dilated columns": (Shape(2, 2, 8, 9, 3, 9, 2, 3), DILATED, (2, 2, 16, 1)),
    "one pixel": (Shape(1, 2, 4, 3, 7, 1, 1, 1), PLAIN, (1, 4, 16, 1)),
}


def pooled(y: Tensor) -> Tensor:
    """The largest of 2 × 2 results [P, B, OH, OW, N]."""
    rows = y.flatten(0, 1).permute(0, 3, 1, 2)
    return F.max_pool2d(rows, 2).permute(0, 2, 3, 1).unflatten(0, y.shape[:2])


def check(
    launch, shape, at, tiles, *, p=0.3, dtype=torch.float32, shared=False, finish=False,
    pool=False, repeated=True, apart=False, device="cpu",
):  # fmt: skip
    """Exactly the reference's integers, whatever lies in ``out`` before.

    The model (``device="cpu"``) computes in float64. ``finish``: with an epilogue; ``repeated``:
    all passes read the same images; ``apart``: pixels are no neighbours in memory.
    """
    from bayes_dc.ops.conv2d.triton_few import FewConfig

    case = make_case(shape, at, p, dtype, integers=True, shared=shared)
    if repeated:
        case.x = case.x[:1].expand(case.x.shape)
    want = case.expected()["y"]
    kind = torch.float64 if device == "cpu" else dtype
    options = {}
    if finish:
        factors, summands = (torch.arange(want.shape[-1]) % n - 2.0 for n in (5, 4))
        want = (want * factors + summands).relu()
        epilogue = factors.to(device, kind), summands.to(device, kind), True
        options["ending"] = _epilogue.options(epilogue, epilogue[0][None])
    if pool:
        want = pooled(want)
    out = torch.full(want.shape, float("nan"), dtype=kind, device=device)
    x, w, bias, samples, passes = (
        t.to(device) for t in (case.x[:1], case.w, case.b, case.sample_ids, case.pass_ids)
    )
    x = x if repeated else case.x.to(device)
    if apart:
        x = torch.cat([x, x], 4).transpose(2, 3).contiguous().transpose(2, 3)[..., : x.shape[4]]
    x = x.expand(case.x.shape)
    launch(
        *(x, w, bias.to(kind), torch.tensor(KEY, device=device), samples, passes, out),
        stride=at.stride,
        padding=at.padding,
        dilation=at.dilation,
        keep=case.digits.keep,
        bits=case.digits.bits,
        scale=1.0,
        pool=pool,
        tiles=tiles and FewConfig(*tiles),
        **options,
    )
    assert_bitwise_equal(out.cpu(), want.to(kind), "out")
