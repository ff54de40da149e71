"""Evaluations with known content for the report tests."""

import dataclasses

import numpy as np
import pytest
import torch

from bayes_dc.mc.prediction import Prediction
from bayes_dc.metrics import expected_entropy, mutual_information, predictive_entropy
from bayes_dc.report import Cost, Evaluation


def make_prediction(samples, seed=3):
    """The Prediction of class probabilities [T, B, C]."""
    mean = samples.mean(0)
    zeros = torch.zeros(samples.shape[1], dtype=torch.float64)
    unbiased = samples.var(0) if len(samples) > 1 else torch.zeros_like(mean)
    mi = mutual_information(samples)
    return Prediction(
        mean=mean,
        variance=unbiased,
        entropy=predictive_entropy(samples),
        expected_entropy=expected_entropy(samples),
        mutual_information=mi,
        mutual_information_corrected=mi,
        variation_ratio=zeros,
        mean_se=(unbiased / len(samples)).sqrt(),
        entropy_se=zeros,
        mutual_information_se=zeros,
        samples=None,
        T=len(samples),
        seed=seed,
        p_effective={"1": 0.5, "3": 51 / 512},
        elapsed_seconds=0.5,
    )


def make_image(index):
    """A grey 6 × 5 picture that tells its index."""
    return np.full((6, 5, 1), 10 + index % 200, dtype=np.uint8)


@pytest.fixture(scope="session")
def evaluation():
    """Return a maker of evaluations of n inputs, about four in five predicted right."""

    def make(n=60, classes=4, passes=8, seed=0, labelled=True, **changes):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(classes, (n,), generator=generator)
        base = torch.randn(n, classes, generator=generator, dtype=torch.float64)
        base[torch.arange(n), labels] += 2
        noise = torch.randn(passes, n, classes, generator=generator, dtype=torch.float64)
        made = Evaluation(
            prediction=make_prediction((2 * base + noise).softmax(-1)),
            ids=tuple(f"input {i}" for i in range(n)),
            class_names=tuple("abcdefghij"[:classes]),
            image=make_image,
            cost=Cost(seconds=1.5, peak_memory_bytes=3 * 2**20, peak_memory_kind="made up"),
            labels=labels if labelled else None,
            mean_network=(2 * base).softmax(-1),
            data={"name": "synthetic", "split": "test", "sha256": "0" * 64},
            run={"device": "cpu", "batch_size": 7},
            checkpoint={"folder": "checkpoints/x", "config": {"model": {"p": 0.5}}},
            environment={"python": "3"},
        )
        return dataclasses.replace(made, **changes)

    return make


@pytest.fixture
def broken(evaluation):
    """Inputs 2 and 5 of 60 have no finite prediction."""
    good = evaluation()
    columns = ("mean", "entropy", "expected_entropy", "mutual_information")
    changed = {name: getattr(good.prediction, name).clone() for name in columns}
    for column in changed.values():
        column[[2, 5]] = torch.nan
    return dataclasses.replace(
        good, prediction=dataclasses.replace(good.prediction, **changed), nonfinite_inputs=(2,)
    )
