"""What a saved network says about inputs: T passes and the mean-weight network, batch by batch."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from tqdm import tqdm

from bayes_dc.mc import Prediction, join_predictions, predict_with_uncertainty
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.inputs import Inputs

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
        seconds: Wall time of the Monte Carlo passes.
    """

    prediction: Prediction
    mean_network: Tensor
    energy: Tensor
    nonfinite: tuple[int, ...]
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
    plain: bool = False,
    predict: Predict | None = None,
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
        plain: The network draws no masks: one pass stands for all, and is no draw.
        predict: What predicts a batch, with the arguments of ``predict_with_uncertainty``; None:
            that.

    Returns:
        What the network says.

    Raises:
        CheckpointError: If the network cannot be predicted with.
    """
    run = predict or predict_with_uncertainty
    samples = keep_samples or adjust is not None or watch is not None
    model.eval()
    parts: list[Prediction] = []
    means: list[Tensor] = []
    energies: list[Tensor] = []
    nonfinite: list[int] = []
    seconds = 0.0
    for positions in _progress(torch.arange(len(inputs)).split(batch_size), len(inputs)):
        x = inputs.batch(positions, device)
        broken = ~x.isfinite().flatten(1).all(dim=1).cpu()
        nonfinite += positions[broken].tolist()
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
        seconds += time.perf_counter() - start
        part = join_predictions([part])  # on the CPU: device memory does not grow
        if watch is not None:
            watch(part, positions)
        parts.append(part if keep_samples else replace(part, samples=None))
        with torch.inference_mode():
            logits = model(x).double()
        means.append(logits.softmax(dim=1).cpu())
        energies.append(-logits.logsumexp(dim=1).cpu())
    joined = join_predictions(parts)
    return Outputs(joined, torch.cat(means), torch.cat(energies), tuple(nonfinite), seconds)


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
        samples=None,
        T=1,
        seed=0,
        p_effective={},
        elapsed_seconds=0.0,
    )


def _progress(batches: Sequence[Tensor], total: int) -> Iterable[Tensor]:
    """Show progress in inputs when a person is watching."""
    with tqdm(total=total, unit="input", disable=not sys.stderr.isatty()) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch))


def _wait(device: torch.device) -> None:
    """Wait until the device has finished, so that the clock measures the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
