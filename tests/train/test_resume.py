"""A run that goes on, starts over, or meets a folder that is in use."""

import dataclasses
import json
import logging

import pytest
import torch

from bayes_dc.datasets import DatasetError
from bayes_dc.train import (
    CheckpointError,
    TrainingError,
    load_checkpoint,
    save_checkpoint,
)
from bayes_dc.train.progress import Progress

TIMES = ("seconds", "samples_per_second")
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}


def without_times(rows):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def lines(run):
    return [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]


class Stop(Exception):
    """Stands for whatever ends a run between two epochs."""


def stop_after(monkeypatch, epoch):
    real = Progress.epoch

    def show(self, row):
        real(self, row)
        if row["epoch"] == epoch:
            raise Stop

    monkeypatch.setattr(Progress, "epoch", show)


RESUMES = {
    "adam-cosine": {"schedule": {"name": "cosine", "warmup_epochs": 1}},
    "sgd-multistep": {"optimizer": SGD, "schedule": {"name": "multistep", "milestones": [2]}},
    "every-second-epoch": {"checkpoint_every": 2, "epochs": 4},
    "clipped-bf16": {"grad_clip": 0.5, "amp": "bf16"},
    "changed-images": {
        "augment": {"shift": 1, "flip": True},
        "label_smoothing": 0.1,
        "optimizer": SGD | {"weight_decay": 0.1, "decay": "weights"},
    },
}


@pytest.mark.parametrize("settings", RESUMES.values(), ids=RESUMES)
@pytest.mark.parametrize("p", [0, 0.5])
def test_resumed_run_is_the_uninterrupted_run_bit_for_bit(make_run, monkeypatch, p, settings):
    straight = make_run("straight", p=p, **settings)
    history = straight.fit()
    stopped = make_run("stopped", p=p, **settings)
    with monkeypatch.context() as patch:
        stop_after(patch, 3 if "checkpoint_every" in settings else 1)
        with pytest.raises(Stop):
            stopped.fit()
    resumed = make_run("stopped", p=p, **settings)
    returned = resumed.fit(resume=True)
    for (name, a), b in zip(
        straight.model.named_parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    assert without_times(returned) == without_times(history)
    assert without_times(lines(resumed)) == without_times(history)
    for checkpoint in ("last", "best"):
        metas = [load_checkpoint(run.folder.path / checkpoint)[0] for run in (straight, resumed)]
        assert metas[0].epoch == metas[1].epoch
        assert metas[0].sha256["model.safetensors"] == metas[1].sha256["model.safetensors"]


def test_resumed_run_with_dropout_is_the_uninterrupted_run(make_run, monkeypatch):
    """Masks of nn.Dropout are keyed by step and sample, too: no generator to put back."""
    straight = make_run("straight", p=0, dropout=0.5)
    history = straight.fit()
    stopped = make_run("stopped", p=0, dropout=0.5)
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stop):
            stopped.fit()
    torch.manual_seed(11)
    resumed = make_run("stopped", p=0, dropout=0.5)
    assert without_times(resumed.fit(resume=True)) == without_times(history)
    for a, b in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_learning_rate_after_a_resume(make_run, monkeypatch):
    settings = {
        "epochs": 4,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "schedule": {"name": "multistep", "milestones": [2]},
    }
    run = make_run(**settings)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            run.fit()
    history = make_run(**settings).fit(resume=True)
    assert [row["lr"] for row in history] == pytest.approx([0.1, 0.1, 0.01, 0.01], rel=1e-15)


def test_finished_run_resumes_to_more_epochs(make_run):
    make_run(epochs=1).fit()
    longer = make_run(epochs=3)
    assert [row["epoch"] for row in longer.fit(resume=True)] == [1, 2, 3]
    straight = make_run("straight", epochs=3)
    straight.fit()
    for a, b in zip(longer.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_resuming_a_finished_run_changes_nothing(make_run):
    run = make_run(epochs=1)
    history = run.fit()
    before = (run.folder.last / "meta.json").read_bytes()
    assert make_run(epochs=1).fit(resume=True) == history
    assert (run.folder.last / "meta.json").read_bytes() == before


def test_resume_with_nothing_to_resume_says_so(make_run, caplog):
    run = make_run(epochs=1)
    run.folder.path.mkdir()
    run.folder.metrics.write_text('{"epoch": 1}\n')
    with caplog.at_level(logging.INFO, "bayes_dc.train"):
        history = run.fit(resume=True)
    assert "nothing to resume in" in caplog.text
    assert lines(run) == history


def test_resume_says_where_it_goes_on(make_run, caplog):
    make_run(epochs=1).fit()
    with caplog.at_level(logging.INFO, "bayes_dc.train"):
        make_run(epochs=2).fit(resume=True)
    assert "last after epoch 1" in caplog.text


def test_resume_with_other_settings_is_refused_and_changes_nothing(make_run):
    run = make_run(epochs=1)
    run.fit()
    before = {p: p.read_bytes() for p in run.folder.path.rglob("*") if p.is_file()}
    with pytest.raises(TrainingError, match=r"train\.batch_size was 5 and is 6\. Set it back, or"):
        make_run(batch_size=6).fit(resume=True)
    assert {p: p.read_bytes() for p in run.folder.path.rglob("*") if p.is_file()} == before


def test_used_folder_is_refused(make_run):
    make_run(epochs=1).fit()
    with pytest.raises(TrainingError, match="is not empty"):
        make_run(epochs=1).fit()
    assert [row["epoch"] for row in make_run(epochs=2).fit(overwrite=True)] == [1, 2]


def test_overwriting_waits_until_the_new_run_can_start(make_run):
    run = make_run(epochs=1)
    run.fit()
    with pytest.raises(TrainingError, match="fp16 needs a GPU"):
        make_run(amp="fp16", device="cpu").fit(overwrite=True)
    assert load_checkpoint(run.folder.last)[0].epoch == 1


@pytest.mark.parametrize("why", ["unreadable input", "diverges"])
def test_overwriting_waits_until_the_first_epoch_is_trained(make_run, why):
    make_run(epochs=2).fit()
    run = make_run(epochs=1, optimizer={"name": "sgd", "lr": 1e30} if why == "diverges" else {})
    files = [path for path in run.folder.path.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    if why == "unreadable input":
        run.data = dataclasses.replace(run.data, train=Unreadable(run.data.train))
    with pytest.raises(ValueError, match=r"cannot read image|is not finite"):
        run.fit(overwrite=True)
    assert {path: path.read_bytes() for path in files} == before


class Unreadable:
    """A split whose last sample cannot be read."""

    def __init__(self, split):
        self.labels, self.class_names, self._split = split.labels, split.class_names, split

    def __len__(self):
        return len(self._split)

    def batch(self, indices, device):
        if len(self) - 1 in indices.tolist():
            raise DatasetError("cannot read image")
        return self._split.batch(indices, device)


def test_a_second_run_in_the_same_folder_is_refused(make_run):
    run = make_run(epochs=1)
    with (
        run.folder.locked(),
        pytest.raises(TrainingError, match="another run is writing to output_dir"),
    ):
        make_run(epochs=1).fit()
    assert [row["epoch"] for row in run.fit()] == [1]


@pytest.mark.parametrize("state", [{"a": 1}, {"optimizer": {"state": {}, "param_groups": []}}])
def test_training_state_of_something_else(make_run, state):
    run = make_run(epochs=1)
    run.fit()
    meta, _ = load_checkpoint(run.folder.last)
    save_checkpoint(run.folder.last, run.model, meta, state)
    with pytest.raises(
        CheckpointError, match=r"train_state\.pt cannot be read: it is not the stat"
    ):
        make_run().fit(resume=True)


def test_resume_with_other_classes_is_refused(make_run):
    make_run(epochs=1).fit()
    run = make_run()
    run.meta = run.meta.model_copy(update={"class_names": ("a", "b", "z")})
    with pytest.raises(
        TrainingError, match=r"trained for 3 classes \['a', 'b', 'c'\], the data has"
    ):
        run.fit(resume=True)
