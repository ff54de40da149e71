"""Data sets behind one interface: digits, MNIST's family, CIFAR, SVHN, image folders, npz files."""

from bayes_dc.datasets.images import read_image
from bayes_dc.datasets.load import load_dataset, load_test_split
from bayes_dc.datasets.settings import DataConfig, DatasetName, PathText, Scaling, Settings
from bayes_dc.datasets.split import ArraySplit, DatasetBundle, DatasetError, Normalisation, Split

__all__ = [
    "ArraySplit",
    "DataConfig",
    "DatasetBundle",
    "DatasetError",
    "DatasetName",
    "Normalisation",
    "PathText",
    "Scaling",
    "Settings",
    "Split",
    "load_dataset",
    "load_test_split",
    "read_image",
]
