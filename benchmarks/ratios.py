"""What the rows say about each other: sentences with numbers of one run."""

from collections.abc import Iterator

from benchmarks import baselines, conv, engine, gaussian, predict, row_masks, shared_masks, training
from benchmarks.cases import ALL, DENSE, OURS
from benchmarks.records import Row

OPS = ("fwd", "dx", "dw", ALL)
Times = dict[tuple[tuple[object, ...], str, str], float]


def ratios(rows: list[Row]) -> list[str]:
    """One line for each shape and what ours is compared with."""
    # At p = 0.5 where there are several; the dense product has p = 0.
    chosen = [row for row in rows if row.p in (0.0, 0.5) or row.group == "train"]
    times: Times = {(r.shape, r.op, r.implementation): r.ms_p50 for r in chosen}
    shapes = {row.shape: row for row in chosen}  # one row of each shape, in order
    lines: list[str] = []
    for row in shapes.values():
        lines += _COMPARISONS[row.group](row, times)
    return lines + list(_memory(rows))


def _times_as_fast(
    row: Row, times: Times, others: tuple[str, ...], ours: str = OURS
) -> Iterator[str]:
    """How many times as fast as each of ``others``."""
    for other in others:
        found = [
            f"{op} {slow / fast:.3g}"
            for op in (*OPS, "predict")
            if (slow := times.get((row.shape, op, other)))
            and (fast := times.get((row.shape, op, ours)))
        ]
        if found:
            yield f"{_shape(row)}: {ours}, multiples of the speed of '{other}': {', '.join(found)}"


def _share(row: Row, times: Times, of: str, ours: str, word: str) -> Iterator[str]:
    """The share of the rate of ``of`` that ``ours`` reaches."""
    found = [
        f"{op} {fast / slow:.3g}"
        for op in (*OPS, "predict")
        if (fast := times.get((row.shape, op, of))) and (slow := times.get((row.shape, op, ours)))
    ]
    if found:
        yield f"{_shape(row)}: {ours}, share of the speed of {word}: {', '.join(found)}"


def _rows(row: Row, times: Times) -> Iterator[str]:
    others = (row_masks.PUBLISHED, row_masks.BROADCAST, row_masks.BROADCAST_COMPILED)
    yield from _times_as_fast(row, times, others)
    yield from _share(row, times, DENSE, OURS, "the product without masks")


def _small(row: Row, times: Times) -> Iterator[str]:
    ours, dense = (times.get((row.shape, "fwd", name)) for name in (OURS, DENSE))
    if ours and dense:
        where = "in a graph" if row.timing == "graph" else "on the CPU"
        yield (
            f"{_shape(row)}: {1e3 * ours:.3g} µs {where}, {ours / dense:.3g} times F.linear "
            f"({1e3 * dense:.3g} µs)"
        )


def _shared(row: Row, times: Times) -> Iterator[str]:
    others = (
        shared_masks.EXPANDED,
        shared_masks.EXPANDED_COMPILED,
        shared_masks.BY_KERNEL,
        shared_masks.LOOP,
        shared_masks.LOOP_COMPILED,
    )
    yield from _times_as_fast(row, times, others)
    for name in (OURS, shared_masks.MADE_BEFORE):
        yield from _share(row, times, DENSE, name, "the product without masks")


def _gaussian(row: Row, times: Times) -> Iterator[str]:
    yield from _times_as_fast(row, times, (gaussian.EAGER, gaussian.COMPILED))
    for op in OPS:
        ours, dense = (times.get((row.shape, op, name)) for name in (OURS, DENSE))
        if ours and dense:
            yield f"{_shape(row)}: {op} takes {ours / dense:.3g} times one product without noise"


def _predict(row: Row, times: Times) -> Iterator[str]:
    found = [name for (shape, _, name) in times if shape == row.shape]
    for name in found:
        if name.startswith(OURS):
            yield from _times_as_fast(row, times, (predict.LOOP, predict.LOOP_COMPILED), name)
            free = predict.FREE_COMPILED if predict.FREE_COMPILED in found else predict.FREE
            slow, fast = (times.get((row.shape, "predict", n)) for n in (name, free))
            if slow and fast:
                ratio = f"{slow / fast:.3g} times '{free}' ({fast:.3g} ms)"
                yield f"{_shape(row)}: {name} takes {ratio}"


def _conv(row: Row, times: Times) -> Iterator[str]:
    yield from _times_as_fast(row, times, (conv.GROUPED, conv.UNFOLDED))
    yield from _share(row, times, DENSE, OURS, "the convolution without masks")


def _train(row: Row, times: Times) -> Iterator[str]:
    plain = times.get((row.shape, "step", training.PLAIN))
    for name in (training.CONVOLUTIONS, training.RECIPE):
        ours = times.get((row.shape, "step", name))
        if ours and plain:
            yield (
                f"{_shape(row)}: {name}, a step takes {ours / plain:.3g} times the plain one "
                f"({plain:.3g} ms)"
            )


def _engine(row: Row, times: Times) -> Iterator[str]:
    found = {name: ms for (shape, _, name), ms in times.items() if shape == row.shape}
    free = engine.FREE_COMPILED if engine.FREE_COMPILED in found else engine.FREE
    for name, ms in found.items():
        if name.startswith(OURS):
            parts = [f"{ms:.4g} ms"]
            if free in found:
                parts.append(f"{ms / found[free]:.3g} times '{free}'")
            if engine.LOOP in found:
                parts.append(f"{found[engine.LOOP] / ms:.3g} times as fast as '{engine.LOOP}'")
            yield f"{_shape(row)}: {name} takes {', '.join(parts)}"


def _memory(rows: list[Row]) -> Iterator[str]:
    """Peaks beside the size of what must be there, and beside the formula of the copies of W."""
    free = {r.shape: r.peak_mib for r in rows if r.implementation == engine.FREE}
    for row in rows:
        if row.group == "engine":
            if row.implementation.startswith(OURS) and free.get(row.shape):
                share = row.peak_mib / free[row.shape]
                yield (
                    f"{_shape(row)}: {row.implementation} takes {row.peak_mib:.4g} MiB, "
                    f"{share:.3g} times '{engine.FREE}'"
                )
            continue
        device, backward = "cpu" if row.timing == "clock" else "cuda", row.op == ALL
        needed = baselines.broadcast_bytes(row.M, row.N, row.K, device, backward=backward)
        copies = needed / 2**30
        if row.group == "memory":
            results = 4 * (row.M * row.N + row.M * row.K + row.N * row.K) / 2**20
            yield (
                f"{_shape(row)}: {row.op} takes {row.peak_mib:.0f} MiB beyond the inputs; y, dx "
                f"and dw are {results:.0f} MiB; copies of W would take {copies:.4g} GiB"
            )
        elif row.implementation == row_masks.BROADCAST and row.op in ("fwd", ALL):
            yield (
                f"{_shape(row)}: {row.op} of '{row.implementation}' takes "
                f"{row.peak_mib / 1024:.4g} GiB; by the formula {copies:.4g} GiB"
            )


def _nothing(row: Row, times: Times) -> Iterator[str]:
    yield from ()


_COMPARISONS = {
    "rows": _rows,
    "small": _small,
    "shared": _shared,
    "gaussian": _gaussian,
    "predict": _predict,
    "memory": _nothing,
    "conv": _conv,
    "engine": _engine,
    "train": _train,
}


def _shape(row: Row) -> str:
    if row.group == "predict":
        return f"predict, {row.M} passes × inputs, {row.dtype}"
    if row.group == "engine":
        return f"engine {row.op}, {row.M} passes × inputs, {row.dtype}"
    if row.group == "train":
        return f"train, {row.M} images, {row.dtype}"
    shared = f" R={row.R}" if row.R > 1 else ""
    return f"{row.group} {row.M}×{row.N}×{row.K}{shared} {row.dtype}"
