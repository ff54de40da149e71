"""Starting from the weights of a checkpoint."""

import logging

import pytest
import torch

from bayes_dc.datasets import Normalisation
from bayes_dc.train import CheckpointError, ModelConfig, start_from


def trained(make_run, **options):
    run = make_run("plain", p=0, epochs=1, **options)
    run.fit()
    return run


def test_weights_arrive_whatever_the_masks_are(make_run):
    plain = trained(make_run, validation=False)
    tuned = make_run("tuned", p=0.5, seed=9)
    start_from(plain.folder.path, tuned.model, tuned.meta)
    for (name, a), b in zip(plain.model.named_parameters(), tuned.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    rows = tuned.fit()
    assert rows[0]["step"] == 5
    assert not torch.equal(plain.model[1].weight, tuned.model[1].weight)


def test_other_classes_are_refused(make_run):
    plain = trained(make_run)
    other = make_run("other", p=0)
    meta = other.meta.model_copy(update={"class_names": ("a", "b")})
    with pytest.raises(CheckpointError) as caught:
        start_from(plain.folder.path, other.model, meta)
    text = f"init_from {plain.folder.path}: it was trained for 3 classes; the data has 2. Name a"
    assert str(caught.value).startswith(text)


def test_the_same_classes_in_another_order_are_refused(make_run):
    """Else every class would silently start from the weights of another."""
    plain = trained(make_run)
    other = make_run("other", p=0)
    meta = other.meta.model_copy(update={"class_names": ("c", "a", "b")})
    before = other.model[1].weight.clone()
    with pytest.raises(CheckpointError) as caught:
        start_from(plain.folder.path, other.model, meta)
    assert str(caught.value) == (
        f"init_from {plain.folder.path}: it was trained on the same classes in another order: "
        "['a', 'b', 'c']; the data has ['c', 'a', 'b']. Number the data's classes in the "
        "checkpoint's order, or leave init_from out."
    )
    assert torch.equal(other.model[1].weight, before)


def test_other_names_of_the_classes_are_warned_of(make_run, caplog):
    plain = trained(make_run)
    other = make_run("other", p=0)
    meta = other.meta.model_copy(update={"class_names": ("a", "b", "dog")})
    with caplog.at_level(logging.WARNING, "bayes_dc.train"):
        start_from(plain.folder.path, other.model, meta)
    (record,) = caplog.records
    assert record.message == (
        f"init_from {plain.folder.path}: its classes are ['a', 'b', 'c'], those of this run are "
        "['a', 'b', 'dog']: output i starts as the checkpoint's class i"
    )
    assert torch.equal(other.model[1].weight, plain.model[1].weight)


def test_other_shapes_are_refused(make_run):
    plain = trained(make_run)
    other = make_run("other", p=0)
    meta = other.meta.model_copy(update={"input_shape": (1, 9, 1)})
    with pytest.raises(CheckpointError, match=r"inputs of shape \[1, 3, 3\]; the data has \[1, 9"):
        start_from(plain.folder.path, other.model, meta)


def test_another_network_is_refused(make_run):
    plain = trained(make_run)
    other = make_run("other", p=0, hidden=(7,))
    with pytest.raises(CheckpointError) as caught:
        start_from(plain.folder.path, other.model, other.meta)
    text = str(caught.value)
    assert "best/model.safetensors: the weights do not fit the network of this config" in text
    assert "1.weight is float32 [8, 9] and should be float32 [7, 9]" in text
    assert text.endswith(
        "Set model.name (and hidden, for mlp) to what the checkpoint was trained with."
    )


def test_other_constants_are_warned_of(make_run, caplog):
    plain = trained(make_run)
    other = make_run("other", p=0)
    meta = other.meta.model_copy(update={"normalisation": Normalisation((0.5,), (0.25,))})
    with caplog.at_level(logging.WARNING, "bayes_dc.train"):
        start_from(plain.folder.path, other.model, meta)
    (record,) = caplog.records
    assert "scaled by mean [0.0] and deviation [1.0], those of this run are by [0.5] and" in (
        record.message
    )


def test_batch_normalisation_comes_along(make_run):
    plain = make_run("plain", p=0, epochs=1, samples=20)
    plain.model_settings = ModelConfig(p=0, name="mlp", hidden=(8,))
    plain.model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 3)
    )
    plain.fit()
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 3))
    start_from(plain.folder.last, other, plain.meta)
    assert torch.equal(other[1].running_mean, plain.model[1].running_mean)
