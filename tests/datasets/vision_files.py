"""What the tests of torchvision's sets share."""

import hashlib

from bayes_dc.datasets import DataConfig, load_dataset


def load(name, root, **settings):
    return load_dataset(DataConfig(name=name, root=str(root), **settings))


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
