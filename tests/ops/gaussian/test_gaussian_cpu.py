"""The CPU kernel where a process was forked."""

import os
import signal
import warnings

import pytest
import torch

from bayes_dc.ops import dropconnect_linear
from bayes_dc.types import MaskKey


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_forked_child_draws_as_its_parent(dtype):
    """OpenMP's threads do not exist in a child: nothing may wait for them."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 512, generator=generator).to(dtype) for n in (100, 512))

    def draw():
        return dropconnect_linear(x, w, key=MaskKey(seed=0), sampler="gaussian")

    want = draw()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python ≥ 3.12 warns of any such fork
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if bytes(draw().untyped_storage()) == bytes(want.untyped_storage()) else 1)
    assert os.waitpid(child, 0)[1] == 0
