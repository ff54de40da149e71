"""Choosing the launch configuration of a shape: every candidate checked, then timed.

A candidate that does not compile for the GPU or does not fit it is skipped and counted. One whose
result on integers differs from the default's in any bit is a bug of the kernel and ends the run.
"""

import contextlib
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayes_dc.ops._tuned import ignored
from bayes_dc.rng import keep_digits, layer_key

TIE = 1.01
"""Configurations within this factor of the fastest are equally good; the simplest is kept."""

_QUICK_MS, _FINAL_MS, _FINALISTS, _ROUNDS = 8.0, 15.0, 3, 3

_NO_DEFAULT = (
    "{case}: the default configuration {config} does not run: {cause}. "
    "Leave the shape out if it is too large for this GPU."
)
_WRONG = (
    "{case}: {config} {what} on integers, at {count} of {total} places. "
    "That is a bug of the kernel, so the operator is not tuned; please report it."
)


class TuneError(Exception):
    """A shape cannot be measured, or what was measured cannot be trusted."""


class Case(NamedTuple):
    """One shape of one operator.

    Attributes:
        op: Operator, a key of ``format.OPS``.
        dtype: Type of the inputs and of the output.
        sizes: Sizes of the shape, by name.
    """

    op: str
    dtype: torch.dtype
    sizes: dict[str, int]

    def __str__(self) -> str:
        """Operator, type and sizes in one line."""
        shape = "×".join(str(n) for n in self.sizes.values())
        return f"{self.op} {str(self.dtype).removeprefix('torch.')} {shape}"


class Kernel(NamedTuple):
    """What launches an operator.

    Attributes:
        launch: Writes into a given output, as the launchers of ``ops.linear``.
        config: Makes a configuration from numbers by name.
        default: ``default(*sizes, dtype, device)``, the configuration where none was measured.
        scratch: ``scratch(case, w)``, what else the launcher reads, by name.
        arrange: Lays rows out as the operator does before it calls the launcher.
        room: ``room(case, w)``, what it writes beside its output before it reads it, by name.
    """

    launch: Callable[..., None]
    config: Callable[..., Any]
    default: Callable[..., Any]
    scratch: Callable[[Case, Tensor], dict[str, Tensor]] = lambda case, w: {}
    arrange: Callable[[Tensor], Tensor] = lambda rows: rows
    room: Callable[[Case, Tensor], dict[str, Tensor]] = lambda case, w: {}


class Bench(NamedTuple):
    """Where and how to time.

    Attributes:
        device: A GPU.
        milliseconds: ``milliseconds(call, repeat_ms)``, the median of calls repeated for that long.
        refusals: Exceptions that say that a configuration does not fit.
    """

    device: torch.device
    milliseconds: Callable[[Callable[[], None], float], float]
    refusals: tuple[type[Exception], ...]


class Result(NamedTuple):
    """The choice for one shape.

    Attributes:
        case: The shape.
        best: The configuration chosen.
        best_ms: Its time.
        default_ms: Time of the default.
        tried: Configurations timed.
        skipped: How many were refused, by the kind of error.
    """

    case: Case
    best: Any
    best_ms: float
    default_ms: float
    tried: int
    skipped: Counter[str]


def compile_ahead(
    cases: Sequence[Case],
    load: Callable[[str], Kernel],
    configs: Callable[[torch.dtype], Sequence[Any]],
    bench: Bench,
    pool: Executor,
) -> None:
    """Compile the default and every candidate in parallel, into Triton's cache on disk.

    Processes, because a third of Triton's compiler holds the interpreter's lock. Shapes share most
    kernels, so that one shape of each type is launched after the other.

    Args:
        cases: Shapes of one operator.
        load: Returns the operator's kernel by its name; called in the workers.
        configs: Returns the candidates for a type.
        bench: Where.
        pool: Workers.
    """
    by_type: dict[torch.dtype, list[Case]] = {}
    for case in cases:
        by_type.setdefault(case.dtype, []).append(case)
    for wave in itertools.zip_longest(*by_type.values()):
        chosen = [case for case in wave if case is not None]
        jobs = [
            pool.submit(compile_one, load, case, config, bench.device, bench.refusals)
            for case in chosen
            for config in dict.fromkeys([
                _default(load(case.op), case, bench),
                *configs(case.dtype),
            ])
        ]
        for job in jobs:
            job.result()


def compile_one(
    load: Callable[[str], Kernel],
    case: Case,
    config: Any,
    device: torch.device,
    refusals: tuple[type[Exception], ...],
) -> None:
    """Launch a candidate once, on whatever its inputs hold; what does not fit shows in ``measure``.

    Args:
        load: Returns the operator's kernel by its name.
        case: The shape.
        config: The candidate.
        device: Where.
        refusals: Exceptions that say that a configuration does not fit.
    """
    with contextlib.suppress(*refusals):
        prepare(case, load(case.op), device, "any")[0](config)


def measure(case: Case, kernel: Kernel, configs: Sequence[Any], bench: Bench) -> Result:
    """Choose the configuration of a shape.

    Args:
        case: The shape.
        kernel: Its operator.
        configs: Candidates, simple ones first.
        bench: Where and how to time.

    Returns:
        The choice: the fastest of the default and the candidates; see ``choose``.

    Raises:
        TuneError: If the default does not run, or a result on integers is wrong.
    """
    default = _default(kernel, case, bench)
    valid, skipped = _check(case, kernel, default, configs, bench)
    run, _ = prepare(case, kernel, bench.device, "normal")

    def time(config: Any, repeat_ms: float) -> float:
        return bench.milliseconds(lambda: run(config), repeat_ms)

    quick = {config: time(config, _QUICK_MS) for config in valid}
    finalists = [default, *sorted(set(valid) - {default}, key=lambda c: quick[c])[:_FINALISTS]]
    rounds = [{config: time(config, _FINAL_MS) for config in finalists} for _ in range(_ROUNDS)]
    times = {config: statistics.median(each[config] for each in rounds) for config in finalists}
    best = choose(times, default, configs)
    return Result(case, best, times[best], times[default], len(valid), skipped)


def choose(times: dict[Any, float], default: Any, order: Sequence[Any]) -> Any:
    """Return the fastest configuration; of those within 1 % of it the default, else the simplest.

    Args:
        times: Milliseconds, by configuration.
        default: The default configuration.
        order: Every other configuration, simple ones first.

    Returns:
        A key of ``times``.
    """
    good = [config for config in times if times[config] <= TIE * min(times.values())]
    return default if default in good else min(good, key=list(order).index)


def prepare(
    case: Case, kernel: Kernel, device: torch.device, values: str
) -> tuple[Callable[[Any], None], list[Tensor]]:
    """Return a function that launches a shape, and the tensors it writes into.

    Args:
        case: The shape.
        kernel: Its operator.
        device: Where the tensors lie.
        values: Inputs: "integers" −2 … 2, whose sums do not round; "normal"; or "any".

    Returns:
        The function, which takes a configuration, and the output with the ``room`` after it.
    """

    def draw(*size: int) -> Tensor:
        empty = torch.empty(size, dtype=case.dtype, device=device)
        if values == "integers":
            return empty.random_(0, 5).sub_(2)
        return empty.normal_() if values == "normal" else empty

    sizes = case.sizes
    G, R, N, K = sizes.get("G", sizes.get("M", 0)), sizes.get("R", 1), sizes["N"], sizes["K"]
    key = torch.tensor(layer_key(0, 0), device=device)
    at = (key, torch.arange(G, device=device), torch.zeros(1, dtype=torch.int64, device=device))
    digits = keep_digits(0.5)
    options: dict[str, Any] = {"keep": digits.keep, "bits": digits.bits, "scale": 2.0}
    w, x, gy = draw(N, K), kernel.arrange(draw(1, G, R, K)), kernel.arrange(draw(1, G, R, N))
    inputs: tuple[Tensor, ...] = (x, w, draw(N))
    out = x.new_empty((1, G, R, N))
    if case.op.endswith("_dx"):
        inputs, out = (gy, w), x.new_empty((1, G, R, K))
    elif case.op.endswith("_dw"):
        inputs, out = (gy, x), torch.empty_like(w)
    room = kernel.room(case, w)
    options |= kernel.scratch(case, w) | room
    written = [out, *room.values()]
    return lambda config: kernel.launch(*inputs, *at, out, **options, config=config), written


def _default(kernel: Kernel, case: Case, bench: Bench) -> Any:
    """The default configuration, whatever was measured before."""
    with ignored():
        return kernel.default(*case.sizes.values(), case.dtype, bench.device)


def _check(
    case: Case, kernel: Kernel, default: Any, configs: Sequence[Any], bench: Bench
) -> tuple[list[Any], Counter[str]]:
    """The configurations that run, all with the default's bits, and how many do not, by cause."""
    launch, written = prepare(case, kernel, bench.device, "integers")

    def run(config: Any) -> None:
        for t in written:  # what one configuration leaves out must not be another's result
            t.fill_(float("nan"))
        launch(config)

    out = written[0]
    if error := _refusal(run, default, bench):
        cause = f"{type(error).__name__}: {error}"
        raise TuneError(_NO_DEFAULT.format(case=case, config=default, cause=cause)) from error
    want = out.clone()
    _refuse(want.isnan(), case, default, "leaves NaN, or reads what it has not written,")
    valid, skipped = [default], Counter[str]()
    for config in (config for config in configs if config != default):
        if error := _refusal(run, config, bench):
            skipped[type(error).__name__] += 1
            continue
        _refuse(out != want, case, config, "gives other bits than the default")
        valid.append(config)
    return valid, skipped


def _refuse(wrong: Tensor, case: Case, config: Any, what: str) -> None:
    """End the run if a place is wrong."""
    if count := int(wrong.sum()):
        parts = {"what": what, "count": count, "total": wrong.numel()}
        raise TuneError(_WRONG.format(case=case, config=config, **parts))


def _refusal(run: Callable[[Any], None], config: Any, bench: Bench) -> Exception | None:
    """Launch; the error if the configuration does not fit."""
    try:
        run(config)
    except bench.refusals as error:
        return error
    return None
