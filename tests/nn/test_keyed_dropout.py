"""torch's dropout modules while MaskKeys are attached: numbers, masks, training, refusals."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bayes_dc import DropConnectLinear
from bayes_dc.nn import MaskKeys, dropout_layers
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.rng import dropout_key

KINDS = {
    nn.Dropout: (2, {}),
    nn.Dropout1d: (3, {"channels": True}),
    nn.Dropout2d: (4, {"channels": True}),
    nn.Dropout3d: (5, {"channels": True}),
    nn.AlphaDropout: (2, {"alpha": True}),
    nn.FeatureAlphaDropout: (4, {"channels": True, "alpha": True}),
}


def at(step=3, S=4):
    return {"pass_ids": step, "sample_ids": torch.arange(10, 10 + S)}


def keyed(x, number, call=0, **options):
    """What a module with this number gives at ``at()``."""
    key = torch.tensor(dropout_key(7, number, call))
    ids = {"pass_ids": torch.tensor([3]), "sample_ids": torch.arange(10, 14)}
    return keyed_dropout(x, key=key, **ids, **options)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_the_masks_of_its_number(kind, training):
    """In training and in evaluation, as DropConnect layers do; afterwards torch's own again."""
    ndim, options = KINDS[kind]
    model = nn.Sequential(nn.Dropout(0.0), DropConnectLinear(3, 3), kind(0.3)).train(training)
    x = torch.randn(4, *range(3, 2 + ndim))
    keys = MaskKeys(7)
    with keys.attached(model):
        keys.set(**at())
        got = model[2](x)
        assert torch.equal(got, keyed(x, 1, p=0.3, **options))
        keys.set(**at(step=4))
        assert not torch.equal(model[2](x), got)
        assert model[0](x) is x
    assert "forward" not in model[2].__dict__
    assert training or model.eval()[2](x) is x


def test_numbers_count_dropout_modules_whatever_their_p():
    shared = nn.Dropout(0.1)
    model = nn.Sequential(
        nn.Linear(3, 3), nn.Dropout(0.0), nn.Sequential(shared, shared), nn.Dropout2d()
    )
    assert list(dropout_layers(model)) == ["1", "2.0", "3"]


def test_a_module_called_again_draws_again():
    """Unlike a DropConnect layer: one nn.Dropout often serves several places."""
    module, x = nn.Dropout(0.5), torch.ones(4, 100)
    keys = MaskKeys(7)
    with keys.attached(module):
        keys.set(**at())
        first, second = module(x), module(x)
        assert torch.equal(first, keyed(x, 0))
        assert torch.equal(second, keyed(x, 0, call=1))
        assert not torch.equal(first, second)
        keys.set(**at())
        assert torch.equal(module(x), first)


def test_in_place():
    module, x = nn.Dropout(0.5, inplace=True), torch.ones(4, 100)
    want = keyed(x.clone(), 0)
    keys = MaskKeys(7)
    with keys.attached(module):
        keys.set(**at())
        assert module(x) is x
    assert torch.equal(x, want)


def test_gradients_have_the_masks_of_the_forward():
    module, x = nn.Dropout(0.5), torch.ones(4, 100, requires_grad=True)
    keys = MaskKeys(7)
    with keys.attached(module):
        keys.set(**at())
        y = module(x)
        y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_see_the_same_masks(reentrant):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.5), nn.Linear(20, 20), nn.Dropout(0.5))
    x = torch.randn(4, 20, requires_grad=True)
    keys = MaskKeys(7)
    with keys.attached(block):
        keys.set(**at())
        want = torch.autograd.grad(block(x).square().sum(), x)
        keys.set(**at())
        y = checkpoint(block, x, use_reentrant=reentrant)
        y.square().sum().backward()
    assert torch.equal(x.grad, want[0])


def test_checkpoints_of_a_module_called_twice_are_refused():
    dropout = nn.Dropout(0.5)
    block = nn.Sequential(nn.Linear(20, 20), dropout, nn.Linear(20, 20), dropout)
    keys = MaskKeys(7)
    with keys.attached(block):
        keys.set(**at())
        y = checkpoint(block, torch.randn(4, 20), use_reentrant=False)
        with pytest.raises(RuntimeError, match="Dropout layer '1' was called 2 times") as error:
            y.sum().backward()
    assert "Use a dropout module for each place, or MaskKeys.attach(model, dropout=False)" in str(
        error.value
    )


def test_compiled_training_equals_eager():
    """And does not compile anew in every step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Dropout(0.3), nn.Linear(30, 2))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 20)
    keys = MaskKeys(7)
    with keys.attached(model), torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            gradients = []
            for network in (model, compiled):
                keys.set(pass_ids=torch.tensor([step]), sample_ids=torch.arange(4))
                gradients.append(torch.autograd.grad(network(x).square().sum(), model.parameters()))
            for ours, theirs in zip(*gradients, strict=True):
                torch.testing.assert_close(ours, theirs)


class Mine(nn.Dropout):
    """Computes something else."""

    def forward(self, x):
        return super().forward(x) + 1


def test_what_is_left_alone():
    """Subclasses with a forward of their own, and everything with dropout=False."""
    model = nn.Sequential(Mine(0.5), nn.Dropout(0.5)).eval()
    keys = MaskKeys(7)
    with keys.attached(model):
        keys.set(**at())
        assert torch.equal(model[0](torch.ones(4, 9)), torch.full((4, 9), 2.0))
        assert [forward.name for forward in keys.dropout] == ["1"]
        assert torch.equal(model[1](torch.ones(4, 9)), keyed(torch.ones(4, 9), 1))
    with keys.attached(model, dropout=False):
        assert keys.dropout == ()
        assert model(torch.ones(4, 9)).eq(2).all()


def test_the_fused_encoder_path_is_not_taken():
    """In evaluation it would compute past the dropout modules."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).eval()
    x = torch.randn(4, 3, 8)
    with torch.no_grad():
        want = layer(x)
        with MaskKeys(7).attached(layer) as keys:
            keys.set(**at())
            got = layer(x)
            assert all(forward.was_called for forward in keys.dropout)
        assert not torch.allclose(got, want)
        assert torch.equal(layer(x), want)
    assert not any(module._forward_pre_hooks for module in layer.modules())


def test_other_keys_are_refused():
    model = nn.Sequential(nn.Dropout(0.5))
    with MaskKeys(0).attached(model):
        with pytest.raises(RuntimeError, match="Layer '0' already draws its masks from other"):
            MaskKeys(1).attach(model)
        MaskKeys(1).attach(model, dropout=False)
    assert "forward" not in model[0].__dict__


@pytest.mark.parametrize(
    ("kind", "x", "text"),
    [
        (
            nn.Dropout,
            torch.ones(6, 4, 2),
            "got 6 rows, x [6, 4, 2], where masks are keyed for 4 sa",
        ),
        (
            nn.Dropout,
            torch.tensor(1.0),
            "got 0 rows, x [], where masks are keyed for 4 samples. Keep",
        ),
        (nn.Dropout1d, torch.ones(4, 2), "got x of shape [4, 2], which torch takes for one sample"),
        (
            nn.Dropout3d,
            torch.ones(4, 2, 3, 3),
            "got x of shape [4, 2, 3, 3], which torch takes for",
        ),
        (
            nn.Dropout2d,
            torch.ones(4),
            "channel dropout needs x of shape [rows, channels, …]; got [4]",
        ),
    ],
    ids=["rows", "scalar", "1d", "3d", "2d"],
)
def test_refused_inputs(kind, x, text):
    model = nn.Sequential(kind(0.5))
    keys = MaskKeys(7)
    with keys.attached(model):
        keys.set(**at())
        with pytest.raises(ValueError, match=r"rows|shape") as error:
            model(x)
    assert text in str(error.value)
