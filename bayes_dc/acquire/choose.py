"""Which unlabelled inputs to label next.

=================  ==================================================================  =========
method             chooses the inputs with                                             masks
=================  ==================================================================  =========
``batchbald``      most information about the weights, all labels together             joint
``bald``           highest mutual information, one by one (Houlsby et al. 2011)        any
``entropy``        highest predictive entropy                                          any
``variation_ratio``  most passes that vote for another class than most                 any
``random``         a number drawn for each                                             none
=================  ==================================================================  =========

``joint``: samples of ``joint_samples``, one function for all inputs in a pass; ``any``: those, or
``predict_with_uncertainty(..., return_samples=True).samples``.

Labels are counted as in a budget: **all labels that the network has been trained on when its test
first reaches the accuracy, the initial ones included**. Published counts often differ: those
printed by the authors of BatchBALD are the size of the training set before the last batch.

Source: Gal, Islam, Ghahramani 2017, "Deep Bayesian active learning with image data", ICML, for the
scores; Kirsch et al. 2019, arXiv 1906.08158, for BatchBALD.
"""

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from bayes_dc.acquire.batchbald import batchbald
from bayes_dc.acquire.checks import check_samples, check_whole
from bayes_dc.acquire.settings import Method
from bayes_dc.metrics import mutual_information, predictive_entropy, variation_ratio
from bayes_dc.types import torch_seed

_METHOD = "method must be one of {known}; got {got!r}."
_CURVE = "curve must be (labels, accuracy) pairs with ascending labels; got {got}."


def acquisition_scores(samples: Tensor, method: Method, *, seed: int = 0) -> Tensor:
    """Score every candidate by itself; higher is wanted more.

    Args:
        samples: Class probabilities of every pass ``[T, N, C]``, any floating dtype.
        method: ``"bald"`` (mutual information, nats), ``"entropy"`` (nats), ``"variation_ratio"``
            or ``"random"`` (uniform in 0 … 1).
        seed: Seed of ``"random"``; 0 … 2**63 − 1.

    Returns:
        Float64 ``[N]``.

    Raises:
        ValueError: If an argument is out of range, or the method has no scores (``"batchbald"``).
    """
    samples = check_samples(samples)
    single = {
        "bald": mutual_information,
        "entropy": predictive_entropy,
        "variation_ratio": variation_ratio,
    }
    if method in single:
        return single[method](samples)
    if method == "random":
        seed = check_whole(seed, "seed", 0, 2**63 - 1)
        generator = torch.Generator().manual_seed(torch_seed(seed))
        numbers = torch.rand(samples.shape[1], generator=generator, dtype=torch.float64)
        return numbers.to(samples.device)
    raise ValueError(_METHOD.format(known=", ".join([*single, "random"]), got=method))


def choose(
    samples: Tensor,
    count: int,
    method: Method = "batchbald",
    *,
    seed: int = 0,
    configurations: int = 10_000,
) -> Tensor:
    """Choose the inputs to label next.

    Args:
        samples: Class probabilities of every pass ``[T, N, C]``, any floating dtype; for
            ``"batchbald"`` of joint samples.
        count: How many, 1 … N.
        method: See the table of this module.
        seed: Seed of ``"random"``, and of the sampled configurations of ``"batchbald"``;
            0 … 2**63 − 1.
        configurations: Of ``"batchbald"``.

    Returns:
        Positions among the candidates, int64 ``[count]``, all different, the most wanted first; of
        equal ones the first.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> samples = joint_samples(model, pool, T=100)
        >>> labelled = pool[choose(samples, 10, "batchbald")]
    """
    if method not in get_args(Method):
        raise ValueError(_METHOD.format(known=", ".join(get_args(Method)), got=method))
    if method == "batchbald":
        return batchbald(samples, count, configurations=configurations, seed=seed).indices
    scores = acquisition_scores(samples, method, seed=seed)
    count = check_whole(count, "count", 1, len(scores))
    return scores.argsort(descending=True, stable=True)[:count]


def labels_to_reach(curve: Sequence[tuple[int, float]], accuracy: float) -> int | None:
    """Count the labels with which a network first reached an accuracy.

    Args:
        curve: Of every test: number of labels in the training set, initial ones included, and
            accuracy; labels ascending.
        accuracy: To be reached, 0 … 1.

    Returns:
        Number of labels of the first test with at least this accuracy, or None.

    Raises:
        ValueError: If the labels do not ascend.
    """
    labels = [count for count, _ in curve]
    if labels != sorted(set(labels)):
        raise ValueError(_CURVE.format(got=labels))
    return next((count for count, reached in curve if reached >= accuracy), None)
