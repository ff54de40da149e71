"""Passes whose masks all inputs share: joint samples of functions."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bayes_dc.mc import predict_with_uncertainty
from bayes_dc.mc.guards import lock_of
from bayes_dc.mc.passes import EngineChoice
from bayes_dc.nn import DropConnectModule, dropconnect_layers
from bayes_dc.types import Link

_GAUSSIAN = (
    'Layers {names} have sampler="gaussian", which draws outputs and no weights: two inputs have '
    'no function in common, so there are no joint samples. Use sampler="bernoulli", or a method '
    "that scores inputs one by one, on predict_with_uncertainty(..., return_samples=True).samples."
)


def joint_samples(
    model: nn.Module,
    x: Tensor,
    T: int = 100,
    *,
    seed: int = 0,
    link: Link = "softmax",
    engine: EngineChoice = "auto",
) -> Tensor:
    """Class probabilities of T passes, each one function for all inputs.

    In pass t every input meets the weight masks, and the dropout masks, of sample 0: what
    ``scope="pass"`` draws. So p_t[b] and p_t[b'] are two values of one network, and products over
    inputs are joint probabilities: p(y, y') = 1/T Σ_t p_t[b, y] p_t[b', y']. With a mask of its own
    for every input (``scope="row"`` and ``"sample"``, each with its sample id) pass t would be
    another network for every input, and that average would tend to the product of the marginals:
    any two inputs would look independent, a copy of a chosen input would look as informative as the
    first, and BatchBALD would choose what BALD chooses.

    Args:
        model: Classifier with DropConnect or dropout layers, as for ``predict_with_uncertainty``.
        x: Inputs ``[B, …]`` on the model's device. A large pool may be cut into batches: equal
            seeds draw equal functions.
        T: Number of passes.
        seed: Unsigned 64-bit seed of the masks.
        link: What turns the output into probabilities.
        engine: As for ``predict_with_uncertainty``; ``"folded"`` for a model that is used once, as
            on a GPU an engine takes seconds to make.

    Returns:
        Float64 ``[T, B, C]`` on the device of ``x``.

    Raises:
        ValueError: If a layer draws outputs instead of weights, or as ``predict_with_uncertainty``.

    Determinism:
        Of (seed, layer, pass) only: batches change nothing, up to rounding of torch's own layers.

    Source:
        Kirsch, van Amersfoort, Gal 2019, NeurIPS, arXiv 1906.08158 (there: consistent dropout).
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given, as for the lock
    layers = dropconnect_layers(model)
    gaussian = [name or "the model" for name, m in layers.items() if m.sampler == "gaussian"]
    if gaussian:
        raise ValueError(_GAUSSIAN.format(names=", ".join(gaussian)))
    rows = len(x) if isinstance(x, Tensor) and x.ndim else 0  # what does not fit is refused below
    ids = torch.zeros(rows, dtype=torch.int64, device=getattr(x, "device", None))
    with lock_of(model), _shared(list(layers.values())):
        prediction = predict_with_uncertainty(
            model, x, T, seed=seed, sample_ids=ids, return_samples=True, link=link, engine=engine
        )
    assert prediction.samples is not None
    return prediction.samples


@contextmanager
def _shared(layers: list[DropConnectModule]) -> Iterator[None]:
    """Tell layers that have one mask for a sample that all samples share it: the same bits."""
    # scope="row" stays: of a layer with positions it draws one mask for each, also for sample 0.
    changed = [layer for layer in layers if layer.scope == "sample"]
    try:
        for layer in changed:
            layer.scope = "pass"
        yield
    finally:
        for layer in changed:
            layer.scope = "sample"
