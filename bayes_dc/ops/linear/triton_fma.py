"""Masked multiply-adds and quad loads shared by the row kernels.

Each helper has a PTX form and a portable form. The PTX form keeps `and; setp; @p fma` adjacent for
each element, which lets ptxas turn runs of seven bits into one R2P instruction, and loads in the
layout of the full tile, where a `tl.load` would go through shared memory. The portable form runs in
the interpreter and in float64. Both select, so a dropped weight that is inf or NaN leaves no trace.
"""

import triton
import triton.language as tl


@triton.jit
def fma_if8(a, word, bit, x, w, PTX: tl.constexpr):
    """a[i] + x · w[i] where ``word`` has the bit ``bit << i``, for i = 0 … 7.

    ``a`` and ``w`` are tuples; ``bit`` is a constant that begins a byte: seven of the eight
    predicates come from one R2P.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            """{ .reg .pred p; .reg .b32 t, c; .reg .f32 f0, f1, f2, f3, f4, f5, f6, f7;
            mov.f32 f0, $8; mov.f32 f1, $9; mov.f32 f2, $10; mov.f32 f3, $11;
            mov.f32 f4, $12; mov.f32 f5, $13; mov.f32 f6, $14; mov.f32 f7, $15;
            and.b32 t, $16, $17; setp.ne.s32 p, t, 0; @p fma.rn.f32 f0, $18, $19, f0;
            shl.b32 c, $17, 1; and.b32 t, $16, c;
            setp.ne.s32 p, t, 0; @p fma.rn.f32 f1, $18, $20, f1;
            shl.b32 c, $17, 2; and.b32 t, $16, c;
            setp.ne.s32 p, t, 0; @p fma.rn.f32 f2, $18, $21, f2;
            shl.b32 c, $17, 3; and.b32 t, $16, c;
            setp.ne.s32 p, t, 0; @p fma.rn.f32 f3, $18, $22, f3;
            shl.b32 c, $17, 4; and.b32 t, $16, c;
            setp.ne.s32 p, t, 0; @p fma.rn.f32 f4, $18, $23, f4;
            shl.b32 c, $17, 5; and.b32 t, $16, c;
            setp.ne.s32 p, t, 0; @p fma.rn.f32 f5, $18, $24, f5;
            shl.b32 c, $17, 6; and.b32 t, $16, c;
            setp.ne.s32 p, t, 0; @p fma.rn.f32 f6, $18, $25, f6;
            shl.b32 c, $17, 7; and.b32 t, $16, c;
            setp.ne.s32 p, t, 0; @p fma.rn.f32 f7, $18, $26, f7;
            mov.f32 $0, f0; mov.f32 $1, f1; mov.f32 $2, f2; mov.f32 $3, f3;
            mov.f32 $4, f4; mov.f32 $5, f5; mov.f32 $6, f6; mov.f32 $7, f7; }""",
            "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f,f,f,f,f,r,r,f,f,f,f,f,f,f,f,f",
            a + (word, bit, x) + w,
            dtype=(tl.float32,) * 8,
            is_pure=True,
            pack=1,
        )
    else:
        result = ()
        for i in tl.static_range(8):
            result = result + (
                tl.where((word & (bit << i)) != 0, tl.fma(x, w[i] + x * 0, a[i]), a[i]),
            )
        return result


@triton.jit
def dot_if4(a, word, bit, x0, x1, x2, x3, w0, w1, w2, w3, PTX: tl.constexpr):
    """a + Σ_i x_i · w_i over those i = 0 … 3 for which ``word`` has the bit ``bit << i``."""
    if PTX:
        return tl.inline_asm_elementwise(
            """{ .reg .pred p; .reg .b32 t, c, d, e; .reg .f32 f;
            shl.b32 c, $3, 1; shl.b32 d, $3, 2; shl.b32 e, $3, 3; mov.f32 f, $1;
            and.b32 t, $2, $3; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $4, $8, f;
            and.b32 t, $2, c; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $5, $9, f;
            and.b32 t, $2, d; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $6, $10, f;
            and.b32 t, $2, e; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $7, $11, f;
            mov.f32 $0, f; }""",
            "=&f,f,r,r,f,f,f,f,f,f,f,f",
            [a, word, bit, x0, x1, x2, x3, w0, w1, w2, w3],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        a = tl.where((word & bit) != 0, tl.fma(x0, w0, a), a)
        a = tl.where((word & (bit << 1)) != 0, tl.fma(x1, w1, a), a)
        a = tl.where((word & (bit << 2)) != 0, tl.fma(x2, w2, a), a)
        a = tl.where((word & (bit << 3)) != 0, tl.fma(x3, w3, a), a)
        return a


@triton.constexpr_function
def _load(space, rest):
    return "{ .reg .b32 a, b; .reg .b16 c, d, e, f; ld." + space + rest + " }"


@triton.jit
def read_four(p, ELEMENT: tl.constexpr, SPACE: tl.constexpr, PURE: tl.constexpr = True):
    """Four consecutive elements of type ELEMENT at the aligned ``p``, as float32.

    SPACE is "shared", where ``p`` is an int32, or "global.nc", where it is a pointer.
    """
    OPERANDS: tl.constexpr = ",r" if SPACE == "shared" else ",l"
    if ELEMENT == tl.float32:
        return tl.inline_asm_elementwise(
            _load(SPACE, ".v4.f32 {$0, $1, $2, $3}, [$4];"),
            "=f,=f,=f,=f" + OPERANDS,
            [p],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=PURE,
            pack=1,
        )
    elif ELEMENT == tl.bfloat16:
        v0, v1, v2, v3 = tl.inline_asm_elementwise(
            _load(
                SPACE,
                """.v2.b32 {a, b}, [$4]; shl.b32 $0, a, 16; and.b32 $1, a, 0xffff0000;
                shl.b32 $2, b, 16; and.b32 $3, b, 0xffff0000;""",
            ),
            "=r,=r,=r,=r" + OPERANDS,
            [p],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=PURE,
            pack=1,
        )
        return (
            v0.to(tl.float32, bitcast=True),
            v1.to(tl.float32, bitcast=True),
            v2.to(tl.float32, bitcast=True),
            v3.to(tl.float32, bitcast=True),
        )
    else:
        tl.static_assert(ELEMENT == tl.float16)
        return tl.inline_asm_elementwise(
            _load(
                SPACE,
                """.v2.b32 {a, b}, [$4]; mov.b32 {c, d}, a; mov.b32 {e, f}, b;
                cvt.f32.f16 $0, c; cvt.f32.f16 $1, d; cvt.f32.f16 $2, e; cvt.f32.f16 $3, f;""",
            ),
            "=f,=f,=f,=f" + OPERANDS,
            [p],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=PURE,
            pack=1,
        )


@triton.jit
def _ptx_scalar(p, valid):
    """One element at ``p`` as float32, 0 where ``valid`` is 0."""
    ELEMENT: tl.constexpr = p.dtype.element_ty
    if ELEMENT == tl.float32:
        v = tl.inline_asm_elementwise(
            """{ .reg .pred q; setp.ne.s32 q, $2, 0; mov.f32 $0, 0f00000000;
            @q ld.global.nc.f32 $0, [$1]; }""",
            "=&f,l,r",
            [p, valid],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    elif ELEMENT == tl.bfloat16:
        v = tl.inline_asm_elementwise(
            """{ .reg .pred q; .reg .b16 h; setp.ne.s32 q, $2, 0; mov.b16 h, 0;
            @q ld.global.nc.b16 h, [$1]; mov.b32 $0, {0, h}; }""",
            "=&r,l,r",
            [p, valid],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        ).to(tl.float32, bitcast=True)
    else:
        tl.static_assert(ELEMENT == tl.float16)
        v = tl.inline_asm_elementwise(
            """{ .reg .pred q; .reg .b16 h; setp.ne.s32 q, $2, 0; mov.b16 h, 0;
            @q ld.global.nc.b16 h, [$1]; cvt.f32.f16 $0, h; }""",
            "=&f,l,r",
            [p, valid],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return v


@triton.jit
def load_quad(
    p,
    safe,
    stride,
    valid,
    index,
    SIZE,
    ACC: tl.constexpr,
    VECTOR: tl.constexpr,
    PTX: tl.constexpr,
):
    """Elements index … index + 3 of a row of ``SIZE`` elements; 0 beyond its end.

    ``p`` points to element ``index`` and ``stride`` is the distance of neighbours. A row that is
    not ``valid`` (int32) reads as anything finite or not: its results must not be used. VECTOR
    promises that stride is 1, SIZE a multiple of 4 and ``p`` aligned to four elements; it reads at
    ``safe``, a quad of a valid row, in place of a row that is not.
    """
    stride = tl.cast(stride, tl.int64)
    if PTX and VECTOR:
        return read_four(tl.where(valid != 0, p, safe), p.dtype.element_ty, "global.nc")
    elif PTX:
        return (
            _ptx_scalar(p, (index < SIZE).to(tl.int32) & valid),
            _ptx_scalar(p + stride, (index + 1 < SIZE).to(tl.int32) & valid),
            _ptx_scalar(p + 2 * stride, (index + 2 < SIZE).to(tl.int32) & valid),
            _ptx_scalar(p + 3 * stride, (index + 3 < SIZE).to(tl.int32) & valid),
        )
    else:
        inside = valid != 0
        return (
            tl.load(p, mask=inside & (index < SIZE), other=0).to(ACC),
            tl.load(p + stride, mask=inside & (index + 1 < SIZE), other=0).to(ACC),
            tl.load(p + 2 * stride, mask=inside & (index + 2 < SIZE), other=0).to(ACC),
            tl.load(p + 3 * stride, mask=inside & (index + 3 < SIZE), other=0).to(ACC),
        )


@triton.constexpr_function
def _load_id(pure):
    how = ".nc" if pure else ""  # ptxas moves a load by the read-only way past barriers
    return "{ .reg .b64 t; ld.global" + how + ".b64 t, [$1]; cvt.u32.u64 $0, t; }"


@triton.jit
def load_id(p, PTX: tl.constexpr, PURE: tl.constexpr = True):
    """The low 32 bits of the int64 at ``p``, in the tile's own layout.

    A `tl.load` would choose a layout that coalesces it, and the whole kernel would follow. Unless
    PURE it is begun here, not where it is used.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            _load_id(PURE),
            "=r,l",
            [p],
            dtype=tl.uint32,
            is_pure=PURE,
            pack=1,
        )
    else:
        return tl.load(p).to(tl.uint32)


@triton.jit
def below(index, SIZE, CHECK: tl.constexpr):
    """1 where ``index < SIZE``; the constant 1 where CHECK says that no index is beyond."""
    if CHECK:
        return (index < SIZE).to(tl.int32)
    else:
        return index * 0 + 1
