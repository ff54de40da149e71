"""Votes of several people about each image of a test set, such as CIFAR-10H; files of the user.

CIFAR-10H is not part of this package and is never downloaded: its licence (CC BY-NC-SA 4.0) allows
non-commercial use only. Get ``cifar10h-counts.npy`` from github.com/jcpeterson/cifar-10h.

Source: Peterson et al. 2019, ICCV, arXiv 1908.07086.
"""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayes_dc.datasets.split import DatasetError

LEAST_AGREEMENT = 0.5
"""Share of images for which most people voted for the label; below, votes and images are of two
sets or orders. CIFAR-10H has 0.99, votes in another order about 0.1.
"""


_HEADER_BYTES = 2**16


def load_votes(path: str | Path, labels: Tensor, classes: int) -> Tensor:
    """Read the votes about a test set.

    Args:
        path: ``.npy`` with counts ``[n, classes]``, or ``.npz`` with one such array; row i is about
            image i of the test split.
        labels: Labels of the test split, int64 ``[n]``.
        classes: Number of classes.

    Returns:
        Counts, int64 ``[n, classes]``.

    Raises:
        DatasetError: If the file cannot be read, holds something else, or its votes are about
            other images.
    """
    path = Path(os.path.expanduser(path))
    want = (len(labels), classes)
    counts = _read(path, most_bytes=8 * len(labels) * classes + _HEADER_BYTES)
    whole = counts.dtype.kind in "iu" or (
        counts.dtype.kind == "f" and bool((counts == np.floor(counts)).all())
    )
    if counts.shape != want or not whole:
        raise DatasetError(
            f"votes: {path} must hold whole numbers {list(want)}, votes about each of the "
            f"{len(labels)} test images for each class; got {counts.dtype} {list(counts.shape)}. "
            "Name the file of counts, not of shares."
        )
    if (counts < 0).any() or (counts.sum(axis=1) == 0).any():
        row = int(((counts < 0).any(axis=1) | (counts.sum(axis=1) == 0)).argmax())
        raise DatasetError(
            f"votes: {path}: image {row} has a negative number of votes or none at all."
        )
    votes = torch.from_numpy(counts.astype(np.int64))
    agreement = float((votes.argmax(dim=1) == labels).double().mean())
    if agreement < LEAST_AGREEMENT:
        raise DatasetError(
            f"votes: {path}: most people voted for the label of only {agreement:.1%} of the "
            "images, so the votes are in another order or about another set. Rows must be in the "
            "order of the official test set."
        )
    return votes


def _read(path: Path, most_bytes: int) -> np.ndarray:
    """The one array of a file; one in an archive has at most so many bytes."""
    if path.exists() and not path.is_file():
        raise DatasetError(f"votes: {path} is no file: name the .npy or .npz of counts.")
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if not isinstance(found, np.ndarray):
                names = ", ".join(found.files) or "none"
                if len(found.files) != 1:
                    raise DatasetError(f"votes: {path} must hold one array of counts; got {names}.")
                size = found.zip.infolist()[0].file_size
                if size > most_bytes:
                    raise ValueError(f"{names} unpacks to {size} bytes; votes take {most_bytes}")
                found = found[names]
        if not isinstance(found, np.ndarray):  # numpy.load gives the bytes of a foreign file
            raise ValueError(f"{names} is no NumPy array")
    except DatasetError:
        raise
    except FileNotFoundError as error:
        raise DatasetError(
            f"votes: no file {path}. For CIFAR-10 get cifar10h-counts.npy from "
            "github.com/jcpeterson/cifar-10h (non-commercial use only)."
        ) from error
    except Exception as error:  # zipfile and its codecs raise whatever damaged bytes lead them to
        raise DatasetError(
            f"votes: {path} is not readable as .npy or .npz of numbers: {error}."
        ) from error
    return found
