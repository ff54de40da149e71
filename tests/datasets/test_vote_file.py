"""Files of votes: what is read, and that votes about other images are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bayes_dc.datasets import DatasetError, load_votes

LABELS = torch.arange(40) % 4
PACK = Path(__file__).parents[3] / "shared/data"


def counts(dtype=np.int64):
    """Nine of ten people agree with the label."""
    votes = np.ones((40, 4), dtype)
    votes[np.arange(40), LABELS.numpy()] = 27
    return votes


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64])
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_counts_are_read(tmp_path, dtype, kind):
    path = tmp_path / f"votes.{kind}"
    if kind == "npy":
        np.save(path, counts(dtype))
    else:
        np.savez(path, counts=counts(dtype))
    votes = load_votes(path, LABELS, 4)
    assert votes.dtype == torch.int64
    assert (votes.numpy() == counts()).all()


def shares():
    return counts() / 30


def shuffled():
    return counts()[np.argsort(np.arange(40) % 7)]


def without_votes():
    votes = counts()
    votes[3] = 0
    return votes


def negative():
    votes = counts()
    votes[2, 0] = -1
    return votes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (shares, r"must hold whole numbers \[40, 4\].*Name the file of counts, not of shares"),
        (lambda: counts()[:39], r"got int64 \[39, 4\]"),
        (lambda: counts()[:, :3], r"got int64 \[40, 3\]"),
        (shuffled, "voted for the label of only .*%.*in another order or about another set"),
        (without_votes, "image 3 has a negative number of votes or none at all"),
        (negative, "image 2 has a negative number"),
        (lambda: np.full((40, 4), np.nan), "must hold whole numbers"),
    ],
)
def test_other_contents_are_refused(tmp_path, make, message):
    np.save(tmp_path / "votes.npy", make())
    with pytest.raises(DatasetError, match=message):
        load_votes(tmp_path / "votes.npy", LABELS, 4)


def test_a_missing_file_says_where_to_get_it(tmp_path):
    with pytest.raises(DatasetError, match=r"no file .*cifar10h-counts\.npy from github\.com"):
        load_votes(tmp_path / "votes.npy", LABELS, 4)


def test_damaged_and_other_files_are_refused(tmp_path):
    path = tmp_path / "votes.npy"
    path.write_bytes(b"no array")
    with pytest.raises(DatasetError, match=r"is not readable as \.npy or \.npz of numbers"):
        load_votes(path, LABELS, 4)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DatasetError, match="is not readable"):
        load_votes(path, LABELS, 4)
    np.savez(tmp_path / "two.npz", a=counts(), b=counts())
    with pytest.raises(DatasetError, match="must hold one array of counts; got a, b"):
        load_votes(tmp_path / "two.npz", LABELS, 4)


def test_cifar10h_where_it_is_at_hand():
    """About 50 votes an image; most people are right about nearly all of them."""
    votes, images = PACK / "CIFAR10H/cifar10h_counts.npz", PACK / "CIFAR10-jpeg/cifar10_jpeg75.npz"
    if not votes.exists() or not images.exists():
        pytest.skip(f"no CIFAR-10H and CIFAR-10 labels in {PACK}")
    with np.load(images) as pack:
        labels = torch.from_numpy(pack["labels"][int(pack["n_train"]) :].astype(np.int64))
    found = load_votes(votes, labels, 10)
    assert found.shape == (10000, 10)
    assert 45 <= found.sum(1).min() <= found.sum(1).max() <= 65
    assert (found.argmax(1) == labels).double().mean() > 0.98
    with pytest.raises(DatasetError, match="in another order"):
        load_votes(votes, labels.flip(0), 10)
