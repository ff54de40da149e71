"""Which tensors TMA can read in place, and what it is told about them."""

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
_hopper = pytest.importorskip("bayes_dc.ops._hopper")

ROWS = torch.zeros(2, 3, 4, 64, dtype=torch.bfloat16)
WIDE = torch.zeros(4, 100, dtype=torch.bfloat16)
WINDOWS = torch.zeros(4096, dtype=torch.bfloat16).unfold(0, 64, 8)
DESCRIBED = {
    "contiguous": (ROWS, [2, 3, 4, 64], [768, 256, 64, 1]),
    "passes share": (ROWS[:1].expand(5, -1, -1, -1), [1, 3, 4, 64], [256, 256, 64, 1]),
    "samples share": (ROWS[:, :1].expand(-1, 5, -1, -1), [2, 1, 4, 64], [768, 256, 64, 1]),
    "swapped": (ROWS.transpose(0, 1), [3, 2, 4, 64], [256, 768, 64, 1]),
    "columns of 48 bytes": (ROWS[..., 8:32], [2, 3, 4, 24], [768, 256, 64, 1]),
    "short rows": (ROWS[..., :10], [2, 3, 4, 10], [768, 256, 64, 1]),
    "weights": (torch.zeros(6, 8), [6, 8], [8, 1]),
    "one row of a wide tensor": (WIDE[:1, :64], [1, 64], [64, 1]),
    "one short row": (torch.zeros(10, 64)[:1, :10], [1, 10], [12, 1]),
    "one row, twice": (WIDE[:1, :64].expand(2, 1, 1, 64), [1, 1, 1, 64], [64, 64, 64, 1]),
    "one row of every sample": (ROWS[:, :, :1], [2, 3, 1, 64], [768, 256, 64, 1]),
    "one column": (torch.zeros(6, 8)[:, :1], [6, 1], [8, 1]),
}
REFUSED = {
    "every second column": ROWS[..., ::2],
    "from the second column": ROWS[..., 1:],
    "one row for all": ROWS[:, :, :1].expand(2, 3, 4, 64),
    "rows of 20 bytes": torch.zeros(2, 3, 4, 10, dtype=torch.bfloat16),
    "rows of 28 bytes": torch.zeros(6, 7),
    "rows of 200 bytes": WIDE[:2, :64],
    "transposed": torch.zeros(8, 6).T,
    "overlapping windows": WINDOWS,
    "overlapping windows of samples": WINDOWS[:500].view(1, 5, 100, 64),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_a_tensor_map_says(name):
    t, shape, strides = DESCRIBED[name]
    assert _hopper.by_tma(t)
    found = _hopper.describe(t, 64, 64)
    assert (found.shape, found.strides) == (shape, strides)
    assert found.block_shape == [1] * (t.dim() - 2) + [64, 64]


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_tensor_map_can_say(name):
    assert not _hopper.by_tma(REFUSED[name])


@pytest.mark.parametrize(
    ("x", "stride"),
    [
        (torch.empty(2, 3, 1, 8), 8),
        (torch.empty(2, 3, 4, 8), 8),
        (torch.empty(1, 3, 1, 16)[..., :8], 16),
        (torch.empty(2, 6, 1, 8)[:, ::2], 16),
        (torch.empty(2, 6, 1, 8)[:, :3], None),  # passes are further apart than rows
        (torch.empty(1, 3, 1, 8).expand(2, 3, 1, 8), None),
        (WINDOWS[None, :, None], 8),
        (torch.empty(6, 8), 8),
    ],
)
def test_distance_of_the_rows(x, stride):
    """Rows of all passes and samples as one matrix, in place."""
    rows = _hopper.rows_of(x)
    if stride is None:
        assert rows is None
        return
    assert rows.shape == (x.shape[:-1].numel(), x.shape[-1])
    assert _hopper.row_stride(rows) == stride
    assert rows.data_ptr() == x.data_ptr()
    assert rows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_one_row_of_any_distance():
    """Described as the 16-byte rows it does not have."""
    rows = _hopper.rows_of(WIDE[None, :1, None, :60])
    found = _hopper.describe(rows, 64, 64)
    assert _hopper.by_tma(rows)
    assert (found.shape, found.strides) == ([1, 60], [64, 1])


def test_rows_are_those_of_the_tensor():
    x = torch.arange(96.0).view(2, 6, 1, 8)[:, ::2]
    assert torch.equal(_hopper.rows_of(x), x.reshape(6, 8))


IMAGES = torch.zeros(2, 3, 6, 4, 64, dtype=torch.bfloat16)
IMAGE_MAPS = {
    "contiguous": (IMAGES, 1, 3, [6, 6, 1, 4, 64], [1536, 256, 256, 64, 1]),
    "every second position": (IMAGES, 2, 3, [6, 3, 2, 2, 128], [1536, 512, 256, 128, 1]),
    "passes share": (IMAGES[:1].expand(5, *IMAGES.shape[1:]), 1, 0, [3, 6, 1, 4, 64], None),
    "one image of each pass": (IMAGES[:, 1:2], 1, 1, [2, 6, 1, 4, 64], [4608, 256, 256, 64, 1]),
    "one image": (IMAGES[:1, :1], 1, 0, [1, 6, 1, 4, 64], None),
    "some channels": (IMAGES[..., 8:48], 1, 3, [6, 6, 1, 4, 40], [1536, 256, 256, 64, 1]),
    "one position": (IMAGES[:, :, :1, :1], 1, 3, [6, 1, 1, 1, 64], [1536, 64, 64, 64, 1]),
}
NO_IMAGE_MAPS = {
    "images of passes at another distance": (IMAGES[:, :2], 1),
    "one image for all": (IMAGES[:, :1].expand(-1, 3, -1, -1, -1), 1),
    "channels first": (torch.zeros(2, 3, 64, 6, 4).permute(0, 1, 3, 4, 2), 1),
    "from the second channel": (IMAGES[..., 1:], 1),
    "channels of 24 bytes": (torch.zeros(2, 3, 6, 4, 12, dtype=torch.bfloat16), 1),
    "an odd number of columns, by phase": (torch.zeros(2, 3, 6, 5, 64), 2),
    "some channels, by phase": (IMAGES[..., :32], 2),
    "overlapping columns": (torch.zeros(2, 3, 6, 200).unfold(3, 64, 8), 1),
}


@pytest.mark.parametrize("name", IMAGE_MAPS)
def test_what_a_tensor_map_of_images_says(name):
    t, stride, per_pass, shape, strides = IMAGE_MAPS[name]
    assert _hopper.images_by_tma(t, stride)
    found, number = _hopper.describe_images(t, (2, 4, 4), 64, stride)
    assert (found.shape, number) == (shape, per_pass)
    assert found.strides == (strides or [1536, 256, 256, 64, 1])
    assert found.block_shape == [2, 4, 1, 4, 64]


@pytest.mark.parametrize("name", NO_IMAGE_MAPS)
def test_what_no_tensor_map_of_images_can_say(name):
    t, stride = NO_IMAGE_MAPS[name]
    assert not _hopper.images_by_tma(t, stride)


def test_weights_of_a_tap():
    found = _hopper.describe_taps(torch.zeros(6, 3, 2, 8), 64, 32)
    assert (found.shape, found.strides) == ([6, 6, 8], [48, 8, 1])
    assert found.block_shape == [64, 1, 32]
