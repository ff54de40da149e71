"""What T stochastic passes say about a batch."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """Statistics of ``T`` Monte Carlo passes over ``B`` inputs and ``C`` classes.

    With p_t the class probabilities of pass t and p̄ their mean, H the Shannon entropy in nats::

        entropy = H(p̄)     expected_entropy = mean_t H(p_t)
        mutual_information = entropy − expected_entropy

    All tensors are float64 and lie on the device of the input. The standard errors are Monte Carlo
    errors: how far the figure would move if the passes were drawn again, not how wrong the network
    may be. They are 0 at ``T = 1``, where they cannot be estimated.

    Attributes:
        mean: Predictive distribution p̄, ``[B, C]``.
        variance: Unbiased variance over passes, ``[B, C]``; 0 at ``T = 1``.
        entropy: Predictive (total) entropy, ``[B]``, nats, 0 … log C.
        expected_entropy: Aleatoric part, ``[B]``, nats.
        mutual_information: Epistemic part, plug-in estimate, ``[B]``, nats; low by about 1/T of
            its value.
        mutual_information_corrected: The same with the jackknife's bias correction, ``[B]``, nats;
            may be slightly negative.
        variation_ratio: Share of passes that vote for another class than the most voted, ``[B]``,
            0 … 1 − 1/C; NaN where a pass gave NaN.
        mean_se: Standard error of ``mean``, ``[B, C]``.
        entropy_se: Jackknife standard error of ``entropy``, ``[B]``; up to √2 too large where
            ``mean`` is nearly uniform, as the entropy has no slope there.
        mutual_information_se: Jackknife standard error of ``mutual_information``, ``[B]``.
        samples: Class probabilities of every pass, ``[T, B, C]``, or None if not asked for.
        T: Number of passes.
        seed: Seed of the masks.
        p_effective: Realised drop probability of every DropConnect layer, by module name.
        elapsed_seconds: Wall time of the call.
        dropout: Realised drop probability of all dropout that was active: by module name, by number
            for calls of functions, by kind where torch drew the masks (attention, recurrent nets).
        engine: Which path the passes took, and why: ``"engine, …"`` or ``"folded: …"``.
    """

    mean: Tensor
    variance: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    mutual_information_corrected: Tensor
    variation_ratio: Tensor
    mean_se: Tensor
    entropy_se: Tensor
    mutual_information_se: Tensor
    samples: Tensor | None
    T: int
    seed: int
    p_effective: dict[str, float]
    elapsed_seconds: float
    dropout: dict[str, float] = field(default_factory=dict)
    engine: str = ""

    @property
    def predicted(self) -> Tensor:
        """Most probable class of ``mean``, int64 ``[B]``."""
        return self.mean.argmax(dim=1)

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, float64 ``[B]``."""
        return self.mean.amax(dim=1)
