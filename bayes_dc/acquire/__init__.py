"""Active learning: which inputs to label next, from Monte Carlo passes over a pool."""

from bayes_dc.acquire.batchbald import Batch, batchbald
from bayes_dc.acquire.choose import acquisition_scores, choose, labels_to_reach
from bayes_dc.acquire.joint import joint_samples
from bayes_dc.acquire.settings import AcquireConfig, Method

__all__ = [
    "AcquireConfig",
    "Batch",
    "Method",
    "acquisition_scores",
    "batchbald",
    "choose",
    "joint_samples",
    "labels_to_reach",
]
