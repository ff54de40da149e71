"""Arguments that the public function refuses, and what it says."""

import pytest
import torch

from bayes_dc.ops import dropconnect_conv2d
from bayes_dc.types import MaskKey

X, W, B = torch.zeros(4, 6, 8, 7), torch.zeros(4, 6, 3, 3), torch.zeros(4)
IDS = torch.arange(4)

CHANNELS = "x must have 6 channels for weight [4, 6, 3, 3] and groups=1; got 5"
PAIR = "must be an integer or a pair of integers, each at least"
EIGHT_BITS = {name: t.to(torch.float8_e4m3fn) for name, t in (("x", X), ("weight", W), ("bias", B))}
BAD = [
    (ValueError, "p must be a drop probability in [0, 1); got 1.0", {"p": 1.0}),
    (TypeError, "p must be a real number in [0, 1)", {"p": "0.5"}),
    (TypeError, "x must be a torch.Tensor; got ndarray. Wrap it", {"x": X.numpy()}),
    (TypeError, "weight must be a torch.Tensor; got NoneType", {"weight": None}),
    (TypeError, "bias must be a torch.Tensor; got list", {"bias": [0.0, 0.0]}),
    (TypeError, "x must be a floating point tensor; got torch.int64", {"x": X.long()}),
    (TypeError, "got torch.float8_e4m3fn. Convert it to float32, bfloat16, float16", EIGHT_BITS),
    (TypeError, "x must be a dense tensor; got layout torch.sparse_coo", {"x": X.to_sparse()}),
    (TypeError, "Convert it: weight.to_dense().", {"weight": W.to_sparse()}),
    (ValueError, "x must have shape [rows, C, H, W] or [C, H, W]; got [8, 7]", {"x": X[0, 0]}),
    (ValueError, "got [1, 4, 6, 8, 7]", {"x": X[None]}),
    (ValueError, CHANNELS, {"x": X[:, :5]}),
    (ValueError, "groups=2; got 6", {"groups": 2}),
    (ValueError, "weight must have shape [N, C / groups, KH, KW]", {"weight": W[0]}),
    (ValueError, "N, KH and KW at least 1; got [4, 6, 3, 0]", {"weight": W[..., :0]}),
    (ValueError, "bias must have shape [4]; got [3]", {"bias": B[:3]}),
    (ValueError, "x, weight and bias must have one dtype", {"x": X.double()}),
    (ValueError, "must be on one device", {"weight": W.to("meta")}),
    (ValueError, "groups must be a positive integer that divides the outputs, 4", {"groups": 3}),
    (ValueError, "got 0", {"groups": 0}),
    (ValueError, "got 1.0", {"groups": 1.0}),
    (ValueError, f"stride {PAIR} 1; got 0", {"stride": 0}),
    (ValueError, "got (1, 2, 3)", {"stride": (1, 2, 3)}),
    (ValueError, "got 1.5", {"stride": 1.5}),
    (ValueError, "got True", {"stride": True}),
    (ValueError, f"dilation {PAIR} 1; got (0, 1)", {"dilation": (0, 1)}),
    (ValueError, "padding must be 'same', 'valid', an integer or a pair", {"padding": "full"}),
    (ValueError, "got -1", {"padding": -1}),
    (ValueError, "got (1, -1)", {"padding": (1, -1)}),
    (ValueError, "padding='same' keeps the size", {"padding": "same", "stride": 2}),
    (ValueError, "got stride=(2, 1)", {"padding": "same", "stride": (2, 1)}),
    (ValueError, "it covers 9 × 9 pixels, and x has 8 × 7, padding included", {"dilation": 4}),
    (ValueError, "scope must be one of ('row', 'sample', 'pass')", {"scope": "batch"}),
    (ValueError, "A convolution has scope='sample' (a mask for every image)", {"scope": "row"}),
    (ValueError, "Set scope='sample'.", {"scope": "row", "p": 0.0}),
    (ValueError, "scale must be one of ('inverted', 'none')", {"scale": "mean"}),
    (ValueError, "sampler must be one of ('bernoulli', 'gaussian')", {"sampler": "laplace"}),
    (ValueError, "the positions of an image share a mask", {"sampler": "gaussian"}),
    (ValueError, "key must be a MaskKey(seed, layer) or an int64 tensor [2]", {"key": 3}),
    (ValueError, "seed must be an integer in 0 … 2**64 − 1; got -1", {"key": MaskKey(-1)}),
    (ValueError, "sample_ids must be an int64 tensor", {"sample_ids": IDS.int()}),
    (ValueError, "pass_ids must be an int64 tensor", {"pass_ids": [0]}),
    (ValueError, "2 × 3 = 6, pass after pass", {"sample_ids": IDS[:3], "pass_ids": IDS[:2]}),
    (ValueError, "and x has 4,\nwhich is no multiple of 3.", {"pass_ids": IDS[:3]}),
    (ValueError, "sample_ids=torch.arange(1, device=x.device)", {"x": X[0], "pass_ids": IDS[:2]}),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD)
def test_errors_teach(error, text, change):
    arguments = {"x": X, "weight": W, "bias": B, "key": MaskKey(1)} | change
    x, weight, bias = (arguments.pop(name) for name in ("x", "weight", "bias"))
    with pytest.raises(error) as caught:
        dropconnect_conv2d(x, weight, bias, **arguments)
    assert text in str(caught.value)


def test_numbers_in_one_element_are_pairs():
    """As ``F.conv2d`` takes them."""
    got = dropconnect_conv2d(X + 1, W + 1, B, (2,), [1], (1,), key=MaskKey(0))
    assert torch.equal(got, dropconnect_conv2d(X + 1, W + 1, B, 2, (1, 1), key=MaskKey(0)))
