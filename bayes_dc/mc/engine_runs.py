"""The runs of an engine: calls bound for a number of inputs, and what they read beside these."""

import os
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from bayes_dc.mc.engine_checks import check_sample_ids
from bayes_dc.mc.engine_graphs import Capture, Captured, run
from bayes_dc.mc.engine_guard import ModelChanged
from bayes_dc.mc.engine_masks import key_words
from bayes_dc.mc.engine_statistics import RunStatistics
from bayes_dc.mc.plan import Plan
from bayes_dc.mc.plan_types import Call
from bayes_dc.mc.workspace import Workspace
from bayes_dc.ops import _device

_ROUNDED = (
    "float32 convolutions could be rounded to TensorFloat-32 when the engine was planned, and may "
    "not now: torch.backends.cudnn.conv.fp32_precision is {got!r}. Step {step!r} ({op}) has no "
    "memory for one of full precision. Make a new MonteCarloEngine, or allow TensorFloat-32 again "
    "(torch.backends.cudnn.allow_tf32 = True)."
)

MOST_RUNS = 16
"""Numbers of inputs whose calls, and graphs, are kept; the least recently used are made again."""


@dataclass
class _Run:
    """The calls of a prediction at one number of inputs, and their graph once it is captured."""

    input: Tensor
    calls: list[Call]
    captured: Captured | None = None


class Runner:
    """Runs a plan for any number of inputs up to its capacity.

    Args:
        plan: The plan.
        statistics: Where its outputs go.
        device: Where it runs.
        capture: Captures graphs; None makes the calls from Python.

    Attributes:
        workspace: The memory.
        seed: Of the masks of the last run; None before the first.
    """

    def __init__(
        self,
        plan: Plan,
        statistics: RunStatistics,
        device: torch.device,
        capture: Capture | None,
    ) -> None:
        self.workspace = Workspace(plan, device)
        self.seed: int | None = None
        self._plan, self._statistics = plan, statistics
        self._device, self._capture = device, capture
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()
        self._default_ids = True
        self._rounding = next((step for step in plan.steps if step.rounds), None)
        self._process = os.getpid()
        self._gpu = device.index if device.type == "cuda" else None
        self._stream: torch.cuda.Stream | None = None
        self._handle: int | None = None  # of that stream

    def run(self, x: Tensor, seed: int, sample_ids: Tensor | None, *, keep_samples: bool) -> None:
        """Run; the results are then in the statistics.

        Args:
            x: Inputs ``[b, …]``, 1 ≤ b ≤ capacity, of the planned sizes, dtype and device.
            seed: Unsigned 64-bit seed of the masks.
            sample_ids: int64 ``[b]``, or None for 0 … b − 1.
            keep_samples: Whether the probabilities of all passes are kept.

        Raises:
            ModelChanged: If products must be more precise than was planned for.
        """
        message = self.difference()
        if message is not None:
            raise ModelChanged(message)
        if self._process != os.getpid():
            self._start_afresh()
        self._on_this_stream()
        self.set_seed(seed)
        self._set_ids(sample_ids, len(x))
        prepared = self._prepared(len(x), keep_samples)
        # Copied before every run, which may use the memory of the input once it has been read.
        source = x.detach() if x.requires_grad else x
        if prepared.captured is None:
            copy: Call = (prepared.input.copy_, (source,), {})
            with self._here(), torch.no_grad(), self._numbered():
                if self._capture is None:
                    run([copy, *prepared.calls])
                    return
                prepared.captured = self._capture(copy, prepared.calls)
        prepared.input.copy_(source)
        prepared.captured.graph.replay()

    def difference(self) -> str | None:
        """Whether products must be more precise than was planned for.

        Returns:
            In words; None if not.
        """
        step = self._rounding
        if step is None or _device.convolution_tensor_float32():
            return None
        got = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        return _ROUNDED.format(got=got, step=step.name, op=step.op)

    def set_seed(self, seed: int) -> None:
        """Write the key words of all sites, if the seed is another than the last one.

        Args:
            seed: Unsigned 64-bit seed.
        """
        if type(seed) is int and seed == self.seed:
            return
        number, words = key_words(seed, self._plan.sites)
        # From pageable memory: the driver has its own copy when the call returns.
        self.workspace.keys.copy_(torch.tensor(words, dtype=torch.int64), non_blocking=True)
        self.seed = number

    def passes_per_chunk(self, b: int) -> int:
        """Passes of a launch; the last chunk may have fewer.

        Args:
            b: Inputs, at least 1.

        Returns:
            As few chunks as the plan has room for, of about equal size.
        """
        T = self._plan.T
        chunks = -(-T // self._plan.passes_for(b))
        return -(-T // chunks)

    def pool_bytes(self) -> int:
        """Memory that libraries took for graphs.

        Returns:
            Bytes; 0 if strict.
        """
        return sum(r.captured.pool_bytes for r in self._runs.values() if r.captured)

    def _prepared(self, b: int, keep_samples: bool) -> _Run:
        """The calls for b inputs, made at their first use."""
        switches: Hashable = None
        if self._device.type == "cuda":
            switches = _device.tensor_float32(), _device.convolution_tensor_float32()
        key = b, keep_samples, switches
        found = self._runs.get(key)
        if found is None:
            with self._here(), torch.no_grad():
                found = self._runs[key] = self._bind(b, keep_samples)
            if len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
        else:
            self._runs.move_to_end(key)
        return found

    def _bind(self, b: int, keep_samples: bool) -> _Run:
        """All calls of a prediction, in order."""
        per_chunk = self.passes_per_chunk(b)
        workspace, statistics, T = self.workspace, self._statistics, self._plan.T
        calls: list[Call] = []
        for first in range(0, T, per_chunk):
            passes = min(per_chunk, T - first)
            program = workspace.bind(b, passes)
            if first == 0:
                calls += program.once
                x = program.input
            if passes < T:
                calls.append(workspace.set_passes(first, passes))
            calls += program.passes
            calls += statistics.add(program.output, first, keep_samples=keep_samples)
        if per_chunk < T:
            calls.append(workspace.set_passes(0, per_chunk))
        calls += statistics.end(b)
        workspace.forget()
        return _Run(x, calls)

    @contextmanager
    def _numbered(self) -> Iterator[None]:
        """Runs of one chunk find the passes 0, 1, …, also after a run that broke off."""
        try:
            yield
        except BaseException:
            self.workspace.pass_ids.copy_(self.workspace.all_passes)
            raise

    def _start_afresh(self) -> None:
        """In a forked child: another thread of the parent may have been within a run."""
        self._process, self.seed, self._default_ids = os.getpid(), None, False
        self.workspace.pass_ids.copy_(self.workspace.all_passes)
        self.workspace.refresh(all_of_them=True)

    def _here(self) -> AbstractContextManager[object]:
        is_cuda = self._device.type == "cuda"
        return torch.cuda.device(self._device) if is_cuda else nullcontext()

    def _on_this_stream(self) -> None:
        """A call on another stream than the last one waits for it: they share the arena."""
        if self._gpu is None:
            return
        handle = torch._C._cuda_getCurrentRawStream(self._gpu)  # a tenth of current_stream()
        if handle == self._handle:
            return
        current = torch.cuda.current_stream(self._device)
        if self._stream is not None:
            current.wait_stream(self._stream)
        self._stream, self._handle = current, handle

    def _set_ids(self, sample_ids: Tensor | None, b: int) -> None:
        """Write the ids, unless they are 0, 1, … and already there."""
        if sample_ids is None:
            if not self._default_ids:
                self.workspace.number_samples()
                self._default_ids = True
            return
        check_sample_ids(sample_ids, b)
        self._default_ids = False
        self.workspace.sample_ids[:b].copy_(sample_ids)
