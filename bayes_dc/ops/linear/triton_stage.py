"""Tiles in shared memory, addressed by hand: asynchronous copies in, quads of elements out.

Triton has no way to read a tile of shared memory element by element, and a `tl.load` of values
that all lanes share costs a round trip per use. Here an address is an int32 of shared memory;
every function is a few PTX instructions. Quads are four consecutive elements.

Order: the functions that write or wait are marked as having side effects, so they stay in their
order; the ones that read are not, and depend on an address that came from ``wait_copies``. A tile
is written again only in a later turn of a loop, behind a barrier: a loop around both must not be
unrolled into one block, where a read could sink below the write.
"""

import triton
import triton.language as tl

from bayes_dc.ops.linear.triton_fma import read_four


@triton.constexpr_function
def _declaration(size):
    return "{ .shared .align 16 .b8 tile[" + str(size) + "]; mov.u32 $0, tile; }"


@triton.jit
def shared_memory(BYTES: tl.constexpr):
    """Address of BYTES bytes of shared memory (at most 48 KiB in a program)."""
    return tl.inline_asm_elementwise(
        _declaration(BYTES), "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def store_pointer(address, p):
    """Keep a pointer, 8 bytes."""
    return tl.inline_asm_elementwise(
        "{ st.shared.b64 [$1], $2; mov.u32 $0, 0; }",
        "=r,r,l",
        [address, p],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def store_pair(address, a, b):
    """Keep two words, 8 bytes."""
    return tl.inline_asm_elementwise(
        "{ st.shared.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0; }",
        "=r,r,r,r",
        [address, a, b],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def read_pair(address):
    """Two words."""
    return tl.inline_asm_elementwise(
        "ld.shared.v2.b32 {$0, $1}, [$2];",
        "=r,=r,r",
        [address],
        dtype=(tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )


@triton.constexpr_function
def _copy(size, pointer):
    """Of a quad: 16 bytes pass the first-level cache by, 8 bytes cannot."""
    how = {4: "cg.shared.global [$1], [{}], 16", 2: "ca.shared.global [$1], [{}], 8"}[size]
    return "cp.async." + how.format(pointer) + "; mov.u32 $0, 0; }"


@triton.jit
def copy_quad(address, entry, offset, SIZE: tl.constexpr):
    """Begin to copy a quad of SIZE-byte elements, from ``offset`` bytes past a kept pointer."""
    return tl.inline_asm_elementwise(
        "{ .reg .b64 p; ld.shared.b64 p, [$2]; add.s64 p, p, $3; " + _copy(SIZE, "p"),
        "=r,r,r,l",
        [address, entry, offset],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def read_pointer(address, like):
    """A pointer kept at ``address``, of the type of ``like``."""
    kept = tl.inline_asm_elementwise(
        "ld.shared.b64 $0, [$1];",
        "=l,r",
        [address],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )
    return kept.to(like.dtype, bitcast=True)


@triton.jit
def pointer_of(p, lane):
    """The pointer that another lane of the warp has."""
    found = tl.inline_asm_elementwise(
        """{ .reg .b32 a, b; mov.b64 {a, b}, $1; shfl.sync.idx.b32 a, a, $2, 31, 0xffffffff;
        shfl.sync.idx.b32 b, b, $2, 31, 0xffffffff; mov.b64 $0, {a, b}; }""",
        "=l,l,r",
        [p, lane],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )
    return found.to(p.dtype, bitcast=True)


@triton.jit
def copy_from(address, source, SIZE: tl.constexpr):
    """Begin to copy a quad of SIZE-byte elements from a pointer."""
    return tl.inline_asm_elementwise(
        "{ " + _copy(SIZE, "$2"),
        "=r,r,l",
        [address, source],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait_for_last():
    """Wait for the launch before, of a launch that may begin earlier; read nothing until then."""
    return tl.inline_asm_elementwise(
        "{ griddepcontrol.wait; mov.u32 $0, 0; }",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def commit_copies(token):
    """Close the group of copies begun since the last one."""
    return tl.inline_asm_elementwise(
        "{ cp.async.commit_group; mov.u32 $0, $1; }",
        "=r,r",
        [token],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def barrier(address, WARPS: tl.constexpr):
    """Wait for the writes of all lanes; read at the address that comes back."""
    if WARPS == 1:
        return tl.inline_asm_elementwise(
            "{ bar.warp.sync 0xffffffff; mov.u32 $0, $1; }",
            "=r,r",
            [address],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        return tl.inline_asm_elementwise(
            "{ bar.sync 0; mov.u32 $0, $1; }",
            "=r,r",
            [address],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def wait_copies(address, WARPS: tl.constexpr):
    """Wait for all copies begun by any lane; read at the address that comes back."""
    waited = tl.inline_asm_elementwise(
        "{ cp.async.wait_group 0; mov.u32 $0, $1; }",
        "=r,r",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    return barrier(waited, WARPS)


@triton.jit
def read_quad(address, ELEMENT: tl.constexpr):
    """Four elements of type ELEMENT, as float32."""
    return read_four(address, ELEMENT, "shared")


@triton.jit
def take_quad(address, ELEMENT: tl.constexpr):
    """The same, read before a later barrier."""
    return read_four(address, ELEMENT, "shared", False)


@triton.jit
def write_quad(address, v0, v1, v2, v3):
    """Four float32, 16 bytes."""
    return tl.inline_asm_elementwise(
        "{ st.shared.v4.f32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0; }",
        "=r,r,f,f,f,f",
        [address, v0, v1, v2, v3],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def add_quad(address, v0, v1, v2, v3):
    """Add to four float32; volatile, so that sums do not fill registers waiting for their turn."""
    return tl.inline_asm_elementwise(
        """{ .reg .f32 a, b, c, d; ld.volatile.shared.v4.f32 {a, b, c, d}, [$1];
        add.rn.f32 a, a, $2; add.rn.f32 b, b, $3; add.rn.f32 c, c, $4; add.rn.f32 d, d, $5;
        st.volatile.shared.v4.f32 [$1], {a, b, c, d}; mov.u32 $0, 0; }""",
        "=r,r,f,f,f,f",
        [address, v0, v1, v2, v3],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def write_words(address, a, b, c, d):
    """Four words, 16 bytes."""
    return tl.inline_asm_elementwise(
        "{ st.shared.v4.b32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0; }",
        "=r,r,r,r,r,r",
        [address, a, b, c, d],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def take_words(address):
    """Four words, read before a later barrier."""
    return tl.inline_asm_elementwise(
        "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,r",
        [address],
        dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def warp_number():
    """Number of the lane's warp, as a scalar: a loop that it bounds has another end in each."""
    return tl.inline_asm_elementwise(
        "{ mov.u32 $0, %tid.x; shr.u32 $0, $0, 5; }",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def words_below(words, index, SIZE):
    """The words where ``index`` < SIZE; elsewhere no bit, so that what was read is not used."""
    inside = tl.where(index < SIZE, -1, 0).to(tl.uint32, bitcast=True)
    return words[0] & inside, words[1] & inside, words[2] & inside, words[3] & inside
