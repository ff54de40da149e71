"""A typed program of a user: the type checker reads it, strictly, as it reads the package.

``assert_type`` says what a reader's editor shows; an ignored error says that a mistake is one (an
ignore that is not needed is an error itself). Nothing here is run by pytest.
"""

from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

import bayes_dc
from bayes_dc.datasets import DataConfig, DatasetBundle, load_dataset
from bayes_dc.metrics import Policy, policy_for_coverage
from bayes_dc.nn import ConversionReport
from bayes_dc.report import Cost, Evaluation, write_report


def convert_and_predict(model: nn.Module, x: Tensor) -> Tensor:
    """From a model of one's own to an uncertainty."""
    report = bayes_dc.convert(model, p=0.25, select=["layer4"])
    assert_type(report, ConversionReport)
    prediction = bayes_dc.predict_with_uncertainty(model, x, T=20, sample_ids=torch.arange(len(x)))
    assert_type(prediction, bayes_dc.Prediction)
    assert_type(prediction.mean, Tensor)
    assert_type(prediction.samples, Tensor | None)
    assert_type(prediction.p_effective, dict[str, float])
    bayes_dc.restore(model)
    return prediction.mutual_information


def layers() -> nn.Sequential:
    """Layers and networks are modules of torch."""
    linear = bayes_dc.DropConnectLinear(8, 4, p=0.5, scope="sample")
    conv = bayes_dc.DropConnectConv2d(3, 8, 3, p=0.25)
    assert_type(linear.weight, Tensor)
    return nn.Sequential(conv, nn.Flatten(), linear, bayes_dc.models.mlp(4, 2))


def operators(x: Tensor, w: Tensor) -> Tensor:
    """Functions of tensors."""
    y = bayes_dc.dropconnect_linear(x, w, p=0.5, key=bayes_dc.MaskKey(seed=1, layer=2))
    assert_type(y, Tensor)
    return bayes_dc.dropconnect_conv2d(y[:, :, None, None], w, key=bayes_dc.MaskKey(1))


def engine(model: nn.Module, x: Tensor) -> bayes_dc.Prediction:
    """Predictions in planned memory."""
    planned = bayes_dc.MonteCarloEngine(model, x, T=10)
    prediction = planned(x)
    assert_type(prediction, bayes_dc.Prediction)
    return prediction


def scores(prediction: bayes_dc.Prediction, labels: Tensor) -> list[float]:
    """Metrics are tensors, policies are objects."""
    assert_type(bayes_dc.metrics.ece(prediction.mean, labels), Tensor)
    policy = policy_for_coverage(
        1 - prediction.confidence, prediction.predicted != labels, 0.9, score="max_probability"
    )
    assert_type(policy, Policy)
    assert_type(policy.threshold, float)
    metrics: list[Callable[[Tensor, Tensor], Tensor]] = [bayes_dc.metrics.nll]
    return [metric(prediction.mean, labels).item() for metric in metrics]


def written(prediction: bayes_dc.Prediction, folder: Path) -> Path:
    """From a data set to a report."""
    data = load_dataset(DataConfig(name="digits"))
    assert_type(data, DatasetBundle)
    ids = [str(i) for i in range(len(prediction.mean))]
    cost = Cost(prediction.elapsed_seconds, None, "")
    pixels = data.test.batch(torch.arange(len(ids)), torch.device("cpu")).numpy()
    evaluation = Evaluation(prediction, ids, data.class_names, lambda i: pixels[i], cost)
    return write_report(evaluation, folder)


def mistakes(model: nn.Module, x: Tensor) -> None:
    """What must not pass the type checker."""
    bayes_dc.convert(model, p="0.5")  # type: ignore[arg-type]
    bayes_dc.convert(model, probability=0.5)  # type: ignore[call-arg]
    bayes_dc.DropConnectLinear(8, 4, scope="image")  # type: ignore[arg-type]
    bayes_dc.predict_with_uncertainty(model, x, 10, engine="fast")  # type: ignore[arg-type]
    bayes_dc.dropconnect_linear(x, x)  # type: ignore[call-arg]
    bayes_dc.predict_with_uncertainty(model, x, 10).certainty  # type: ignore[attr-defined]  # noqa: B018
    bayes_dc.convrt(model)  # type: ignore[attr-defined]
    bayes_dc.MaskKey(layer=1)  # type: ignore[call-arg]
