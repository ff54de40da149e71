"""Counter-based mask bits: the specification, its digits and the NumPy reference."""

from bayes_dc.rng.reference import (
    dropout_key,
    dropout_masks,
    layer_key,
    mask_words,
    masks,
    normals,
    philox4x32,
)
from bayes_dc.rng.spec import (
    KNOWN_ANSWERS,
    SPEC_VERSION,
    KeepDigits,
    check_layer,
    check_p,
    check_seed,
    keep_digits,
)

__all__ = [
    "KNOWN_ANSWERS",
    "SPEC_VERSION",
    "KeepDigits",
    "check_layer",
    "check_p",
    "check_seed",
    "dropout_key",
    "dropout_masks",
    "keep_digits",
    "layer_key",
    "mask_words",
    "masks",
    "normals",
    "philox4x32",
]
