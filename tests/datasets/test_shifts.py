"""Shifts: what each does exactly, and that an image's result does not depend on its batch."""

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from bayes_dc.datasets import ANGLES, SHIFTS, _shift_noise, apply_shift, rotate, shifts
from bayes_dc.datasets._shift_detail import disk_kernel

DRAWN = [name for name, shift in SHIFTS.items() if shift.draws]


def pictures(n=6, side=28, channels=1, seed=0):
    """Smooth blobs, so that blurs and turns have something to do."""
    rng = np.random.default_rng(seed)
    rough = rng.random((n, side, side, channels))
    smooth = ndimage.gaussian_filter(rough, (0, 2, 2, 0))
    low, high = smooth.min(), smooth.max()
    return np.rint(255 * (smooth - low) / (high - low)).astype(np.uint8)


def stroke(channels=1):
    """A line that gets thinner outwards: the further it is turned, the less it covers itself."""
    y, x = np.mgrid[-14:14, -14:14] + 0.5
    line = 255 * np.exp(-((y / 2) ** 2) - (x / 10) ** 2)
    return np.rint(np.repeat(line[None, :, :, None], channels, axis=3)).astype(np.uint8)


def distance(a, b):
    """Mean absolute difference."""
    return np.abs(a.astype(float) - b).mean()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SHIFTS)
def test_every_severity_goes_further(name, channels):
    x = stroke(channels) if name == "rotation" else pictures(12, channels=channels)
    distances = [distance(apply_shift(x, name, severity), x) for severity in shifts.SEVERITIES]
    assert distances[0] == 0
    assert distances == sorted(distances)
    assert len(set(distances)) == 6


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SHIFTS)
def test_results_are_new_pictures_of_the_same_shape(name, channels):
    x = pictures(3, side=20, channels=channels)
    before = x.copy()
    for severity in shifts.SEVERITIES:
        y = apply_shift(x, name, severity)
        assert y.shape == x.shape
        assert y.dtype == np.uint8
        assert not np.shares_memory(x, y)
    assert (x == before).all()


@pytest.mark.parametrize("name", SHIFTS)
def test_an_image_does_not_depend_on_its_batch(name):
    x = pictures(8)
    whole = apply_shift(x, name, 3, seed=5, ids=np.arange(100, 108))
    order = [6, 1, 3]
    some = apply_shift(x[order], name, 3, seed=5, ids=[106, 101, 103])
    assert (some == whole[order]).all()


@pytest.mark.parametrize("name", SHIFTS)
def test_chunks_change_nothing(name, monkeypatch):
    x = pictures(7)
    whole = apply_shift(x, name, 4)
    monkeypatch.setattr(shifts, "CHUNK_ELEMENTS", 2 * x[0].size)
    assert (apply_shift(x, name, 4) == whole).all()


@pytest.mark.parametrize("name", SHIFTS)
def test_what_is_drawn_depends_on_seed_id_and_severity(name):
    x = np.repeat(pictures(1), 2, axis=0)
    same = apply_shift(x, name, 3, seed=1, ids=[7, 7])
    assert (same[0] == same[1]).all()
    others = [
        apply_shift(x, name, 3, seed=1, ids=[7, 8])[1],
        apply_shift(x, name, 3, seed=2, ids=[7, 8])[0],
        apply_shift(x, name, 3, seed=1, ids=[7, 2**62])[1],
    ]
    for other in others:
        assert (other != same[0]).any() == (name in DRAWN)


def test_no_two_severities_or_shifts_share_their_noise():
    """The same constant under two severities draws other numbers: the key holds both."""
    first = shifts._rng(0, "shot_noise", 1, 0).random(4)
    for name, severity in (("shot_noise", 2), ("gaussian_noise", 1)):
        assert (shifts._rng(0, name, severity, 0).random(4) != first).all()


def test_the_global_generator_is_left_alone():
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the one that must not move
    apply_shift(pictures(), "gaussian_noise", 3)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


@pytest.mark.parametrize(("severity", "pixels"), list(enumerate((2, 4, 6, 8, 10), 1)))
def test_translation_moves_every_pixel(severity, pixels):
    x = pictures(3, channels=3)
    y = apply_shift(x, "translation", severity)
    assert (y[:, :, pixels:] == x[:, :, :-pixels]).all()
    assert (y[:, :, :pixels] == x[:, :, -pixels:]).all()


@pytest.mark.parametrize(("severity", "amount"), list(enumerate((0.05, 0.1, 0.15, 0.2, 0.3), 1)))
def test_brightness_of_grey_adds(severity, amount):
    x = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    want = np.rint(np.minimum(x + 255 * amount, 255))
    assert (apply_shift(x, "brightness", severity) == want).all()


def test_brightness_keeps_hue_and_saturation():
    """Black becomes grey; a colour keeps the ratio of its channels."""
    x = np.array([[0, 0, 0], [100, 50, 0], [10, 20, 30]], np.uint8).reshape(1, 1, 3, 3)
    y = apply_shift(x, "brightness", 4)  # adds 0.2 · 255 = 51
    want = np.rint([[51, 51, 51], [151, 75.5, 0], [27, 54, 81]])
    assert (y.reshape(3, 3) == want).all()


def test_contrast_pulls_towards_the_mean_of_a_channel():
    x = np.zeros((1, 2, 2, 3), np.uint8)
    x[0, :, :, 0], x[0, 0, 0, 1] = 200, 100  # means 200, 25, 0
    y = apply_shift(x, "contrast", 2)  # half of the contrast is left
    assert (y[0, :, :, 0] == 200).all()
    assert y[0, 0, 0, 1] == 62  # 25 + 75 / 2 = 62.5, halves to even
    assert y[0, 1, 1, 1] == 12  # 25 / 2 = 12.5
    assert (y[0, :, :, 2] == 0).all()


def moments(name, severity, level, n=400):
    """Mean and deviation over many draws on a flat picture, before rounding."""
    flat = np.full((n, 10, 10, 1), level, np.uint8)
    constant = SHIFTS[name].constants[severity - 1]
    change = SHIFTS[name].change
    drawn = [change(f, constant, shifts._rng(0, name, severity, i)) for i, f in enumerate(flat)]
    return np.concatenate([d.ravel() for d in drawn])


@pytest.mark.parametrize("severity", [1, 5])
def test_gaussian_noise_has_the_stated_deviation(severity):
    drawn = moments("gaussian_noise", severity, 128)
    sigma = 255 * SHIFTS["gaussian_noise"].constants[severity - 1]
    error = sigma / np.sqrt(drawn.size)
    assert abs(drawn.mean() - 128) < 4 * error
    # the standard error of a normal deviation is σ / √(2 n)
    assert abs(drawn.std() - sigma) < 4 * error / np.sqrt(2)


@pytest.mark.parametrize("severity", [1, 5])
def test_shot_noise_counts_photons(severity):
    """Of a Poisson number the variance is the mean."""
    drawn = moments("shot_noise", severity, 51)  # a fifth of full brightness
    photons = SHIFTS["shot_noise"].constants[severity - 1]
    counted = drawn / 255 * photons
    assert np.abs(counted - np.rint(counted)).max() < 1e-9
    mean = photons / 5
    assert abs(counted.mean() - mean) < 4 * np.sqrt(mean / counted.size)
    spread = np.sqrt((2 * mean**2 + mean) / counted.size)  # standard error of the variance
    assert abs(counted.var() - mean) < 4 * spread


@pytest.mark.parametrize("severity", [1, 5])
def test_impulse_noise_hits_the_stated_share(severity):
    drawn = moments("impulse_noise", severity, 100)
    share = SHIFTS["impulse_noise"].constants[severity - 1]
    error = np.sqrt(share / drawn.size)
    assert set(np.unique(drawn)) == {0.0, 100.0, 255.0}
    for level in (0, 255):
        assert abs((drawn == level).mean() - share / 2) < 4 * error


def test_noise_follows_numpys_generator():
    """Formulas of make_cifar_c.py on the same draws."""
    x = pictures(1)[0]
    rng = np.random.default_rng(3)
    got = _shift_noise.gaussian_noise(x, 0.08, np.random.default_rng(3))
    want = 255 * (x / 255 + rng.normal(size=x.shape, scale=0.08))
    assert np.abs(got - want).max() < 1e-10


@pytest.mark.parametrize("channels", [1, 3])
def test_gaussian_blur_is_a_separable_convolution(channels):
    x, sigma = pictures(2, channels=channels), 1.0
    reach = np.arange(-4, 5)
    line = np.exp(-(reach**2) / (2 * sigma**2))
    line /= line.sum()
    want = x.astype(float)
    for axis in (1, 2):
        padded = np.pad(want, [(4, 4) if a == axis else (0, 0) for a in range(4)], mode="edge")
        parts = [w * np.take(padded, range(k, k + 28), axis) for k, w in enumerate(line)]
        want = np.sum(parts, axis=0)
    assert np.abs(apply_shift(x, "gaussian_blur", 5) - want).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(("radius", "edge"), SHIFTS["defocus_blur"].constants)
def test_the_disk_is_that_of_the_published_code(radius, edge):
    """A hard disk on a grid of −8 … 8, then OpenCV's 3 × 3 Gaussian; here without OpenCV."""
    y, x = np.mgrid[-8:9, -8:9]
    hard = (x**2 + y**2 <= radius**2).astype(float)
    hard /= hard.sum()
    line = np.exp(-np.array([1.0, 0, 1]) / (2 * edge**2))
    line /= line.sum()
    want = np.zeros_like(hard)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            want += line[i + 1] * line[j + 1] * np.roll(hard, (i, j), axis=(0, 1))
    got = disk_kernel(radius, edge)
    reach = len(got) // 2
    inner = want[8 - reach : 9 + reach, 8 - reach : 9 + reach]
    assert inner.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(got - inner).max() < 1e-12


def test_blurs_keep_a_flat_picture():
    x = np.full((1, 16, 16, 3), 77, np.uint8)
    for name in ("gaussian_blur", "defocus_blur", "pixelate", "contrast", "translation"):
        assert (apply_shift(x, name, 5) == x).all(), name


def test_pixelate_and_jpeg_are_pillows():
    x = pictures(1, side=32, channels=3)
    picture = Image.fromarray(x[0])
    box = Image.Resampling.BOX
    want = np.asarray(picture.resize((20, 20), box).resize((32, 32), box))  # int(0.65 · 32)
    assert (apply_shift(x, "pixelate", 5)[0] == want).all()
    assert len(np.unique(apply_shift(x[..., :1], "pixelate", 5)[0, :, :, 0], axis=0)) <= 20


@pytest.mark.parametrize("channels", [1, 3])
def test_half_and_quarter_turns_are_exact(channels):
    x = pictures(3, channels=channels)
    assert (rotate(x, 0) == x).all()
    assert (rotate(x, 180) == x[:, ::-1, ::-1]).all()
    assert (rotate(x, -180) == x[:, ::-1, ::-1]).all()
    for quarters in (1, 3, -1, 5):
        assert (rotate(x, 90 * quarters) == np.rot90(x, quarters, axes=(1, 2))).all()
    assert (rotate(x[:, :20], 180) == x[:, :20][:, ::-1, ::-1]).all()


@pytest.mark.parametrize("degrees", ANGLES)
def test_turns_agree_with_scipy(degrees):
    """Bilinear as scipy's, which turns the other way; rounding may differ by one half."""
    x = pictures(2)
    want = ndimage.rotate(
        x[:, :, :, 0].astype(float), degrees, axes=(2, 1), reshape=False, order=1, mode="constant"
    )
    got = rotate(x, degrees)[:, :, :, 0]
    inside = ndimage.rotate(
        np.ones((28, 28)), degrees, reshape=False, order=1, mode="constant", cval=0
    )
    core = inside > 1 - 1e-9  # at the border scipy cuts where ours fades
    assert np.abs(got - want)[:, core].max() <= 0.5 + 1e-6


def test_rotation_is_the_shift_of_that_name():
    x = pictures(2)
    for severity, degrees in enumerate((15, 30, 45, 60, 75), 1):
        assert (apply_shift(x, "rotation", severity) == rotate(x, degrees)).all()
    assert ANGLES == (15, 30, 45, 60, 75, 90, 105, 120, 135, 150, 165, 180)


def test_no_images_give_none():
    x = np.zeros((0, 8, 8, 1), np.uint8)
    assert apply_shift(x, "gaussian_noise", 2).shape == (0, 8, 8, 1)
    assert rotate(x, 30).shape == (0, 8, 8, 1)


X = np.zeros((2, 8, 8, 1), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], "jpeg", 1), r"images must be uint8 \[N, H, W, C\].*got uint8 \[8, 8, 1\]"),
        ((X.astype(float), "jpeg", 1), "got float64"),
        ((X.repeat(2, axis=3), "jpeg", 1), r"C = 1 or 3.*got uint8 \[2, 8, 8, 2\]"),
        (([1], "jpeg", 1), "got list.*pass image\\[None\\]"),
        ((X, "fog", 1), "name must be one of rotation, translation.*got 'fog'"),
        ((X, "jpeg", 6), "severity must be an integer in 0 … 5, 0 for the clean image; got 6"),
        ((X, "jpeg", True), "got True"),
        ((X, "jpeg", 1, -1), r"seed must be an integer in 0 … 2\*\*64 − 1; got -1"),
        ((X, "jpeg", 1, 0.5), "got 0.5"),
        ((X, "jpeg", 1, 0, [1]), r"ids must hold 2 integers.*got int64 \[1\]"),
        ((X, "jpeg", 1, 0, [0, -1]), "with minimum -1"),
        ((X, "jpeg", 1, 0, [0.0, 1.0]), r"got float64 \[2\]"),
        ((X, "jpeg", 1, 0, np.array([0, 2**63], np.uint64)), "maximum 9223372036854775808"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        apply_shift(*arguments)


@pytest.mark.parametrize("degrees", [float("nan"), float("inf"), "30", True])
def test_refused_angles(degrees):
    with pytest.raises(ValueError, match="degrees must be a finite number, counter-clockwise; got"):
        rotate(X, degrees)
