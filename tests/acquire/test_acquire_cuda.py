"""The same functions and the same batch on a GPU."""

import pytest
import torch

import bayes_dc
from bayes_dc.acquire import batchbald, joint_samples
from bayes_dc.models import cnn

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("engine", ["folded", "auto"])
def test_joint_samples_are_those_of_the_cpu(engine):
    torch.manual_seed(0)
    model = cnn((1, 20, 20), 10, dropout=0.2).double()
    bayes_dc.convert(model, p=0.5)
    x = torch.randn(6, 1, 20, 20, dtype=torch.float64)
    want = joint_samples(model, x, 8)
    model.cuda()
    got = joint_samples(model, x.cuda(), 8, engine=engine)
    assert got.device.type == "cuda"
    # float64 throughout: only the order of sums of up to 1024 terms differs
    assert (got.cpu() - want).abs().max() < 1024 * 2.0**-52
    ids = torch.zeros(6, dtype=torch.int64, device="cuda")
    own = bayes_dc.predict_with_uncertainty(
        model, x.cuda(), 8, sample_ids=ids, return_samples=True, engine=engine
    ).samples
    assert (got - own).abs().max() < 1024 * 2.0**-52


@pytest.mark.parametrize("configurations", [4**5, 50])
def test_the_batch_is_that_of_the_cpu(configurations):
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(30, 200, 4, generator=generator, dtype=torch.float64) ** 4
    p /= p.sum(dim=2, keepdim=True)
    want = batchbald(p, 5, configurations=configurations)
    got = batchbald(p.cuda(), 5, configurations=configurations)
    assert got.indices.tolist() == want.indices.tolist()
    # sums of C^b terms, T passes deep, of at most log 4 each
    assert (got.gains.cpu() - want.gains).abs().max() < (4**5 + 30) * 2 * 2.0**-52
