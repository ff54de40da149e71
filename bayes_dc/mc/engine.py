"""``MonteCarloEngine``: T passes of a model in memory that was allocated beforehand."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bayes_dc.mc.arguments import check_arguments, check_count
from bayes_dc.mc.engine_checks import check_example, check_input, check_no_autocast
from bayes_dc.mc.engine_graphs import Capture
from bayes_dc.mc.engine_guard import Guard
from bayes_dc.mc.engine_masks import active_dropout, silent_dropout
from bayes_dc.mc.engine_options import FixedOptions
from bayes_dc.mc.engine_results import Results, handed_out
from bayes_dc.mc.engine_runs import Runner
from bayes_dc.mc.engine_statistics import RunStatistics
from bayes_dc.mc.guards import lock_of
from bayes_dc.mc.plan import Plan, build_plan
from bayes_dc.mc.prediction import Prediction
from bayes_dc.types import Link

EngineMode = Literal["strict", "workspace", "eager"]
"""What may allocate in a run: ``"strict"`` nothing, ``"workspace"`` libraries for themselves
(``engine.plan`` says in which steps); ``"eager"``: there is no plan, the model runs as it is.
"""

_MODE = "mode must be one of {allowed}; got {got!r}."
_AS_IT_IS = nullcontext()
_NO_PLAN = "mode='eager' has no plan. Make the engine with mode='strict' or 'workspace'."


class MonteCarloEngine(FixedOptions):
    """Predicts with T passes of a model, without allocating anything while it runs.

    The model is traced once, and every tensor of its forward gets a place in one arena, for
    ``capacity`` inputs and as many passes at a time as keep within ``rows`` and ``memory``. A call
    runs in that memory: the part before the first mask once, then all passes, a launch for each
    layer and chunk of passes, and the statistics; on a GPU as one CUDA graph for each number of
    inputs, captured at its first use. Masks are those of ``predict_with_uncertainty``.

    Weights may be changed in place (by an optimizer, ``load_state_dict``); the next call sees them.
    Writes that torch does not count (through ``parameter.data``, by an optimizer with
    ``fused=True``, of BatchNorm's running statistics in training) need ``refresh()`` where the plan
    holds constants computed from weights (folded BatchNorm). Weights that are replaced, moved or
    converted, modules and hooks that are exchanged, options such as ``p`` that change are refused
    by name; what lies elsewhere (globals, methods, other objects) is frozen unseen. Nothing warns
    of infinite inputs or passes without variance; ``predict_with_uncertainty`` does.

    Args:
        model: Classifier as for ``predict_with_uncertainty``, on the device it is to run on.
        example: Inputs ``[B, …]`` with the shape and dtype of those to come, on that device; their
            values are not looked at.
        T: Number of passes, 1 … 2**32.
        capacity: Most inputs of a call; default B.
        mode: What may allocate in a run, see ``EngineMode``.
        cuda_graph: Whether a GPU replays graphs; False makes the same launches from Python.
        rows: Most rows (inputs times passes) of a forward; None: see ``build_plan``. One pass of
            ``capacity`` inputs always fits.
        memory: Most bytes of the arena; fewer passes run at a time where it would be larger.
        link: ``"softmax"`` for a model that returns logits, ``"identity"`` for probabilities.
        dropout: Whether dropout draws masks.

    Raises:
        PlanError: If a part of the model has no plan: it says which, where in the source, and what
            to do.
        TypeError: If ``example`` is no tensor.
        ValueError: If an argument is out of range, or nothing in the model draws masks.

    Attributes:
        T: Passes.
        capacity: Most inputs of a call.
        mode: As given.

    Determinism:
        Equal arguments give equal bits. Chunks change no mask and no order of sums over passes.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3))
        >>> _ = bayes_dc.convert(model, p=0.5)
        >>> engine = MonteCarloEngine(model, torch.ones(8, 4), T=10)
        >>> engine(torch.ones(2, 4)).mean.shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        T: int = 100,
        *,
        capacity: int | None = None,
        mode: EngineMode = "strict",
        cuda_graph: bool = True,
        rows: int | None = None,
        memory: int | None = None,
        link: Link = "softmax",
        dropout: bool = True,
    ) -> None:
        if mode not in get_args(EngineMode):
            raise ValueError(_MODE.format(allowed=get_args(EngineMode), got=mode))
        model = getattr(model, "_orig_mod", model)  # what torch.compile was given
        self.T = check_count("T", T)
        layers = check_arguments(model, example, link, dropout)
        check_example(example)
        self.capacity = check_count("capacity", len(example) if capacity is None else capacity)
        self.mode, self.link = mode, link
        self._device = example.device
        self._shape, self._dtype = example.shape[1:], example.dtype
        self._plan: Plan | None = None
        self._model, self._dropout = model, dropout  # kept: nobody else may know the model
        if mode == "eager":
            return
        with lock_of(model), torch.inference_mode(False), torch.no_grad():
            plan = build_plan(
                model,
                example,
                self.T,
                self.capacity,
                rows=None if rows is None else check_count("rows", rows),
                memory=None if memory is None else check_count("memory", memory),
                mode=mode,
                device=self._device,
                dropout=dropout,
            )
            classes = plan.output.shape[-1]
            assert isinstance(classes, int), plan.output.shape
            self._guard = Guard(model, [storage.tensor for storage in plan.constants])
            self.p_effective = {name: layer.p_effective for name, layer in layers.items()}
            self.active_dropout = active_dropout(model, plan.sites) if dropout else {}
            self.silent_dropout = silent_dropout(model, plan.sites) if dropout else []
            self._plan = plan
            self.statistics = RunStatistics(
                self.T, self.capacity, classes, link, self._device, plan.rows
            )
            self.results = Results(self.statistics)
            capture = None
            if cuda_graph and self._device.type == "cuda":
                capture = Capture(self._device, strict=mode == "strict")
            self._runner = Runner(plan, self.statistics, self._device, capture)
        self.description = f"engine, mode {mode!r}{', CUDA graph' if capture else ''}"

    @property
    def plan(self) -> Plan:
        """The plan; printed, it lists every buffer with its bytes, lifetime and offset."""
        if self._plan is None:
            raise ValueError(_NO_PLAN)
        return self._plan

    def __call__(
        self,
        x: Tensor,
        *,
        seed: int = 0,
        sample_ids: Tensor | None = None,
        return_samples: bool = False,
        out: Prediction | None = None,
    ) -> Prediction:
        """Predict.

        On a GPU the call returns before the device is done.

        Args:
            x: Inputs ``[b, …]``, 0 ≤ b ≤ capacity, of the example's other sizes, dtype and device.
            seed: Unsigned 64-bit seed of the masks.
            sample_ids: int64 ``[b]``, identity of each input; default 0 … b − 1.
            return_samples: Also return the probabilities of every pass; the first such call
                allocates room for those of ``capacity`` inputs.
            out: What an earlier call with b inputs returned: its tensors are written over, and the
                call allocates nothing for its results.

        Returns:
            ``Prediction``, in tensors that no later call touches (unless given as its ``out``);
            ``elapsed_seconds`` is the host's time.

        Raises:
            ValueError: If an argument does not fit; ``x`` longer than ``capacity`` is refused.
            TypeError: If ``x`` is no tensor.
            ModelChanged: If the model, or the precision of products, is not what was planned for.
        """
        started = time.perf_counter()
        if self._plan is None:
            return self._eager(x, seed, sample_ids, return_samples)
        apart = torch.inference_mode(False) if torch.is_inference_mode_enabled() else _AS_IT_IS
        with lock_of(self), apart:
            b = self.enqueue(x, seed, sample_ids, return_samples=return_samples)
            samples = self.statistics.samples(b) if return_samples else None
            summary, samples = self.results.copies(b, samples, out)
            number = self._runner.seed or 0
        return handed_out(
            summary,
            samples=samples,
            T=self.T,
            seed=number,
            p_effective=dict(self.p_effective),
            elapsed_seconds=time.perf_counter() - started,
            dropout=dict(self.active_dropout),
            engine=self.description,
        )

    def enqueue(
        self,
        x: Tensor,
        seed: int,
        sample_ids: Tensor | None,
        *,
        return_samples: bool,
        checked: bool = False,
    ) -> int:
        """Run; the results are then in ``statistics``, until the next run.

        Args:
            x: As for a call.
            seed: As for a call.
            sample_ids: As for a call.
            return_samples: As for a call.
            checked: Whether ``difference()`` has just been asked.

        Returns:
            Number of inputs b.
        """
        b = check_input(x, self._shape, self._dtype, self._device, self.capacity)
        check_no_autocast(self._device.type)
        if not checked:
            self._guard.check_memory()
        self._runner.workspace.refresh()
        if b:
            self._runner.run(x, seed, sample_ids, keep_samples=return_samples)
        else:
            self._runner.set_seed(seed)
        if not checked:
            self._guard.check_modules()  # while the device works; nothing is handed out yet
        return b

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """For one thread at a time, and tensors as outside of inference mode: for ``enqueue``.

        Yields:
            Nothing.
        """
        with lock_of(self), torch.inference_mode(False):
            yield

    def difference(self) -> str | None:
        """Whether the model, and the precision of products, are still what was planned for.

        Returns:
            What a call would refuse, or None; always None with ``mode="eager"``.
        """
        if self._plan is None:
            return None
        return self._guard.difference() or self._runner.difference()

    def refresh(self) -> None:
        """Compute all constants again that were computed from weights.

        Only needed after writes that torch does not count: through ``parameter.data``, or from
        outside of torch.
        """
        if self._plan is not None:
            with self.exclusively():
                self._runner.workspace.refresh(all_of_them=True)

    def memory_bytes(self) -> dict[str, int]:
        """Everything the engine holds, beside the weights.

        Returns:
            Bytes by what they are for; empty with ``mode="eager"``, which holds nothing.
        """
        if self._plan is None:
            return {}
        workspace = self._runner.workspace
        return {
            "arena": workspace.arena.nbytes,
            **workspace.state_bytes(),
            **self.statistics.state_bytes(),
            "memory of CUDA graphs": self._runner.pool_bytes(),
        }

    def _eager(
        self, x: Tensor, seed: int, sample_ids: Tensor | None, return_samples: bool
    ) -> Prediction:
        from bayes_dc.mc.predict import predict_with_uncertainty

        check_input(x, self._shape, self._dtype, self._device, self.capacity)
        return predict_with_uncertainty(
            self._model,
            x,
            self.T,
            seed=seed,
            sample_ids=sample_ids,
            return_samples=return_samples,
            link=self.link,
            dropout=self._dropout,
            engine="folded",
        )
