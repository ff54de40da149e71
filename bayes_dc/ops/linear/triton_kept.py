"""Sums kept in shared memory, one float32 at a time.

The compiler would hold what is written as a quad in neighbouring registers, and move it there and
back in every step of the loop before. Order: as in ``triton_stage``.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def _writes(step):
    # A branch: predicates on each would become as many branches.
    writes = "".join(f" st.shared.f32 [$1+{step * i}], ${i + 2};" for i in range(8))
    begin, end = "{ .reg .pred p; setp.eq.s32 p, $10, 0; @p bra DONE;", " DONE: mov.u32 $0, 0; }"
    return begin + writes + end


@triton.jit
def write_eight(address, values, STEP: tl.constexpr, on):
    """Eight float32, STEP bytes apart, where ``on`` is not 0."""
    return tl.inline_asm_elementwise(
        _writes(STEP),
        "=r,r,f,f,f,f,f,f,f,f,r",
        (address,) + values + (on,),
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def write_kept(address, value):
    """One float32."""
    return tl.inline_asm_elementwise(
        "{ st.shared.f32 [$1], $2; mov.u32 $0, 0; }",
        "=r,r,f",
        [address, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def read_kept(address):
    """One float32, read before a later barrier."""
    return tl.inline_asm_elementwise(
        "ld.shared.f32 $0, [$1];",
        "=f,r",
        [address],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )


@triton.constexpr_function
def _additions(step):
    sums = range(8)
    loads = "".join(f" ld.volatile.shared.f32 f{i}, [$1+{step * i}];" for i in sums)
    additions = "".join(f" add.rn.f32 f{i}, f{i}, ${i + 2};" for i in sums)
    stores = "".join(f" st.volatile.shared.f32 [$1+{step * i}], f{i};" for i in sums)
    return "{ .reg .f32 f<8>;" + loads + additions + stores + " mov.u32 $0, 0; }"


@triton.jit
def add_eight(address, values, STEP: tl.constexpr):
    """Add to eight float32, STEP bytes apart.

    Volatile, so that sums do not fill registers waiting for their turn.
    """
    return tl.inline_asm_elementwise(
        _additions(STEP),
        "=r,r,f,f,f,f,f,f,f,f",
        (address,) + values,
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
