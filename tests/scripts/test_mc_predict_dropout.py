"""scripts/mc_predict.py with a checkpoint whose only masks are those of dropout."""

import json

import pytest
import torch

from bayes_dc import metrics as m
from bayes_dc import predict_with_uncertainty
from bayes_dc.train import build_model, load_model

N = 20


@pytest.fixture
def dropout_checkpoint(tmp_path, digits, make_config, save_network):
    config = make_config(p=0, dropout=0.5)
    model = build_model(config.model, digits.input_shape, 10, seed=0)
    return save_network(tmp_path / "checkpoint", model, config, digits)


def test_the_report_is_of_monte_carlo_dropout(predict, dropout_checkpoint, digits):
    """The mean-weight network beside it has dropout off."""
    code, folder = predict("--limit", str(N), folder=dropout_checkpoint)
    assert code == 0
    document = json.loads((folder / "report.json").read_text("utf-8"))
    model, _ = load_model(dropout_checkpoint)
    x, labels = digits.test.batch(torch.arange(N), torch.device("cpu")), digits.test.labels[:N]
    want = predict_with_uncertainty(model, x[:16], 6)
    assert document["dropout"] == want.dropout == {"3": 0.5}
    assert document["p_effective"] == {}
    with torch.no_grad():
        mean = torch.cat([model.eval()(part).double().softmax(1) for part in x.split(16)])
    assert document["metrics"]["nll"]["mean_network"]["value"] == m.nll(mean, labels).item()
    assert document["metrics"]["mutual_information"]["monte_carlo"]["value"] > 0
    assert [row["normalisation"] for row in document["certainty"]] == [
        *["log_classes"] * 2,
        *["test_set"] * 2,
    ]
    page = (folder / "report.html").read_text("utf-8")
    assert "each time with other activations dropped" in " ".join(page.split())
