"""Data sets behind one interface: digits, MNIST's family, CIFAR, SVHN, image folders, npz files.

And what may happen to their test images: ``apply_shift``, ``rotate``; votes of people about them.
"""

from bayes_dc.datasets.images import read_image
from bayes_dc.datasets.load import load_dataset, load_test_split
from bayes_dc.datasets.settings import DataConfig, DatasetName, PathText, Scaling, Settings
from bayes_dc.datasets.shifts import ANGLES, SHIFTS, Shift, apply_shift, rotate
from bayes_dc.datasets.split import ArraySplit, DatasetBundle, DatasetError, Normalisation, Split
from bayes_dc.datasets.votes import load_votes

__all__ = [
    "ANGLES",
    "SHIFTS",
    "ArraySplit",
    "DataConfig",
    "DatasetBundle",
    "DatasetError",
    "DatasetName",
    "Normalisation",
    "PathText",
    "Scaling",
    "Settings",
    "Shift",
    "Split",
    "apply_shift",
    "load_dataset",
    "load_test_split",
    "load_votes",
    "read_image",
    "rotate",
]
