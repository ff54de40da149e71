"""What the tests of strides rest on."""

import pytest
import torch
from harness import BACKENDS, Shape, make_case, moved

WHOLE = torch.arange(120.0).view(2, 3, 4, 5)
VIEWS = {
    "whole": WHOLE,
    "every other column": WHOLE[..., 1::2],
    "transposed": WHOLE.transpose(1, 3),
    "expanded": WHOLE[:1, :, :1].expand(7, 3, 4, 5),
    "overlapping": WHOLE.flatten().unfold(0, 16, 3),
    "empty": WHOLE[:, 3:],
    "bfloat16": WHOLE.bfloat16()[1:, ..., 2:],
    "ids": torch.arange(9)[1::3],
}


@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", VIEWS)
def test_a_moved_view_keeps_its_place(name, device):
    """Shape, strides and offset, where ``to`` gives most of them those of a new tensor."""
    view = VIEWS[name]
    got = moved(view, device)
    assert (got.device.type, got.dtype, got.shape) == (device, view.dtype, view.shape)
    assert (got.stride(), got.storage_offset()) == (view.stride(), view.storage_offset())
    assert got.untyped_storage().nbytes() == view.untyped_storage().nbytes()
    if device != "meta":
        assert torch.equal(got.cpu(), view)


@pytest.mark.parametrize("backend", BACKENDS)
def test_launchers_see_the_strides_of_a_case(backend, monkeypatch):
    """On every device: what is launched is where the case has it."""
    seen = []

    def launch(*tensors, **_):
        seen.append([t.stride() for t in tensors[:-1]])

    monkeypatch.setattr("harness.launchers", lambda _: (launch,) * 3)
    case = make_case(Shape(2, 3, 4, 5, 6))
    case.x = case.x[:1].expand(2, 3, 4, 6)
    case.gy = case.gy.transpose(0, 1).contiguous().transpose(0, 1)
    case.w = case.w.t().contiguous().t()
    case.b = case.b[:1].expand(5)
    case.sample_ids = torch.arange(6)[::2]
    case.pass_ids = torch.zeros(1, dtype=torch.int64).expand(2)
    case.run(backend)
    x, w, gy, b, s, p = (
        t.stride() for t in (case.x, case.w, case.gy, case.b, case.sample_ids, case.pass_ids)
    )
    assert seen == [[x, w, b, (1,), s, p], [gy, w, (1,), s, p], [gy, x, (1,), s, p]]
