"""Monte Carlo dropout and convolutions on a GPU: the CPU's masks, and the same promises."""

import pytest
import torch
from torch import nn

from bayes_dc import convert, predict_with_uncertainty
from bayes_dc.nn import MaskKeys

pytestmark = pytest.mark.gpu

C, T = 4, 9


def network():
    """Integer weights: logits are exact in float32 and TensorFloat-32, whatever the order."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(8, 8, 3)),
        *(nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(32, C)),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    return model.eval()


def images(rows=5):
    return torch.randint(-1, 2, (rows, 3, 6, 6), generator=torch.Generator().manual_seed(1)).float()


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels-last"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_logits_of_every_pass_equal_the_cpus(chunk, last, converted):
    model, x = network(), images()
    if converted:
        convert(model, p=0.5)
    outputs = []

    class Kept(nn.Module):
        def forward(self, y):
            outputs.append(y.detach().clone().cpu())
            return y

    model.append(Kept())
    want = predict_with_uncertainty(model, x, T=T, chunk=chunk, engine="folded")
    expected = torch.cat(outputs)
    outputs.clear()
    model.cuda()
    if last:
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    got = predict_with_uncertainty(model, x.cuda(), T=T, chunk=chunk, engine="folded")
    assert torch.equal(torch.cat(outputs), expected)
    torch.testing.assert_close(got.mean.cpu(), want.mean)
    assert got.dropout == {"2": 0.5, "6": 0.5}


@pytest.mark.filterwarnings("ignore:Dropout inside")
def test_masks_that_torch_draws_repeat_and_touch_no_generator():
    """cuDNN's recurrent dropout has a state of its own, so it is not used."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.LSTM(6, 8, 2, dropout=0.5, batch_first=True), nn.Linear(8, C)

        def forward(self, x):
            return self.head(self.cells(x)[0][:, -1])

    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(6, 2, 16, batch_first=True)
    heads = nn.Sequential(encoder, nn.Flatten(), nn.Linear(24, C))
    x = torch.randn(5, 4, 6).cuda()
    for model in (Recurrent().cuda(), heads.cuda()):
        states = torch.cuda.get_rng_state(), torch.get_rng_state()
        got, again = (
            predict_with_uncertainty(model, x, T=T, return_samples=True, engine="folded")
            for _ in range(2)
        )
        assert torch.equal(got.samples, again.samples)
        assert len(got.samples.flatten(1).unique(dim=0)) == T
        assert torch.equal(torch.cuda.get_rng_state(), states[0])
        assert torch.equal(torch.get_rng_state(), states[1])


def test_training_with_keys_draws_the_masks_of_the_cpu():
    model, x = network().train(), images()
    gradients = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        keys = MaskKeys(3)
        with keys.attached(model):
            keys.set(pass_ids=2, sample_ids=torch.arange(5, device=device))
            model(x.to(device)).sum().backward()
        gradients.append([p.grad.cpu().clone() for p in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)


def test_a_captured_graph_draws_by_its_coordinates():
    """Key, sample and pass ids are read on the device: new ones give other masks in a replay."""
    from bayes_dc.ops.dropout import keyed_dropout

    x = torch.randn(4, 300, device="cuda")
    key = torch.tensor([1, 2], device="cuda")
    samples, passes = (
        torch.arange(4, device="cuda"),
        torch.zeros(1, dtype=torch.int64, device="cuda"),
    )
    options = {"key": key, "sample_ids": samples, "pass_ids": passes}
    keyed_dropout(x, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = keyed_dropout(x, **options)
    for step in (0, 5):
        passes.fill_(step)
        graph.replay()
        assert torch.equal(y, keyed_dropout(x, **options))
