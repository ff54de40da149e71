"""The 1797 handwritten digits that ship inside scikit-learn: 8 × 8 pixels, 17 grey levels.

scikit-learn names no test set. Ours is the 20 % of every class whose index has the smallest
SHA-256, so it depends on nothing that a library version could change.
"""

from hashlib import sha256

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from bayes_dc.datasets.split import ArraySplit, Normalisation

CLASS_NAMES = tuple("0123456789")
STANDARD = Normalisation((0.3056,), (0.3760,))
TEST_FRACTION = 0.2


def load(normalisation: Normalisation) -> tuple[ArraySplit, ArraySplit]:
    """Return the training and the test split.

    Args:
        normalisation: Constants of the float batches.

    Returns:
        Splits of 1438 and 359 samples; grey levels 0 … 16 are scaled to 0 … 255.
    """
    digits = load_digits()
    images = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    in_test = _test_mask(labels)
    parts = []
    for chosen, name in ((~in_test, "digits (train)"), (in_test, "digits (test)")):
        parts.append(ArraySplit(images[chosen], labels[chosen], CLASS_NAMES, normalisation, name))
    return parts[0], parts[1]


def _test_mask(labels: Tensor) -> Tensor:
    """Return which samples are test samples, bool ``[n]``."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(len(CLASS_NAMES)):
        members = torch.nonzero(labels == label).flatten().tolist()
        members.sort(key=lambda i: sha256(f"digits {i}".encode()).digest())
        chosen[members[: round(TEST_FRACTION * len(members))]] = True
    return chosen
