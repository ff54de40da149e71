"""scripts/calibrate.py: from a checkpoint to calibration.json, and everything that it refuses."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayes_dc import predict_with_uncertainty
from bayes_dc.metrics import correct
from bayes_dc.train import calibrate as fit
from bayes_dc.train import load_calibration, load_model, policy_scores

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "calibrate.py"
N = 144  # a tenth of the 1438 training digits


@pytest.fixture(scope="module")
def calibrate():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("calibrate_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(calibrate, checkpoint, tmp_path, capsys):
    """Run the script on a copy of the checkpoint: exit code, what it wrote, standard error."""
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")

    def run(*options, folder=folder):
        code = calibrate.main(["--checkpoint", str(folder), "--device", "cpu", *options])
        told = capsys.readouterr()
        return code, told.out.splitlines(), told.err.splitlines()

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def validation(checkpoint, digits):
    """What the script should see: a prediction for the validation split, and its labels."""
    model, _ = load_model(checkpoint)
    x = digits.validation.batch(torch.arange(N), torch.device("cpu"))
    prediction = predict_with_uncertainty(model, x, 6, return_samples=True)
    return prediction, digits.validation.labels


def test_a_temperature(run, validation):
    code, out, err = run()
    assert (code, len(warnings_of(err))) == (0, len(err))
    want = fit(*validation).fitted
    state = load_calibration(run.folder)
    assert state.fitted.value == pytest.approx(want.value, rel=1e-5)
    assert (state.kind, state.policy, state.T, state.seed) == ("logits", None, 6, 0)
    assert state.data["name"] == "digits"
    assert (state.data["split"], state.data["inputs in the split"]) == ("validation", N)
    assert out == [
        f"temperature {state.fitted.value:.4f} ± {state.fitted.standard_error:.4f} on the logits "
        f"of every pass: NLL {state.fitted.nll_before:.4f} → {state.fitted.nll_after:.4f} on the "
        f"{N} inputs it was fitted on",
        f"calibration {run.folder / 'calibration.json'}",
    ]


def warnings_of(lines):
    """The lines that are warnings."""
    return [line for line in lines if line.startswith("warning: ")]


def test_a_policy_for_a_coverage(run, validation):
    options = ("--temperature", "none", "--score", "entropy", "--confidence", "0.9")
    code, out, err = run("--target-coverage", "0.8", *options)
    assert (code, err) == (0, [])
    prediction, labels = validation
    policy = load_calibration(run.folder).policy
    uncertainty = policy_scores(prediction, "entropy")
    accepted = policy.accepts(uncertainty)
    wrong = accepted & ~correct(prediction.mean, labels)
    assert (policy.accepted, policy.errors) == (int(accepted.sum()), int(wrong.sum()))
    assert (policy.target_kind, policy.target, policy.confidence) == ("coverage", 0.8, 0.9)
    assert out == [
        f"policy: accept entropy ≤ {policy.threshold:.6g}; at least {policy.bound:.2%} of the "
        "inputs are accepted (asked for 80.00%), with confidence 0.9",
        f"on the {N} inputs it was chosen on: {policy.accepted} accepted "
        f"({policy.accepted / N:.1%}), {policy.errors} of them wrong",
        f"calibration {run.folder / 'calibration.json'}",
    ]


def test_a_policy_for_a_risk_beside_a_temperature(run):
    code, out, _ = run("--target-risk", "0.25", "--temperature", "mean")
    assert code == 0
    state = load_calibration(run.folder)
    assert (state.kind, state.fitted.n, state.policy.n) == ("mean", N // 2, N // 2)
    assert state.policy.bound <= 0.25
    assert out[0].startswith(f"temperature {state.temperature:.4f} ± ")
    assert "on the mean of the passes: NLL" in out[0]
    assert out[1].endswith(
        f"at most {state.policy.bound:.2%} of the accepted inputs are wrong (asked for 25.00%), "
        "with confidence 0.95"
    )


def test_batches_and_passes(run):
    assert run("--batch-size", "50", "--passes", "3", "--seed", "5")[0] == 0
    few = load_calibration(run.folder)
    assert (few.T, few.seed) == (3, 5)
    assert run("--batch-size", "7", "--passes", "3", "--seed", "5", "--overwrite")[0] == 0
    assert load_calibration(run.folder) == few


def test_nothing_is_replaced_unless_asked(run):
    assert run()[0] == 0
    before = (run.folder / "calibration.json").read_bytes()
    code, _, err = run("--temperature", "mean")
    assert (code, err) == (
        2,
        [
            f"error: checkpoint {run.folder} is calibrated already. Pass --overwrite to calibrate "
            "it anew."
        ],
    )
    assert (run.folder / "calibration.json").read_bytes() == before
    assert run("--temperature", "mean", "--overwrite")[0] == 0
    assert load_calibration(run.folder).kind == "mean"


def test_a_checkpoint_chosen_on_the_split_says_so(run, tmp_path):
    best = tmp_path / "run" / "best"
    shutil.copytree(run.folder, best)
    code, _, err = run(folder=tmp_path / "run")
    assert code == 0
    note = (
        "The checkpoint is the epoch of least loss on this very split, so what the split says is a "
        "little too good. Name the folder last to calibrate weights that were not chosen by it."
    )
    assert f"warning: {note}" in err
    assert note in load_calibration(best).notes


def test_a_plain_network_has_a_temperature_too(run, make_config, save_network, digits, tmp_path):
    from bayes_dc.train import build_model

    config = make_config(p=0)
    model = build_model(config.model, digits.input_shape, 10, seed=0)
    trained, _ = load_model(run.folder)
    model.load_state_dict(trained.state_dict())
    save_network(tmp_path / "plain", model, config, digits)
    assert run("--target-coverage", "0.5", folder=tmp_path / "plain")[0] == 0
    state = load_calibration(tmp_path / "plain")
    assert (state.T, state.policy.n) == (1, N // 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--temperature", "none"), "nothing to calibrate: temperature is 'none' and neither a"),
        (
            ("--target-risk", "0.001"),
            "72 calibration inputs are too few to promise a risk of 0.001",
        ),
        (("--target-risk", "0.001"), "with temperature 'none' the policy gets all 144.)"),
    ],
)
def test_what_cannot_be_fitted_writes_nothing(run, options, text):
    code, out, err = run(*options)
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith(f"error: --checkpoint {run.folder}: ")
    assert text in err[0]
    assert not (run.folder / "calibration.json").exists()


def test_a_checkpoint_without_a_validation_split_is_refused(
    run, make_config, save_network, digits, tmp_path
):
    config = make_config()
    data = config.data.model_copy(update={"validation_fraction": 0.0})
    model, _ = load_model(run.folder)
    save_network(tmp_path / "all", model, config.model_copy(update={"data": data}), digits)
    code, _, err = run(folder=tmp_path / "all")
    assert (code, err) == (
        2,
        [
            f"error: checkpoint {tmp_path / 'all'} was trained without a validation split "
            "(data.validation_fraction is 0), so there is nothing to calibrate on: the network has "
            "learnt the training split, and the test split must stay unseen. Train again with "
            "--set data.validation_fraction=0.1."
        ],
    )


def test_there_must_be_a_checkpoint(run, tmp_path):
    code, _, err = run(folder=tmp_path / "nowhere")
    assert code == 2
    assert err[0].startswith(f"error: no checkpoint at {tmp_path / 'nowhere'}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--target-risk", "5"),
            "argument --target-risk: must be a number between 0 and 1; got '5'",
        ),
        (("--confidence", "x"), "argument --confidence: must be a number between 0 and 1; got 'x'"),
        (("--passes", "0"), "argument --passes: must be a whole number of at least 1; got '0'"),
        (("--seed", "-1"), "argument --seed: must be a whole number in 0 … 2**64 − 1; got '-1'"),
        (("--target-risk", ".1", "--target-coverage", ".9"), "not allowed with argument"),
    ],
)
def test_the_command_line_is_checked(calibrate, capsys, options, text):
    with pytest.raises(SystemExit) as stopped:
        calibrate.main(["--checkpoint", "x", *options])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


def test_the_command_works_from_a_shell(run):
    command = [sys.executable, str(SCRIPT), "--checkpoint", str(run.folder), "--device", "cpu"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads((run.folder / "calibration.json").read_text())["T"] == 6
    assert "Traceback" not in result.stderr
