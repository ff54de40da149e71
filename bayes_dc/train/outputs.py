"""What a saved network says about inputs: T passes and the mean-weight network, batch by batch."""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from bayes_dc.mc import Prediction, join_predictions, predict_with_uncertainty
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.inputs import Inputs
from bayes_dc.train.ranks import ALONE, Ranks

Predict = Callable[..., Prediction]


@dataclass(frozen=True)
class Outputs:
    """What a network says about all inputs, on the CPU.

    Attributes:
        prediction: Of T Monte Carlo passes, with the samples if they were asked for; of a plain
            network the one pass there is.
        mean_network: Class probabilities of the mean-weight network ``[N, C]``, float64.
        energy: −logsumexp of the mean-weight network's logits ``[N]``, float64.
        nonfinite: Inputs that hold NaN or infinite values, by position.
        seconds: Wall time of the Monte Carlo passes; on a CPU without what only a first call does
            (kernels are compiled, or read from their cache).
    """

    prediction: Prediction
    mean_network: Tensor
    energy: Tensor
    nonfinite: tuple[int, ...]
    seconds: float


class _Batch(NamedTuple):
    """What the network says about a batch, on the CPU."""

    prediction: Prediction
    positions: Tensor
    mean: Tensor
    energy: Tensor
    nonfinite: list[int]
    seconds: float


def predict_inputs(
    model: nn.Module,
    inputs: Inputs,
    *,
    T: int,
    seed: int,
    batch_size: int,
    device: torch.device,
    keep_samples: bool = False,
    adjust: Callable[[Prediction], Prediction] | None = None,
    watch: Callable[[Prediction, Tensor], None] | None = None,
    watched: int | None = None,
    plain: bool = False,
    predict: Predict | None = None,
    ranks: Ranks = ALONE,
) -> Outputs:
    """Predict batch by batch; masks are keyed by the position of an input, not by its batch.

    Args:
        model: Network on ``device``.
        inputs: What is to be predicted.
        T: Monte Carlo passes.
        seed: Seed of the masks.
        batch_size: Inputs per call; changes speed and memory, not results.
        device: Where to compute.
        keep_samples: Also return the probabilities of every pass, ``[T, N, C]`` float64.
        adjust: Changes the prediction of a batch, which holds the samples, such as
            ``CalibrationState.temper``; the mean-weight network is left alone.
        watch: Is given every (adjusted) prediction, with its samples, and the positions of its
            inputs.
        watched: Only batches that hold one of the first ``watched`` inputs are given to ``watch``;
            the samples of the others need not be kept. None: all.
        plain: The network draws no masks: one pass stands for all, and is no draw.
        predict: What predicts a batch, with the arguments of ``predict_with_uncertainty``; None:
            that.
        ranks: Ranks that share the batches, each the same ones as alone.

    Returns:
        What the network says, on every rank.

    Raises:
        CheckpointError: If the network cannot be predicted with.
    """
    run = predict or predict_with_uncertainty
    limit = 0 if watch is None else len(inputs) if watched is None else watched
    model.eval()
    batches: list[_Batch] = []
    every = torch.arange(len(inputs)).split(batch_size)
    first, last = ranks.part(0, len(every))
    begun = time.perf_counter()
    for positions in _progress(every[first:last], len(inputs), shown=ranks.is_main):
        x = inputs.batch(positions, device)
        seen = int(positions[0]) < limit
        samples = keep_samples or adjust is not None or seen
        if not batches and predict is None and not plain and device.type == "cpu":
            _first_call(run, model, x[:1])
        broken = ~x.isfinite().flatten(1).all(dim=1).cpu()
        _wait(device)
        start = time.perf_counter()
        try:
            if plain:
                part = _one_pass(model, x)
            else:
                ids = positions.to(device)
                part = run(model, x, T, seed=seed, sample_ids=ids, return_samples=samples)
            part = part if adjust is None else adjust(part)
        except ValueError as error:
            raise CheckpointError(f"the checkpoint cannot be predicted with: {error}") from error
        _wait(device)
        seconds = time.perf_counter() - start
        part = join_predictions([part])  # on the CPU: device memory does not grow
        with torch.inference_mode():
            logits = model(x).double()
        mean, energy = logits.softmax(dim=1).cpu(), -logits.logsumexp(dim=1).cpu()
        if watch is not None and seen and ranks.size == 1:
            watch(part, positions)
            seen = False
        if not (keep_samples or seen):
            part = replace(part, samples=None)
        batches.append(_Batch(part, positions, mean, energy, positions[broken].tolist(), seconds))
    if ranks.size > 1:
        batches = [batch for found in ranks.gather(batches) for batch in found]
    for number, batch in enumerate(batches):
        if watch is not None and ranks.size > 1 and int(batch.positions[0]) < limit:
            watch(batch.prediction, batch.positions)
        if not keep_samples:
            batches[number] = batch._replace(prediction=replace(batch.prediction, samples=None))
    seconds = sum(batch.seconds for batch in batches)
    if ranks.size > 1:
        seconds = max(ranks.gather(time.perf_counter() - begun))  # they work at the same time
    return Outputs(
        join_predictions([batch.prediction for batch in batches]),
        torch.cat([batch.mean for batch in batches]),
        torch.cat([batch.energy for batch in batches]),
        tuple(position for batch in batches for position in batch.nonfinite),
        seconds,
    )


def _first_call(run: Predict, model: nn.Module, x: Tensor) -> None:
    """Predict once for nothing, so that the clock finds the kernels ready."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the prediction itself says it, of all inputs
        with contextlib.suppress(ValueError):
            run(model, x, 1)


def _one_pass(model: nn.Module, x: Tensor) -> Prediction:
    """The prediction of a network without masks: no pass differs from another."""
    with torch.inference_mode():
        probs = model(x).double().softmax(dim=1)
    entropy = torch.special.entr(probs).sum(dim=1)
    none, zero = torch.zeros_like(probs), torch.zeros_like(entropy)
    return Prediction(
        mean=probs,
        variance=none,
        entropy=entropy,
        expected_entropy=entropy,
        mutual_information=zero,
        mutual_information_corrected=zero,
        variation_ratio=zero,
        mean_se=none,
        entropy_se=zero,
        mutual_information_se=zero,
        samples=probs[None],  # for a temperature
        T=1,
        seed=0,
        p_effective={},
        elapsed_seconds=0.0,
    )


def _progress(batches: Sequence[Tensor], total: int, *, shown: bool) -> Iterable[Tensor]:
    """Show progress in inputs when a person is watching."""
    with tqdm(total=total, unit="input", disable=not (shown and sys.stderr.isatty())) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch))


def _wait(device: torch.device) -> None:
    """Wait until the device has finished, so that the clock measures the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
