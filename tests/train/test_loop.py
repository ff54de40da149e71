"""The loop: what a step sees, what is written, what stops it, and that a resume changes nothing."""

import io
import json
import logging
import math
import sys
from itertools import chain

import pytest
import torch
from torch import nn

from bayes_dc.nn import MaskKeys
from bayes_dc.train import (
    TrainingError,
    evaluate,
    load_checkpoint,
    load_train_state,
)
from bayes_dc.train import trainer as trainer_module
from bayes_dc.train.trainer import resolve_device

TIMES = ("seconds", "samples_per_second")


def without_times(rows):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def lines(run):
    return [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]


def test_training_learns(make_run):
    run = make_run(p=0.25, hidden=(32,), epochs=30, optimizer={"lr": 1e-2})
    before = evaluate(run.model, run.data.test, 7, torch.device("cpu"))
    run.fit()
    after = evaluate(run.model, run.data.test, 7, torch.device("cpu"))
    assert after.loss_nats < before.loss_nats / 4
    assert after.wrong == 0


def test_metrics_are_one_line_per_epoch(make_run):
    run = make_run()
    history = run.fit()
    assert lines(run) == history
    assert [(row["epoch"], row["step"]) for row in history] == [(1, 5), (2, 10), (3, 15)]
    score = evaluate(run.model, run.data.validation, 5, torch.device("cpu"))
    assert history[-1]["validation_loss"] == score.loss_nats
    assert history[-1]["validation_accuracy"] == score.accuracy
    assert all(row["samples_per_second"] * row["seconds"] == pytest.approx(23) for row in history)
    assert set(history[0]) == {
        *("epoch", "step", "train_loss", "train_accuracy", "validation_loss"),
        *("validation_accuracy", "lr", *TIMES),
    }


def test_training_metrics_are_means_over_samples(make_run):
    """With no learning rate to speak of, the plain network's epoch means are its evaluation."""
    run = make_run(p=0, epochs=1, log_every=2, optimizer={"name": "sgd", "lr": 1e-30})
    score = evaluate(run.model, run.data.train, 23, torch.device("cpu"))
    row = run.fit()[0]
    assert row["train_accuracy"] == score.accuracy
    assert row["train_loss"] == pytest.approx(score.loss_nats, rel=1e-6)


def test_every_sample_is_seen_once_per_epoch_in_a_new_order(make_run):
    run = make_run(epochs=2)
    seen = []
    real = run.data.train.batch

    class Spy:
        labels = run.data.train.labels

        def __len__(self):
            return 23

        def batch(self, indices, device):
            seen.append(indices.tolist())
            return real(indices, device)

    object.__setattr__(run.data, "train", Spy())
    run.fit()
    assert [len(batch) for batch in seen] == [5, 5, 5, 5, 3] * 2
    first, second = (list(chain.from_iterable(part)) for part in (seen[:5], seen[5:]))
    assert sorted(first) == sorted(second) == list(range(23))
    assert first != second


def test_masks_are_keyed_by_step_and_position(make_run, monkeypatch):
    run = make_run(epochs=2)
    keys = []
    real = MaskKeys.set

    def spy(self, pass_ids, sample_ids):
        keys.append((pass_ids, sample_ids.tolist()))
        real(self, pass_ids=pass_ids, sample_ids=sample_ids)

    monkeypatch.setattr(MaskKeys, "set", spy)
    run.fit()
    sizes = [5, 5, 5, 5, 3] * 2
    assert keys == [(step, list(range(size))) for step, size in enumerate(sizes)]


def test_one_seed_one_network(make_run):
    first, again, other = (
        make_run("a", seed=5),
        make_run("b", seed=5),
        make_run("c", seed=6),
    )
    histories = [without_times(run.fit()) for run in (first, again, other)]
    assert histories[0] == histories[1] != histories[2]
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_validation_loss_that_is_not_finite_stops_the_run(make_run):
    run = make_run(epochs=1, batch_size=23, optimizer={"name": "sgd", "lr": 1e25})
    with pytest.raises(TrainingError, match=r"the validation loss \(nan\) is not finite at step 1"):
        run.fit()
    assert not run.folder.has_checkpoint()


def test_looking_less_often_than_there_are_steps_costs_no_memory(make_run):
    assert len(make_run(epochs=1, log_every=10**15).fit()) == 1


def test_configuration_is_kept_beside_the_results(make_run):
    run = make_run(epochs=1)
    run.fit()
    assert (run.folder.path / "config.yaml").read_text() == "seed: 3\n"


def test_best_is_the_lowest_validation_loss(make_run):
    run = make_run(epochs=8, optimizer={"name": "sgd", "lr": 1.0, "momentum": 0.95})
    history = run.fit()
    losses = [row["validation_loss"] for row in history]
    best, weights = load_checkpoint(run.folder.best)
    assert best.epoch == 1 + losses.index(min(losses)) < 8
    assert best.metrics["validation_loss"] == min(losses)
    run.model.load_state_dict(weights)
    score = evaluate(run.model, run.data.validation, 5, torch.device("cpu"))
    assert score.loss_nats == min(losses)


def test_without_validation_there_is_only_last(make_run):
    run = make_run(validation=False)
    history = run.fit()
    assert {row["validation_loss"] for row in history} == {None}
    assert not run.folder.best.exists()
    assert load_checkpoint(run.folder.path)[0].epoch == 3


def test_last_is_saved_when_due_and_at_the_end(make_run, monkeypatch):
    saved = []
    real = trainer_module.save_checkpoint

    def spy(folder, model, meta, state=None):
        saved.append((folder.name, meta.epoch))
        real(folder, model, meta, state)

    monkeypatch.setattr(trainer_module, "save_checkpoint", spy)
    make_run(validation=False, epochs=5, checkpoint_every=2).fit()
    assert saved == [("last", 2), ("last", 4), ("last", 5)]


def test_best_needs_no_training_state(make_run):
    run = make_run(epochs=1)
    run.fit()
    assert not (run.folder.best / "train_state.pt").exists()
    assert load_train_state(run.folder.last)["best_epoch"] == 1


def test_loss_that_is_not_finite_stops_the_run(make_run):
    run = make_run(p=0, log_every=2, optimizer={"name": "sgd", "lr": 1e25})
    with pytest.raises(TrainingError) as caught:
        run.fit()
    text = str(caught.value)
    assert "training stopped: the loss (" in text
    assert "is not finite at step 1 (epoch 1)" in text
    assert "lower train.optimizer.lr (now 1e+25, 1e+25 at this step), set train.grad_clip" in text
    assert not run.folder.last.exists()
    assert not run.folder.metrics.exists()


def test_weights_that_are_not_finite_are_not_saved(make_run):
    optimizer = {"name": "sgd", "lr": 1e30, "weight_decay": 1e30}
    run = make_run(p=0, batch_size=23, grad_clip=1e30, optimizer=optimizer)
    with pytest.raises(TrainingError, match="a weight is not finite at step 1") as caught:
        run.fit()
    assert "set train.grad_clip" not in str(caught.value)
    assert not run.folder.last.exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_warned_of(make_run, value):
    run = make_run(p=0)
    real = run.data.train

    class Holed:
        labels = real.labels

        def __len__(self):
            return 23

        def batch(self, indices, device):
            x = real.batch(indices, device)
            x[indices == 4] = value
            return x

    object.__setattr__(run.data, "train", Holed())
    with (
        pytest.warns(UserWarning, match=r"1 batches of the training split hold NaN or inf.* clean"),
        pytest.raises(TrainingError, match="the loss"),
    ):
        run.fit()


def test_clipping_bounds_the_step(make_run):
    run = make_run(batch_size=23, epochs=1, grad_clip=1e-3, optimizer={"name": "sgd", "lr": 1.0})
    before = [p.detach().clone() for p in run.model.parameters()]
    run.fit()
    moved = [(p - q).flatten() for p, q in zip(run.model.parameters(), before, strict=True)]
    # The bound is 1e-3; weights of size ~ 1 round by 2⁻²⁴ each, and there are 107 of them.
    assert torch.cat(moved).norm() <= 1e-3 + 107 * 2**-24
    assert torch.cat(moved).norm() >= 0.9e-3


def test_bf16_trains_in_lower_precision(make_run):
    exact, mixed = make_run("a", p=0), make_run("b", p=0, amp="bf16")
    losses = [run.fit()[-1]["train_loss"] for run in (exact, mixed)]
    assert losses[0] != losses[1]
    assert abs(losses[0] - losses[1]) < 2**-6 * losses[0]
    assert all(p.dtype == torch.float32 for p in mixed.model.parameters())


def convolution():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 4, 2), nn.Flatten(), nn.Linear(16, 3))


def test_channels_last_is_the_same_network_in_another_order(make_run):
    losses = {}
    for last in (False, True):
        run = make_run(f"{last}", p=0, channels_last=last, validation=False)
        run.model = convolution()
        losses[last] = run.fit()[-1]["train_loss"]
        weight = run.model[1].weight
        assert weight.is_contiguous() is not last
        assert weight.is_contiguous(memory_format=torch.channels_last) is last
        assert load_checkpoint(run.folder.last)[1]["0.weight"].is_contiguous()
    assert losses[True] == pytest.approx(losses[False], rel=1e-5)


def test_label_smoothing_mixes_the_target_with_all_classes(make_run):
    """The loss of a step is (1 − ε) CE(y) + ε mean over classes of CE(class)."""
    run = make_run(
        p=0, epochs=1, batch_size=23, label_smoothing=0.25, optimizer={"name": "sgd", "lr": 1e-30}
    )
    with torch.no_grad():
        log_p = run.model(run.data.train.batch(torch.arange(23), torch.device("cpu"))).log_softmax(
            1
        )
    hit = log_p[torch.arange(23), run.data.train.labels]
    expected = -(0.75 * hit + 0.25 * log_p.mean(1)).mean()
    assert run.fit()[0]["train_loss"] == pytest.approx(float(expected), rel=1e-6)


def test_fp16_needs_a_gpu(make_run):
    with pytest.raises(
        TrainingError, match=r"train\.amp fp16 needs a GPU: set amp to bf16 or none"
    ):
        make_run(amp="fp16", device="cpu").fit()


def test_cuda_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        TrainingError, match=r"train\.device is cuda, but torch finds no CUDA device"
    ):
        resolve_device("cuda")
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")


def test_batch_normalisation_with_one_sample_left_over(make_run):
    run = make_run(samples=21, p=0)
    run.model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(9), nn.Linear(9, 3))
    rows = run.fit()
    assert rows[-1]["step"] == 4 * 3
    assert int(run.model[1].num_batches_tracked) == 12


def test_one_line_per_epoch_without_a_terminal(make_run, caplog, capsys):
    with caplog.at_level(logging.INFO, "bayes_dc.train"):
        history = make_run(epochs=2).fit()
    shown = [record.message for record in caplog.records]
    assert len(shown) == 2
    assert shown[1].startswith(f"epoch 2/2: loss {history[1]['train_loss']:.4f}, accuracy ")
    assert f"validation loss {history[1]['validation_loss']:.4f}" in shown[1]
    assert shown[1].endswith("samples/s")
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_on_a_terminal(make_run, monkeypatch, caplog):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with caplog.at_level(logging.INFO, "bayes_dc.train"):
        make_run(epochs=2, log_every=1).fit()
    last = terminal.getvalue().split("\r")[-1]
    assert "epoch 2/2: 100%" in last
    assert "46.0/46.0" in last
    assert "samples/s, loss " in last
    assert "accuracy " in last
    assert caplog.records == []
