"""The window of losses: what goes in on the device comes out in order, once."""

import math

import torch

from bayes_dc.train.progress import LossWindow, StepLoss


def test_window_gives_back_what_it_held_and_starts_again():
    window = LossWindow(3, torch.device("cpu"))
    true, false = torch.tensor(True), torch.tensor(False)
    for step, (loss, finite) in enumerate([(0.5, true), (math.nan, false), (2.0, None)]):
        assert not window.is_full()
        window.add(step, 4 + step, torch.tensor(loss), torch.tensor(step), finite)
    assert window.is_full()
    first, second, third = window.drain()
    assert first == StepLoss(step=0, samples=4, loss=0.5, correct=0, finite=True)
    assert (second.is_bad, second.correct, second.finite) == (True, 1, False)
    assert third == StepLoss(step=2, samples=6, loss=2.0, correct=2, finite=True)
    window.add(3, 1, torch.tensor(1.5), torch.tensor(1), None)
    assert not window.is_full()
    assert window.drain() == [StepLoss(step=3, samples=1, loss=1.5, correct=1, finite=True)]
    assert window.drain() == []
