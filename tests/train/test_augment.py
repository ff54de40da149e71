"""Changed images: what a batch becomes, and that nothing but seed, epoch and sample decides it."""

import numpy as np
import pytest
import torch

from bayes_dc.train import AugmentConfig, TrainingError
from bayes_dc.train.augment import Augmentation

CPU = torch.device("cpu")
BOTH = AugmentConfig(shift=3, flip=True)
ALL = AugmentConfig(shift=3, flip=True, cutout=2)


def images(samples=40, channels=2, height=5, width=6):
    count = samples * channels * height * width
    return torch.arange(float(count)).reshape(samples, channels, height, width)


def changed(settings, x, indices=None, *, samples=40, seed=1, epoch=0):
    indices = torch.arange(len(x)) if indices is None else indices
    return Augmentation(settings, samples, seed, epoch, CPU)(x, indices)


def by_hand(image, moves, shift):
    """What one image becomes: mirrored, padded by reflection, cut out."""
    down, across, flip = moves
    image = image[:, :, ::-1] if flip else image
    padded = np.pad(image, ((0, 0), (shift, shift), (shift, shift)), mode="reflect")
    height, width = image.shape[1:]
    top, left = shift + down, shift + (-across if flip else across)
    return padded[:, top : top + height, left : left + width]


@pytest.mark.parametrize("settings", [BOTH, AugmentConfig(shift=1), AugmentConfig(flip=True)])
def test_every_image_is_moved_and_mirrored(settings):
    x = images()
    change = Augmentation(settings, len(x), 1, 0, CPU)
    y = change(x, torch.arange(len(x)))
    for i, moves in enumerate(change.moves.tolist()):
        assert np.array_equal(y[i].numpy(), by_hand(x[i].numpy(), moves, settings.shift)), moves


def test_moves_are_as_many_as_asked_for_and_equally_likely():
    moves = Augmentation(BOTH, 70_000, 0, 0, CPU).moves
    for column, values in ((0, range(-3, 4)), (1, range(-3, 4)), (2, range(2))):
        counts = torch.tensor([(moves[:, column] == v).sum() for v in values])
        assert int(counts.sum()) == 70_000
        chi2 = float(((counts - 70_000 / len(values)) ** 2).sum() / (70_000 / len(values)))
        free = len(values) - 1
        assert chi2 < free + 5 * (2 * free) ** 0.5


def test_only_what_is_asked_for_is_done():
    assert not Augmentation(AugmentConfig(shift=2), 99, 0, 0, CPU).moves[:, 2].any()
    assert not Augmentation(AugmentConfig(flip=True), 99, 0, 0, CPU).moves[:, :2].any()
    assert (AugmentConfig().is_on, BOTH.is_on, AugmentConfig(cutout=1).is_on) == (False, True, True)


@pytest.mark.parametrize("side", [1, 2, 3])
def test_holes_are_squares_around_any_pixel(side):
    settings = AugmentConfig(shift=3, flip=True, cutout=side)
    x = images() + 1
    cut, whole = changed(settings, x), changed(BOTH, x)
    change = Augmentation(settings, len(x), 1, 0, CPU)
    for i, (down, across) in enumerate(change.holes.tolist()):
        top, left = int(down * 5) - side // 2, int(across * 6) - side // 2
        expected = whole[i].clone()
        expected[:, max(top, 0) : top + side, max(left, 0) : left + side] = 0
        assert torch.equal(cut[i], expected)
    assert len({(int(a * 5), int(b * 6)) for a, b in change.holes.tolist()}) > 15


def test_a_sample_is_changed_alike_in_every_batch():
    x = images()
    whole = changed(ALL, x)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for chosen in order.split(7):
        assert torch.equal(changed(ALL, x[chosen], chosen), whole[chosen])


def test_seed_and_epoch_decide_and_no_generator_is_touched():
    x = images()
    state = torch.get_rng_state()
    results = [changed(ALL, x, seed=s, epoch=e) for s, e in ((1, 0), (1, 0), (2, 0), (1, 1))]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[3])


def test_result_is_channels_last():
    assert changed(ALL, images()).is_contiguous(memory_format=torch.channels_last)


def test_shift_beyond_the_image_is_refused(make_run):
    with pytest.raises(TrainingError) as caught:
        make_run(augment={"shift": 3}).fit()
    text = "train.augment.shift must be below the side of the images, 3 pixels; got 3."
    assert str(caught.value) == text


def test_training_sees_changed_images_and_evaluation_does_not(make_run, monkeypatch):
    run = make_run("a", epochs=2, augment={"shift": 1, "flip": True}, batch_size=23)
    batches = []
    real = type(run.model).forward

    def forward(self, x):
        batches.append((self.training, x.clone()))
        return real(self, x)

    monkeypatch.setattr(type(run.model), "forward", forward)
    run.fit()
    epochs = [x for training, x in batches if training]
    evaluated = [x for training, x in batches if not training]
    clean = run.data.train.batch(torch.arange(23), CPU)
    held_out = run.data.validation.batch(torch.arange(11), CPU)
    assert len(epochs) == len(evaluated) == 2
    assert all(torch.equal(x, held_out) for x in evaluated)

    def as_rows(x):
        return {tuple(row) for row in x.flatten(1).tolist()}

    assert as_rows(epochs[0]) != as_rows(epochs[1])
    assert not as_rows(epochs[0]) <= as_rows(clean)
