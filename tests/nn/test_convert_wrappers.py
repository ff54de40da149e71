"""Converted models in copies, files and wrappers: compiled, traced, parallel, fused."""

import copy
import io

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectLinear, convert, predict_with_uncertainty, restore
from bayes_dc.nn import MaskKeys, dropconnect_layers


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 3),
    )


def images(n=4):
    return torch.randn(n, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def test_copies_and_files():
    model = network().eval()
    want, plain = model(images()), copy.deepcopy(model)
    convert(model, p=0.25)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for twin in (copy.deepcopy(model), loaded):
        assert torch.equal(twin(images()), want)
        assert [m.p for m in dropconnect_layers(twin).values()] == [0.25, 0.25]
        assert [m.mask_layer for m in dropconnect_layers(twin).values()] == [0, 1]
        draws = [predict_with_uncertainty(m, images(), T=3).mean for m in (model, twin)]
        assert torch.equal(*draws)
        assert restore(twin) == ("0", "4")
        assert repr(twin) == repr(plain)


def test_state_dicts_load_both_ways():
    plain, model = network(), network()
    convert(model)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(plain.eval()(images()), model.eval()(images()))
    other = network()
    convert(other)
    other.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(other.eval()(images()), model(images()))


def test_on_the_meta_device():
    with torch.device("meta"):
        model = network()
    report = convert(model)
    assert tuple(report.converted) == ("0", "4")
    assert all(p.is_meta for p in model.parameters())
    model.to_empty(device="cpu").load_state_dict(network().state_dict())
    assert torch.equal(model.eval()(images()), network().eval()(images()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept(dtype):
    model, x = network().to(dtype).eval(), images().to(dtype)
    want = model(x)
    convert(model)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert torch.equal(model(x), want)
    assert model.train()(x).dtype == dtype


def test_a_model_that_refuses_attributes():
    class Frozen(nn.Module):
        __slots__ = ()

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            object.__setattr__(self, "frozen", True)

        def __setattr__(self, name, value):
            if "frozen" in self.__dict__:
                raise AttributeError("frozen")
            super().__setattr__(name, value)

        def forward(self, x):
            return self.fc(x)

    model = Frozen()
    model.fc.eval()
    want = model(torch.ones(2, 2))
    assert tuple(convert(model).converted) == ("fc",)
    assert torch.equal(model(torch.ones(2, 2)), want)
    restore(model)
    assert type(model.fc) is nn.Linear


def test_traced_by_fx():
    model = network().eval()
    traced = torch.fx.symbolic_trace(model)
    assert tuple(convert(traced).converted) == ("0", "4")
    assert torch.equal(traced(images()), model(images()))
    model.train()
    traced.train()
    assert not torch.equal(traced(images()), traced(images()))
    assert isinstance(model[4], DropConnectLinear)  # the same objects


@pytest.mark.parametrize("where", ["model", "inside"])
def test_compiled_before(where):
    model = network().eval()
    want = model(images())
    compiled = torch.compile(model, backend="eager")
    if where == "inside":
        compiled = nn.Sequential(compiled).eval()
    assert torch.equal(compiled(images()), want)  # compiled for the plain layers
    names = ("0", "4") if where == "model" else ("0._orig_mod.0", "0._orig_mod.4")
    assert tuple(convert(compiled).converted) == names
    assert torch.equal(compiled(images()), want)
    compiled.train()
    assert not torch.equal(compiled(images()), compiled(images()))
    assert predict_with_uncertainty(compiled, images(), T=3).variance.any()
    assert restore(compiled) == names
    assert torch.equal(compiled.eval()(images()), model(images()))  # statistics have moved


def test_compiled_in_place():
    model = network()
    model.compile(backend="eager")
    want = model.eval()(images())
    convert(model)
    assert torch.equal(model(images()), want)
    assert not torch.equal(model.train()(images()), model(images()))


def test_data_parallel():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x = network().eval().to(device), images().to(device)
    parallel = nn.DataParallel(model)
    want = parallel(x)
    assert tuple(convert(parallel, select="module.4").converted) == ("module.4",)
    assert torch.equal(parallel(x), want)
    # What it does on several GPUs: a copy of the object for each.
    replica = model[4]._replicate_for_data_parallel()
    assert (type(replica), replica.p) == (DropConnectLinear, 0.5)


def test_distributed_data_parallel(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for wrapped_first in (True, False):
            model = network()
            if wrapped_first:
                parallel = nn.parallel.DistributedDataParallel(model)
                convert(parallel)
            else:
                convert(model)
                parallel = nn.parallel.DistributedDataParallel(model)
            parallel(images()).sum().backward()
            assert all(p.grad is not None for p in model.parameters())
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("scale", ["inverted", "none"])
def test_the_fused_transformer_layer_does_not_read_past_a_layer(scale):
    """Without gradients torch's encoder layer takes the weights, unless a layer has a hook."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    attributes = {name: len(m._forward_pre_hooks) for name, m in model.named_modules()}
    convert(model, scale=scale)
    keys = MaskKeys(0)
    keys.set(pass_ids=0, sample_ids=torch.arange(3))

    def assert_equal_without_gradients():
        want = model(x)
        with torch.no_grad():
            # Fused sums round in another order.
            torch.testing.assert_close(model(x), want, rtol=0, atol=64 * 2.0**-24)

    assert_equal_without_gradients()
    with keys.attached(model):
        assert_equal_without_gradients()
    assert_equal_without_gradients()
    restore(model)
    assert {name: len(m._forward_pre_hooks) for name, m in model.named_modules()} == attributes


def test_passes_by_hand_through_the_fused_transformer_layer():
    """The model in evaluation mode, its DropConnect layers in training mode, no gradients."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    convert(model)
    model.eval()
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        want = model(x)
        model.linear2.train()
        assert not torch.equal(model(x), model(x))
        model.linear2.eval()
        assert torch.equal(model(x), want)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_padded_batches_of_a_transformer():
    """torch's encoder drops the padding in inference: fused, without masks; refused with them."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.no_grad():
        want = model(x, src_key_padding_mask=padding)
        convert(model)
        assert torch.equal(model(x, src_key_padding_mask=padding), want)
        keys = MaskKeys(0)
        keys.set(pass_ids=0, sample_ids=torch.arange(3))
        with keys.attached(model):
            with pytest.raises(TypeError, match="enable_nested_tensor=False"):
                model(x, src_key_padding_mask=padding)
            model.use_nested_tensor = False
            out = model(x, src_key_padding_mask=padding)
    assert out.isfinite().all()
    assert not torch.equal(out[1:], want[1:])
