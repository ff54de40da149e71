"""The forward's staged kernel in Triton's interpreter: its few PTX instructions in NumPy.

Warps run in step, so that their races do not show; what shows are addresses, banks of memory that
are too small, reads of what was never written or is still being copied, and the order of sums.
"""

import ctypes
from typing import Any

import numpy as np
import torch
import triton.language as tl
from harness import KEY, Case

from bayes_dc.rng import reference

BITS_OF_NAN = 0xFF


class Memory:
    """Shared memory of the program that runs, and the copies under way."""

    def __init__(self, readable: list[tuple[int, int]]) -> None:
        self.readable = readable
        self.bytes = np.zeros(0, np.uint8)
        self.under_way: list[tuple[int, bytes]] = []
        self.most = 0

    def reserve(self, size: int) -> None:
        self.bytes = np.full(size, BITS_OF_NAN, np.uint8)
        self.under_way = []
        self.most = max(self.most, size)

    def copy(self, to: int, source: int, size: int) -> None:
        assert any(a <= source and source + size <= b for a, b in self.readable), "outside x and W"
        assert to >= 0
        assert to % size == 0
        assert to + size <= self.bytes.size
        self.bytes[to : to + size] = BITS_OF_NAN
        self.under_way.append((to, ctypes.string_at(source, size)))

    def arrive(self) -> None:
        for to, what in self.under_way:
            self.bytes[to : to + len(what)] = np.frombuffer(what, np.uint8)
        self.under_way = []


def _numbers(t: Any) -> np.ndarray:
    return np.asarray(t.handle.data if hasattr(t, "handle") else t).reshape(-1)


def _tensor(data: np.ndarray, dtype: tl.dtype) -> Any:
    from triton.runtime.interpreter import TensorHandle

    data = np.ascontiguousarray(data)
    kind = tl.block_type(dtype, [data.size]) if data.size > 1 else dtype
    return tl.core.tensor(TensorHandle(data, dtype), kind)


def fma_if8(a: Any, word: Any, bit: Any, x: Any, w: Any, PTX: Any) -> Any:
    """Eight sums, rounded twice as the interpreter's ``tl.fma``."""
    return _sums(a, word, bit, x, w, 8)


def _sums(a: Any, word: Any, bit: Any, x: Any, w: Any, count: int) -> Any:
    words, factor = _numbers(word), _numbers(x)
    result = []
    for i in range(count):
        before = _numbers(a[i])
        after = factor * _numbers(w[i]) + before
        result.append(
            _tensor(np.where(words & np.uint32(int(bit) << i), after, before), tl.float32)
        )
    return tuple(result)


def fma_if(a: Any, word: Any, bit: Any, x: Any, w: Any, COUNT: Any) -> Any:
    """The same of up to seven."""
    return _sums(a, word, bit, x, w, int(COUNT))


def dot_words(a: Any, words: Any, bit: Any, x: Any, w: Any) -> Any:
    """One sum of four products, rounded twice each."""
    total = _numbers(a)
    for i in range(4):
        added = _numbers(x[i]) * _numbers(w[i]) + total
        total = np.where(_numbers(words[i]) & _numbers(bit).astype(np.uint32), added, total)
    return _tensor(total, tl.float32)


def in_order(case: Case) -> torch.Tensor:
    """The forward in NumPy, summed in the kernel's order: ranges of tiles of 16 inputs."""
    K = case.shape.K
    x, w, mask = (t.float().numpy() for t in (case.x, case.w, case.mask))
    tiles = -(-K // 16)
    ranges = max(1, min(16, -(-K // 32)))
    total = np.zeros((*x.shape[:3], len(w)), np.float32)
    k = 0
    for number in range(ranges):
        acc = np.zeros_like(total)
        for _ in range(16 * (tiles // ranges + (number < tiles % ranges))):
            if k < K:
                added = x[..., k, None] * w[:, k] + acc
                acc = np.where(mask[:, :, None, :, k] != 0, added, acc)
            k += 1
        total += acc
    b = 0 if case.b is None else case.b.float().numpy()
    return torch.from_numpy(total * np.float32(case.scale) + b).to(case.x.dtype)


def install(monkeypatch: Any, x: torch.Tensor, w: torch.Tensor) -> Memory:
    """Replace the PTX of the staged forward of ``x`` and ``w``; returns its shared memory."""
    from bayes_dc.ops import _launch
    from bayes_dc.ops.linear import (
        triton_few_fwd,
        triton_fwd,
        triton_parts_fwd,
        triton_staged_fwd,
        triton_sums,
    )
    from bayes_dc.ops.linear.triton_fma import load_id

    spans = [(t.data_ptr(), t.untyped_storage().nbytes()) for t in (x, w)]
    memory = Memory([(a, a + size) for a, size in spans])

    def at(address: Any, size: int) -> np.ndarray:
        """Indices of ``size`` bytes at each address."""
        first = _numbers(address).astype(np.int64)
        assert (first >= 0).all()
        assert (first + size <= memory.bytes.size).all(), "out of memory"
        assert (first % min(size, 16) == 0).all(), "misaligned"
        return first[:, None] + np.arange(size)

    def read(address: Any, kind: type, count: int) -> np.ndarray:
        found = memory.bytes[at(address, count * np.dtype(kind).itemsize)]
        return np.ascontiguousarray(found).view(kind)

    def write(address: Any, values: np.ndarray, where: Any = None) -> None:
        data = np.ascontiguousarray(values).view(np.uint8)
        places = at(address, data.shape[1])
        places, data = np.broadcast_arrays(places, data)
        on = np.ones(len(places), bool) if where is None else np.broadcast_to(where, len(places))
        memory.bytes[places[on]] = data[on]

    def shared_memory(BYTES: Any) -> Any:
        memory.reserve(int(getattr(BYTES, "value", BYTES)))
        return _tensor(np.zeros(1, np.int32), tl.int32)

    def store_pointer(address: Any, p: Any) -> None:
        write(address, _numbers(p).astype(np.uint64)[:, None])

    def copy_quad(address: Any, entry: Any, offset: Any, SIZE: Any) -> None:
        size = 4 * int(getattr(SIZE, "value", SIZE))
        sources = read(entry, np.uint64, 1)[:, 0].astype(np.int64) + _numbers(offset)
        for to, source in zip(
            _numbers(address), np.broadcast_to(sources, _numbers(address).shape), strict=True
        ):
            memory.copy(int(to), int(source), size)

    def copy_from(address: Any, source: Any, SIZE: Any) -> None:
        size = 4 * int(getattr(SIZE, "value", SIZE))
        sources = _numbers(source).astype(np.int64)
        for to, one in zip(_numbers(address), sources, strict=True):
            memory.copy(int(to), int(one), size)

    def read_pointer(address: Any, like: Any) -> Any:
        found = read(address, np.uint64, 1)[:, 0]
        return _tensor(found, like.dtype.scalar)

    def pointer_of(p: Any, lane: Any) -> Any:
        every = _numbers(p)
        warp = np.arange(every.size) // 32 * 32
        return _tensor(every[warp + _numbers(lane)], p.dtype.scalar)

    def wait_copies(address: Any, WARPS: Any) -> Any:
        memory.arrive()
        return address

    def read_quad(address: Any, ELEMENT: Any) -> Any:
        element = getattr(ELEMENT, "value", ELEMENT)
        if element == tl.float32:
            found = read(address, np.float32, 4)
        elif element == tl.float16:
            found = read(address, np.float16, 4).astype(np.float32)
        else:
            raise AssertionError(element)
        return tuple(_tensor(found[:, i], tl.float32) for i in range(4))

    def write_quad(address: Any, *values: Any) -> None:
        write(address, np.stack([_numbers(v) for v in values], 1).astype(np.float32))

    def write_words(address: Any, *words: Any) -> None:
        write(address, np.stack([_numbers(v) for v in words], 1).astype(np.uint32))

    def take_words(address: Any) -> Any:
        found = read(address, np.uint32, 4)
        return tuple(_tensor(found[:, i], tl.uint32) for i in range(4))

    def write_kept(address: Any, value: Any) -> None:
        write(address, _numbers(value).astype(np.float32)[:, None])

    def write_eight(address: Any, values: Any, STEP: Any, on: Any) -> None:
        step = int(getattr(STEP, "value", STEP))
        for i, value in enumerate(values):
            where = _numbers(on) != 0
            write(address + i * step, _numbers(value).astype(np.float32)[:, None], where)

    def read_kept(address: Any) -> Any:
        return _tensor(read(address, np.float32, 1)[:, 0], tl.float32)

    def add_eight(address: Any, values: Any, STEP: Any) -> None:
        step = int(getattr(STEP, "value", STEP))
        kept = [read_kept(address + i * step) for i in range(8)]
        write_eight(address, [a + b for a, b in zip(kept, values, strict=True)], STEP, np.ones(1))

    def mask_words(k0: Any, k1: Any, k4: Any, n32: Any, sample: Any, step: Any,
              KEEP: Any, BITS: Any, nil: Any, PTX: Any) -> Any:  # fmt: skip
        """Of the reference."""
        assert int(BITS) == 1, "one digit"
        coordinates = tuple(_numbers(t) for t in (k4, n32, sample, step))
        found = reference.philox4x32(KEY, coordinates)  # type: ignore[arg-type]
        return tuple(_tensor(w.astype(np.uint32), tl.uint32) for w in found)

    words_of = triton_sums.words_of

    def checked_words(*args: Any) -> Any:
        """No bit beyond the end: in the model a warp walks on where it would have stopped."""
        return words_of(*args[:-1], False)

    functions = {
        "shared_memory": shared_memory,
        "store_pointer": store_pointer,
        "copy_quad": copy_quad,
        "copy_from": copy_from,
        "read_pointer": read_pointer,
        "pointer_of": pointer_of,
        "commit_copies": lambda token: None,
        "wait_copies": wait_copies,
        "barrier": lambda address, WARPS: address,
        "read_quad": read_quad,
        "take_quad": read_quad,
        "write_quad": write_quad,
        "write_words": write_words,
        "take_words": take_words,
        "write_kept": write_kept,
        "write_eight": write_eight,
        "read_kept": read_kept,
        "add_eight": add_eight,
        "warp_number": lambda: _tensor(np.zeros(1, np.int32), tl.int32),
        "fma_if8": fma_if8,
        "fma_if": fma_if,
        "dot_words": dot_words,
        "mask_words": mask_words,
        "words_of": checked_words,
    }
    for module in (triton_few_fwd, triton_parts_fwd, triton_staged_fwd, triton_sums):
        for name, function in functions.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(triton_fwd, "load_id", lambda p, PTX, PURE: load_id(p, False))
    monkeypatch.setattr(_launch, "use_ptx", lambda t: True)
    return memory
