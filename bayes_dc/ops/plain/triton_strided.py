"""Offsets of elements in walks over strided operands; see ``_strided.py``."""

import triton
import triton.language as tl


@triton.jit
def offsets(index, sizes, strides, WIDE: tl.constexpr):
    """Offset of each ``index`` of a walk, in elements: int64 with WIDE, else int32.

    ``strides`` may hold one more than ``sizes``: that of columns, which is not looked at.
    """
    RANK: tl.constexpr = len(sizes)
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    rest = index.to(kind)
    result = rest * 0
    for i in tl.static_range(RANK - 1):
        size = tl.cast(sizes[RANK - 1 - i], kind)
        outer = rest // size
        result += (rest - outer * size) * strides[RANK - 1 - i]
        rest = outer
    return result + rest * strides[0]
