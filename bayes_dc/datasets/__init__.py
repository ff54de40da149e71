"""Data sets behind one interface: digits, MNIST and look-alikes, CIFAR, SVHN, image folders."""

from bayes_dc.datasets.images import read_image
from bayes_dc.datasets.load import load_dataset
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
    "read_image",
]
