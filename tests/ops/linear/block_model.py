"""A thread block in NumPy: runs the Python of the Hopper kernels, statement by statement.

Gluon has no interpreter. Here tensors are arrays, shared memory is memory, copies happen when they
are issued, and a wait for a barrier whose phase has not completed is a deadlock: an error. Layouts
are ignored; the compiler's `assert_trivial` checks them.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class Deadlock(AssertionError):
    """A barrier was waited for that nothing will complete."""


class Element:
    """A type of elements; floats are computed in float64."""

    def __init__(self, bits: int, kind: type) -> None:
        self.primitive_bitwidth, self.kind = bits, kind


ELEMENTS = {torch.bfloat16: Element(16, np.float64), torch.float32: Element(32, np.float64)}


class Value(np.ndarray):
    """A tensor in registers."""

    type = types.SimpleNamespace(layout=None)

    def to(self, kind: Any, bitcast: bool = False) -> "Value":
        assert not bitcast
        return value(np.asarray(self).astype(getattr(kind, "kind", kind)))


def value(data: Any) -> Value:
    return np.asarray(data).view(Value)


class Scalar(int):
    """An integer that every thread holds."""

    def to(self, kind: Any) -> Any:
        return np.uint32(int(self) & 0xFFFFFFFF) if kind is np.uint32 else self


def _scalar(name: str) -> Callable[..., Any]:
    def method(self: int, other: Any) -> Any:
        result = getattr(int, name)(int(self), other)
        return Scalar(result) if type(result) is int else result

    return method


_NAMES = "add radd sub rsub mul rmul floordiv mod and lshift rshift"
for _name in _NAMES.split():
    setattr(Scalar, f"__{_name}__", _scalar(f"__{_name}__"))


class Memory:
    """Shared memory, or a view of it."""

    dtype = layout = None

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def index(self, i: int) -> "Memory":
        assert 0 <= i < len(self.data)
        return Memory(self.data[i])

    def permute(self, order: tuple[int, ...]) -> "Memory":
        return Memory(self.data.transpose(order))

    def _reinterpret(self, element: Any, shape: list[int], layout: Any) -> "Memory":
        assert self.data.flags.c_contiguous
        strides, size = [], self.data.itemsize
        for length in reversed(shape):
            strides.insert(0, size)
            size *= length
        return Memory(np.lib.stride_tricks.as_strided(self.data, tuple(shape), strides))

    def slice(self, start: int, length: int) -> "Memory":
        return Memory(self.data[start : start + length])

    def load(self, layout: Any) -> Value:
        return value(self.data.copy())

    def store(self, data: np.ndarray) -> None:
        assert data.shape == self.shape
        self.data[...] = data


class Pointer:
    """An address in global memory."""

    def __init__(self, data: np.ndarray, at: Any = 0) -> None:
        self.data, self.at = data, at
        self.dtype = types.SimpleNamespace(element_ty=data.dtype.type)

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.data, self.at + offset)

    def __getitem__(self, key: Any) -> "Pointer":
        return Pointer(self.data, self.at[key])


class TensorMap:
    """A tensor in global memory as TMA sees it; beyond its ends are zeros."""

    def __init__(self, tensor: torch.Tensor, block: list[int]) -> None:
        shape = [
            size if s > 0 else 1 for size, s in zip(tensor.shape, tensor.stride(), strict=True)
        ]
        self.data = tensor[tuple(slice(size) for size in shape)].double().numpy()
        self.dtype, self.layout = ELEMENTS[tensor.dtype], None
        nbytes = int(np.prod(block)) * tensor.element_size()
        self.block_type = types.SimpleNamespace(shape=block, nbytes=nbytes)

    def read(self, at: list[int]) -> np.ndarray:
        block = np.zeros(self.block_type.shape)
        here, there = [], []
        for first, size, end in zip(at, block.shape, self.data.shape, strict=True):
            low, high = max(0, first), max(0, min(first + size, end))
            here.append(slice(low, high))
            there.append(slice(low - first, max(low, high) - first))
        block[tuple(there)] = self.data[tuple(here)]
        return block


_PHASE = 1 << 32  # A barrier holds its phase and, below, the bytes that are still to come.


def _expect(barrier: Memory, nbytes: int, pred: bool = True) -> None:
    if pred:
        assert barrier.data[0] % _PHASE == 0, "a stage is filled twice"
        barrier.data[0] += nbytes


def _wait(barrier: Memory, parity: int, pred: bool = True) -> None:
    phase = barrier.data[0] // _PHASE
    if pred and phase % 2 == parity:
        raise Deadlock(f"phase {phase} has not completed, and nothing will complete it")


def _copy(source: TensorMap, at: list[int], barrier: Memory, target: Memory, pred: bool) -> None:
    if pred:
        target.store(source.read(at))
        assert barrier.data[0] % _PHASE >= source.block_type.nbytes
        barrier.data[0] -= source.block_type.nbytes
        if barrier.data[0] % _PHASE == 0:
            barrier.data[0] += _PHASE


def _product(a: Any, b: Any, acc: Value, use_acc: bool = True, is_async: bool = False) -> Value:
    a, b = (np.asarray(t.data if isinstance(t, Memory) else t) for t in (a, b))
    return value((acc if use_acc else 0) + a @ b)


def _after(outstanding: int, deps: list[Value]) -> Any:
    return deps[0] if len(deps) == 1 else tuple(deps)


def _load(pointer: Pointer, mask: Any = True, other: int = 0) -> Any:
    at = np.where(mask, pointer.at, 0)
    found = np.where(mask, pointer.data[at], other)
    return value(found) if found.ndim else Scalar(found)


def _store(pointer: Pointer, data: Value, mask: Any) -> None:
    at, data, mask = np.broadcast_arrays(pointer.at, data, mask)
    pointer.data[at[mask]] = data[mask]


def _asm(text: str, constraints: str, args: list[Any], **_: Any) -> Any:
    if "mul.wide.u32" in text:
        return args[0] * args[1], _umulhi(*args)
    if "mul.lo.u32" in text:
        return args[0] * args[1]
    if "mad.lo.u32" in text:
        return args[0] * args[1] + args[2].astype(np.uint32)
    assert "@p add.rn.f32" in text
    acc, products, word, bit = args
    return value(np.where((word & bit) != 0, acc + products, acc))


def _select(w: Value, word: Value, byte: Value) -> Value:
    """What PRMT and AND do: bit 7 of byte ``byte`` of ``word``."""
    top = (np.asarray(word) >> (8 * np.asarray(byte) + 7).astype(np.uint32)) & 1
    return value(np.where(top != 0, w, 0))


def _umulhi(a: Value, b: Value) -> Value:
    return value((a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32)).astype(np.uint32))


def _minimum(a: Any, b: Any) -> Any:
    return value(np.minimum(a, b)) if isinstance(a, np.ndarray) else Scalar(min(a, b))


def _maximum(a: Any, b: Any, propagate_nan: Any = None) -> Any:
    return value(np.maximum(a, b)) if isinstance(a, np.ndarray) else Scalar(max(a, b))


def _reduce(v: Value, axis: int, combine: Callable[..., Any]) -> Value:
    return functools.reduce(combine, (v.take(i, axis) for i in range(v.shape[axis])))


def _nothing(*_: Any, **__: Any) -> None:
    return None


def language(warps: int, program: int) -> types.SimpleNamespace:
    """The functions of `gl` and `tl` that the kernels use."""
    return types.SimpleNamespace(
        uint32=np.uint32,
        int32=np.int64,
        int64=np.int64,
        float32=np.float64,
        num_warps=lambda: warps,
        program_id=lambda axis: Scalar(program),
        arange=lambda first, end, layout: value(np.arange(first, end)),
        zeros=lambda shape, kind, layout: value(np.zeros(shape, getattr(kind, "kind", kind))),
        full=lambda shape, v, kind, layout: value(np.full(shape, v, kind)),
        cast=lambda v, kind: value(np.asarray(v, kind)),
        umulhi=_umulhi,
        static_range=range,
        cdiv=lambda a, b: Scalar(-(-a // b)),
        minimum=_minimum,
        maximum=_maximum,
        PropagateNan=types.SimpleNamespace(ALL=None),
        where=lambda c, a, b: value(np.where(c, a, b)),
        join=lambda a, b: value(np.stack(np.broadcast_arrays(a, b), axis=-1)),
        reshape=lambda v, shape: value(np.asarray(v).reshape(shape)),
        permute=lambda v, order: value(np.asarray(v).transpose(order)),
        reduce=_reduce,
        broadcast=lambda a, b: tuple(value(v.copy()) for v in np.broadcast_arrays(a, b)),
        convert_layout=lambda v, layout, assert_trivial=False: v,
        inline_asm_elementwise=_asm,
        load=_load,
        store=_store,
        allocate_shared_memory=lambda element, shape, layout: Memory(
            np.full(shape, 0, getattr(element, "kind", element))
        ),
        SliceLayout=_nothing,
        BlockedLayout=_nothing,
        DotOperandLayout=_nothing,
        NVMMADistributedLayout=_nothing,
        SwizzledSharedLayout=_nothing,
        NVMMASharedLayout=types.SimpleNamespace(get_default_for=_nothing),
    )


def run(kernel: Any, programs: int, warps: int, *args: Any, **constants: Any) -> None:
    """Run ``kernel`` for every program, with these words of its language."""
    for program in range(programs):
        words = language(warps, program)
        replaced = {
            "gl": words,
            "tl": words,
            "select": _select,
            "select_rounded": _select,
            "round_tile": lambda w: w,
            "block_barrier": _nothing,
            "fence_async_shared": _nothing,
            "warpgroup_mma": _product,
            "mma_v2": _product,
            "warpgroup_mma_wait": _after,
            "tma": types.SimpleNamespace(async_copy_global_to_shared=_copy),
            "mbarrier": types.SimpleNamespace(
                init=lambda barrier, count: barrier.data.fill(0),
                expect=_expect,
                wait=_wait,
                MBarrierLayout=_nothing,
            ),
        }
        with np.errstate(over="ignore"):
            _python(kernel, replaced, {})(*args, **constants)


def _python(function: Any, replaced: dict[str, Any], made: dict[int, Any]) -> Callable[..., Any]:
    """The Python function of a kernel or device function, calling those of the others."""
    if id(function) not in made:
        source = function.fn
        names = dict(source.__globals__)
        plain = types.FunctionType(source.__code__, names, source.__name__, source.__defaults__)
        plain.__kwdefaults__ = source.__kwdefaults__
        made[id(function)] = plain
        for name, thing in source.__globals__.items():
            if name in replaced:
                names[name] = replaced[name]
            elif type(thing).__name__ == "constexpr":
                names[name] = thing.value
            elif hasattr(thing, "fn") and hasattr(thing, "arg_names"):
                names[name] = _python(thing, replaced, made)
    return made[id(function)]
