"""What all operators share when they are registered."""

import pytest

from bayes_dc.ops._register import importing_triton


def test_a_missing_triton_says_what_to_do():
    with pytest.raises(ImportError) as caught, importing_triton():
        raise ModuleNotFoundError("No module named 'triton'")
    assert str(caught.value) == (
        "A CUDA tensor needs triton, which could not be imported (No module named 'triton').\n"
        "Install it (pip install triton) or move the model and its input to the CPU.\n"
    )
