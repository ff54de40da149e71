"""Learning rate, order and batches: functions of the step, so that a resumed run cannot drift."""

from math import cos, pi

import pytest
import torch
from torch import nn

from bayes_dc.train import OptimizerConfig, ScheduleConfig
from bayes_dc.train.schedule import batch_bounds, epoch_order, learning_rate, make_optimizer


def rates(settings, peak=0.1, epochs=4, steps_per_epoch=2):
    return [
        learning_rate(settings, peak, epochs, steps_per_epoch, step)
        for step in range(epochs * steps_per_epoch)
    ]


def test_constant():
    assert rates(ScheduleConfig()) == [0.1] * 8


def test_multistep_changes_at_the_start_of_its_epochs():
    found = rates(ScheduleConfig(name="multistep", milestones=(2, 3)))
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001], rel=1e-15)


def test_cosine_starts_at_the_peak_and_ends_at_zero():
    found = rates(ScheduleConfig(name="cosine"))
    assert found == [0.1 * (1 + cos(pi * step / 8)) / 2 for step in range(8)]


def test_warmup_rises_to_the_peak_and_then_the_curve_starts():
    found = rates(ScheduleConfig(name="cosine", warmup_epochs=2))
    assert found[:4] == [0.1 * k / 4 for k in (1, 2, 3, 4)]
    assert found[4:] == [0.1 * (1 + cos(pi * step / 4)) / 2 for step in range(4)]


def test_orders_are_permutations_that_differ_between_epochs_and_seeds():
    orders = {
        (seed, epoch): tuple(epoch_order(50, seed, epoch).tolist())
        for seed in (0, 1, 2**64 - 1)
        for epoch in range(3)
    }
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(orders.values())) == len(orders)


def test_order_is_a_function_of_seed_and_epoch_only():
    torch.manual_seed(0)
    first = epoch_order(50, 7, 1)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(epoch_order(50, 7, 1), first)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


BOUNDS = [
    (5, 2, [(0, 2), (2, 5)]),  # a single left-over sample joins the batch before it
    (6, 2, [(0, 2), (2, 4), (4, 6)]),
    (5, 3, [(0, 3), (3, 5)]),
    (3, 1, [(0, 1), (1, 2), (2, 3)]),
    (1, 4, [(0, 1)]),
    (4, 4, [(0, 4)]),
    (3, 10, [(0, 3)]),
]


@pytest.mark.parametrize(("samples", "size", "bounds"), BOUNDS)
def test_batches_hold_every_sample_once(samples, size, bounds):
    assert batch_bounds(samples, size) == bounds


OPTIMIZERS = [
    ({"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, torch.optim.SGD),
    ({"name": "adam", "weight_decay": 0.1}, torch.optim.Adam),
    ({"name": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
]


@pytest.mark.parametrize(("settings", "kind"), OPTIMIZERS)
def test_optimizer_gets_every_option(settings, kind):
    optimizer = make_optimizer(OptimizerConfig(lr=0.25, **settings), nn.Linear(2, 2))
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert group["lr"] == 0.25
    assert {k: group[k] for k in settings if k != "name"} == {
        k: v for k, v in settings.items() if k != "name"
    }
    assert len(group["params"]) == 2


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_weight_decay_of_weights_only(name):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    settings = OptimizerConfig(name=name, weight_decay=0.1, decay="weights")
    decayed, spared = make_optimizer(settings, model).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert [p.ndim for p in decayed["params"]] == [4, 2]
    assert [p.ndim for p in spared["params"]] == [1, 1, 1, 1]


def test_a_network_without_biases_has_one_group():
    settings = OptimizerConfig(weight_decay=0.1, decay="weights")
    assert len(make_optimizer(settings, nn.Linear(2, 2, bias=False)).param_groups) == 1


def test_frozen_parameters_are_left_out():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert len(make_optimizer(OptimizerConfig(), model).param_groups[0]["params"]) == 1
