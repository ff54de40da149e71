"""What a conversion keeps: every object of a model, hooks, optimizers and ties."""

import torch
from torch import nn

from bayes_dc import convert, restore


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


def state_of(model):
    """Everything in the objects of a model, tensors by identity."""
    return {
        name: (
            type(module),
            list(module.__dict__),
            {k: id(v) for k, v in module.__dict__.items() if isinstance(v, torch.Tensor)},
            *({k: id(v) for k, v in getattr(module, s).items()} for s in (
                "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks",
                "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
                "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
            )),
            module.training,
        )
        for name, module in model.named_modules()
    }  # fmt: skip


def test_restore_gives_back_every_object_as_it_was():
    model = network()
    model[0].note = {"who": "a user"}
    model[4].register_forward_pre_hook(lambda *_: None)
    model[4].weight.requires_grad_(False)
    state, forward = state_of(model), model[4].forward
    convert(model, scale="none")
    assert model[0].note == {"who": "a user"}
    assert [p.requires_grad for p in model.parameters()] == [True] * 4 + [False, True]
    assert restore(model) == ("0", "4")
    assert state_of(model) == state
    assert model[4].forward == forward


def test_all_kinds_of_hooks_are_called():
    model, calls = network(), []

    def note(name):
        return lambda *args: calls.append(name)

    for layer in (model[0], model[4]):
        layer.register_forward_pre_hook(note("pre"))
        layer.register_forward_hook(note("forward"))
        layer.register_full_backward_pre_hook(note("backward pre"))
        layer.register_full_backward_hook(note("backward"))
        layer.register_state_dict_pre_hook(note("state pre"))
        layer.register_state_dict_post_hook(note("state"))
        layer.register_load_state_dict_pre_hook(note("load pre"))
        layer.register_load_state_dict_post_hook(note("load"))

    def all_calls():
        calls.clear()
        model(images().requires_grad_()).sum().backward()
        model.load_state_dict(model.state_dict())
        return list(calls)

    want = all_calls()
    assert {*want} >= {"pre", "forward", "backward pre", "backward", "state", "load pre", "load"}
    convert(model)
    assert all_calls() == want
    restore(model)
    assert all_calls() == want


def test_a_hook_that_changes_the_output_still_does():
    model = network().eval()
    model[4].register_forward_hook(lambda module, args, out: out + 1)
    want = model(images())
    convert(model)
    assert torch.equal(model(images()), want)


def test_an_optimizer_made_before_trains_the_same_parameters():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    convert(model)
    weights = [model[0].weight, model[4].weight]
    before = [w.detach().clone() for w in weights]
    model.eval()(images())
    model.train()(images()).sum().backward()
    optimizer.step()
    assert weights[0] is model[0].weight
    assert weights[1] is model[4].weight
    assert all(w.is_leaf and not torch.equal(w, b) for w, b in zip(weights, before, strict=True))


def test_weights_are_not_changed_by_forwards():
    model = network()
    convert(model)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(20):
        model(images())
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.body(self.embed(x))))


def test_a_weight_tied_to_an_embedding_stays_tied():
    model, x = LanguageModel().eval(), torch.arange(6)
    want = model(x)
    report = convert(model)
    assert model.head.weight is model.embed.weight
    assert report.converted["head"].endswith("; shares its weight with embed.weight")
    assert "embed" in report.left_alone
    # 24 shared weights and 16, counted once.
    assert (report.masked_weights, report.parameters) == (40, 44)
    assert torch.equal(model(x), want)
    model.train()(x).sum().backward()
    assert model.embed.weight.grad is model.head.weight.grad
    assert len(list(model.parameters())) == 3


def test_layers_tied_to_each_other_draw_their_own_masks():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    report = convert(model)
    assert model[2].weight is model[0].weight
    assert report.converted["0"].endswith("; shares its weight with 2.weight")
    assert report.masked_weights == 16
    assert [model[0].mask_layer, model[2].mask_layer] == [0, 1]
    restore(model)
    assert model[2].weight is model[0].weight


def test_a_layer_used_twice_is_converted_once():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    report = convert(model)
    assert tuple(report.converted) == ("0",)
    assert report.converted["0"].endswith("; also 2")
    assert report.masked_weights == 16
    assert model[0] is model[2]
