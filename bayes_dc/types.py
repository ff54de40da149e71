"""Words shared by every layer of the package; imports nothing."""

from typing import Literal, NamedTuple

__version__ = "0.1.0"

MaskScope = Literal["row", "sample", "pass"]
"""Which rows share one weight mask.

``"row"``: none, every row of every leading dimension has its own mask.
``"sample"``: the positions (tokens, pixels) of one sample in one pass.
``"pass"``: the whole batch in one pass.
"""

MaskScale = Literal["inverted", "none"]
"""``"inverted"`` divides the masked product by the keep probability, ``"none"`` does not."""

Sampler = Literal["bernoulli", "gaussian"]
"""How the layer's output is drawn.

``"bernoulli"``: every weight is masked.
``"gaussian"``: from the normal distribution with the mean and variance of the masked product.
"""

GAUSSIAN_SCOPE = (
    "sampler='gaussian' needs scope='row'; got scope={got!r}. It draws every row on its own, and "
    "rows that share a mask are correlated. Set scope='row', or sampler='bernoulli' to share masks."
)
"""Text of the error for a scope that cannot be matched by its moments."""

CONV_SCOPE = (
    "A convolution has scope='sample' (a mask for every image) or 'pass'; got scope={got!r}. Its "
    "positions share the weights of an image, so no row has its own mask. Set scope='sample'."
)
"""Text of the error for a scope that convolutions do not have."""

CONV_SAMPLER = (
    "A convolution has sampler='bernoulli' only; got sampler={got!r}. The Gaussian sampler draws "
    "every output on its own, and the positions of an image share a mask, so they are correlated."
)
"""Text of the error for a sampler that convolutions do not have."""

Link = Literal["softmax", "identity"]
"""What turns a model's output into class probabilities."""


def torch_seed(seed: int) -> int:
    """What to seed a generator of torch with, so that all bits of a seed count.

    That of the CPU reads the low 32 bits of a number only: 7 and 7 + 2**32 would draw the same.

    Args:
        seed: Unsigned 64-bit seed.

    Returns:
        32 bits: the seed itself below 2**32; above, seeds with equal low bits give other numbers.
    """
    high, low = seed >> 32, seed & 0xFFFFFFFF
    return low ^ (high * 0x9E3779B1 & 0xFFFFFFFF)  # odd: other high bits, another product


class MaskKey(NamedTuple):
    """Names one stream of masks.

    Attributes:
        seed: Unsigned 64-bit seed of the run.
        layer: Unsigned 32-bit number of the layer in its model.
    """

    seed: int
    layer: int = 0
