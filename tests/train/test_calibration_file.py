"""calibration.json: comes back as it was saved, and is refused for other weights."""

import dataclasses
import errno
import json
import math

import pytest
import torch

from bayes_dc.metrics import Policy
from bayes_dc.train import (
    CalibrationState,
    CheckpointError,
    SavedTemperature,
    load_calibration,
    save_calibration,
    save_checkpoint,
    saved_policy,
)

POLICY = Policy("entropy", 0.25, "risk", 0.1, 0.95, 100, 0.09, 80, 3)
STATE = CalibrationState(
    T=50,
    seed=2**64 - 1,
    fitted=SavedTemperature(
        value=1.25,
        kind="logits",
        standard_error=0.03,
        nll_before=0.5,
        nll_after=0.4,
        n=70,
    ),
    saved_policy=saved_policy(POLICY),
    data={"name": "toy", "inputs in the split": 140},
    notes=("A note.",),
)


@pytest.fixture
def saved(make_run):
    """A checkpoint with a calibration: returns the run and the folder."""
    run = make_run()
    save_checkpoint(run.folder.last, run.model, run.meta)
    save_calibration(run.folder.last, STATE)
    return run, run.folder.last


def edit(folder, **changes):
    path = folder / "calibration.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        load_calibration(folder)
    return str(caught.value)


def test_what_is_saved_comes_back(saved):
    _, folder = saved
    got = load_calibration(folder)
    sha256 = json.loads((folder / "meta.json").read_text())["sha256"]["model.safetensors"]
    assert got == STATE.model_copy(update={"model_sha256": sha256})
    assert (got.policy, got.temperature, got.kind) == (POLICY, 1.25, "logits")
    assert not list(folder.glob("*.tmp"))


def test_a_run_is_read_where_its_checkpoint_is(saved):
    run, folder = saved
    assert load_calibration(run.folder.path) == load_calibration(folder)
    save_checkpoint(run.folder.best, run.model, run.meta)  # best is taken first, and has none
    assert load_calibration(run.folder.path) is None


def test_a_policy_that_accepts_everything_is_null_in_the_file(saved):
    _, folder = saved
    everything = dataclasses.replace(POLICY, threshold=math.inf)
    save_calibration(folder, STATE.model_copy(update={"saved_policy": saved_policy(everything)}))
    raw = json.loads((folder / "calibration.json").read_text(), parse_constant=pytest.fail)
    assert raw["saved_policy"]["threshold"] is None
    assert load_calibration(folder).policy == everything


def test_new_weights_have_no_calibration(saved):
    run, folder = saved
    save_checkpoint(folder, run.model, run.meta)
    assert load_calibration(folder) is None


def test_a_calibration_of_other_weights_is_refused(saved):
    run, folder = saved
    content = (folder / "calibration.json").read_bytes()
    with torch.no_grad():
        next(run.model.parameters()).add_(1)
    save_checkpoint(folder, run.model, run.meta)
    (folder / "calibration.json").write_bytes(content)
    assert refusal(folder) == (
        f"{folder / 'calibration.json'} was fitted for other weights than those beside it, so its "
        "promises do not hold. Remove it, or calibrate again with --overwrite."
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"schema_name": "x"}, "schema_name must be bayes_dc.calibration. Remove it, or"),
        (
            {"schema_version": 2},
            "schema version 2; this version reads 1. Use bayes_dc 0.1.0, which",
        ),
        ({"T": 0}, "cannot be read: T: Input should be greater than or equal to 1."),
        (
            {"fitted": {"value": -1}},
            "cannot be read: fitted.value: Input should be greater than or equal to 0.01",
        ),
        (
            {"fitted": {"value": 1e308}},
            "cannot be read: fitted.value: Input should be less than or equal to 100",
        ),
        ({"extra": 1}, "cannot be read: extra: Extra inputs are not permitted."),
    ],
)
def test_a_file_that_is_not_ours_is_refused(saved, changes, text):
    _, folder = saved
    edit(folder, **changes)
    assert text in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 100_000, b"\xff"])
def test_damaged_files_are_refused(saved, content):
    _, folder = saved
    (folder / "calibration.json").write_bytes(content)
    assert str(folder / "calibration.json") in refusal(folder)


def test_a_full_disk_keeps_the_previous_one(saved, monkeypatch):
    _, folder = saved
    before = (folder / "calibration.json").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bayes_dc.train.calibration.replace_file", full)
    with pytest.raises(CheckpointError) as caught:
        save_calibration(folder, STATE)
    assert str(caught.value) == (
        f"cannot write {folder / 'calibration.json'}: No space left on device. The previous "
        "calibration, if any, is kept; make room or give yourself the right to write."
    )
    assert (folder / "calibration.json").read_bytes() == before


def test_a_run_that_starts_over_removes_it(saved):
    """It is part of the checkpoint, not somebody's file; so is what a kill leaves of it."""
    run, folder = saved
    (folder / "calibration.json.tmp").touch()
    run.folder.check(resume=False, overwrite=True)
    run.folder.start("seed: 3\n", overwrite=True)
    assert not folder.exists()


def test_predictions_made_in_another_way_are_named():
    assert STATE.mismatches(T=50, seed=2**64 - 1) == []
    said = STATE.mismatches(T=100, seed=0)
    assert said == [
        "The calibration was made with T = 50 passes; this prediction has T = 100. What it "
        "promises holds for predictions made like those it was fitted on.",
        f"The calibration was made with masks of seed {2**64 - 1}; this prediction has seed 0. "
        "What it promises holds for predictions made like those it was fitted on.",
    ]
