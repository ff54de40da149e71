"""Evaluations with known content for the report tests."""

import dataclasses

import numpy as np
import pytest
import torch

from bayes_dc.mc import convergence
from bayes_dc.mc.prediction import Prediction
from bayes_dc.metrics import expected_entropy, mutual_information, predictive_entropy
from bayes_dc.metrics.policy import Policy
from bayes_dc.report import (
    TURNED,
    Cost,
    Evaluation,
    Named,
    OODSet,
    RotatedInput,
    SeedRun,
    ShiftSweep,
    Temperature,
    shift_point,
    write_report,
    writer,
)


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
def _no_pictures(monkeypatch):
    """Leave the drawing out where only text is looked at: it takes most of the time."""
    monkeypatch.setattr(writer, "draw_charts", lambda *_: {})
    monkeypatch.setattr(writer, "draw_grids", lambda *_: {})


@pytest.fixture(scope="session")
def full(evaluation):
    """Return an evaluation of 48 inputs that has every optional part."""
    ev = evaluation(n=48, name="ours", energy=torch.linspace(-5, -1, 48, dtype=torch.float64))
    samples = torch.randn(6, 30, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    samples = samples.softmax(-1)
    other = OODSet(
        name="letters",
        prediction=make_prediction(samples),
        image=make_image,
        mean_network=samples[0],
        energy=torch.linspace(-3, 0, 30, dtype=torch.float64),
        data={"name": "letters", "conversion": "grey, resized to 5 × 6 pixels"},
    )
    points = [
        shift_point(name, severity, evaluation(n=20, seed=seed).prediction, ev.labels[:20])
        for name, steps in (("contrast", (0, 1, 5)), (TURNED, (0, 90, 180)))
        for seed, severity in enumerate(steps)
    ]
    turned = RotatedInput(
        "input 0", 1, (0, 90, 180), [make_image(k) for k in range(3)], samples[:, :3]
    )
    policy = Policy("entropy", 0.9, "risk", 0.2, 0.95, 50, 0.18, 40, 3)
    plain = evaluation(n=48, seed=1, name="plain", shift=ShiftSweep(points), ood=[other])
    return dataclasses.replace(
        ev,
        ood=[other],
        shift=ShiftSweep(points, turned),
        convergence=convergence(samples, ev.labels[:30]),
        temperature=Temperature(1.3, "logits", 50),
        policy=policy,
        seeds=[SeedRun(0, ev.prediction), SeedRun(1, evaluation(n=48, seed=2).prediction)],
        compared=[Named("plain", dataclasses.replace(plain, labels=ev.labels))],
    )


@pytest.fixture(scope="session")
def full_folder(full, tmp_path_factory):
    """The folder of its report."""
    out = tmp_path_factory.mktemp("full") / "out"
    write_report(full, out)
    return out


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
