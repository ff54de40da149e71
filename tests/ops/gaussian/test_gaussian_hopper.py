"""Which rows a tensor map can describe."""

import pytest
import torch

pytest.importorskip("triton", reason="the launcher imports triton")
hopper = pytest.importorskip("bayes_dc.ops.gaussian.triton_hopper")
producers = pytest.importorskip("bayes_dc.ops.gaussian.triton_producers")


@pytest.mark.parametrize(
    ("x", "stride"),
    [
        (torch.empty(2, 3, 1, 8), 8),
        (torch.empty(2, 3, 4, 8), 8),
        (torch.empty(1, 3, 1, 16)[..., :8], 16),
        (torch.empty(2, 6, 1, 8)[:, ::2], 16),
        (torch.empty(2, 6, 1, 8)[:, :3], 0),  # passes are further apart than rows
        (torch.empty(1, 3, 1, 8).expand(2, 3, 1, 8), 0),
        (torch.empty(1, 1, 1, 8), 16),  # one row: any distance
        (torch.empty(6, 8), 8),
    ],
)
def test_distance_of_the_rows(x, stride):
    assert producers.row_stride(x) == stride


@pytest.mark.parametrize(
    ("x", "fits"),
    [
        (torch.empty(6, 8), True),
        (torch.empty(6, 7), False),  # 28 bytes
        (torch.empty(6, 8, dtype=torch.bfloat16), True),
        (torch.empty(6, 12, dtype=torch.bfloat16), False),  # 24 bytes
        (torch.empty(6, 9)[:, 1:], False),
        (torch.empty(8, 6).T, False),
    ],
)
def test_alignment(x, fits):
    assert producers.by_tma(x) == fits


def test_not_on_the_cpu():
    x, w = torch.empty(1, 40_000, 1, 8), torch.empty(1024, 8)
    assert not hopper.suits_hopper(x, w, w, torch.empty(1, 40_000, 1, 1024))
