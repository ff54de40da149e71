"""From settings to a data set: one call for every family."""

import torch

from bayes_dc.datasets.settings import DataConfig
from bayes_dc.datasets.split import DatasetBundle, DatasetError, Normalisation, Split
from bayes_dc.types import torch_seed

_ONE_FILE_EACH = ("mnist", "fashion_mnist", "kmnist", "svhn")
"""Sets whose test split is in files of its own."""


def load_dataset(settings: DataConfig, normalisation: Normalisation | None = None) -> DatasetBundle:
    """Load a data set and set its validation samples aside.

    Args:
        settings: Section ``data`` of a configuration.
        normalisation: Constants to use instead of the data set's own: those saved with a
            checkpoint, so that a network sees the scale it was trained on. Default None.

    Returns:
        Training, validation and test splits. The same settings give the same splits, sample for
        sample.

    Raises:
        DatasetError: If files are missing, damaged, empty or of another data set, or if the
            constants do not fit the number of channels.
    """
    train, test, used = _load_splits(settings, normalisation)
    shape = tuple(train.batch(torch.arange(1), torch.device("cpu")).shape[1:])
    channels, height, width = shape
    validation = None
    count = round(settings.validation_fraction * len(train))
    if settings.validation_fraction > 0 and not 0 < count < len(train):
        raise DatasetError(
            f"{settings.name}: data.validation_fraction={settings.validation_fraction} of "
            f"{len(train)} training samples is {count}: it must leave at least one sample on each "
            "side. Set 0 for no validation."
        )
    if count:
        generator = torch.Generator().manual_seed(torch_seed(settings.validation_seed))
        order = torch.randperm(len(train), generator=generator)
        validation = train.subset(order[:count].sort().values)
        train = train.subset(order[count:].sort().values)
    return DatasetBundle(
        name=settings.name,
        train=train,
        validation=validation,
        test=test,
        class_names=train.class_names,
        input_shape=(channels, height, width),
        normalisation=used,
    )


def load_test_split(settings: DataConfig, normalisation: Normalisation | None = None) -> Split:
    """Load the test split alone.

    The training files of MNIST, its look-alikes and SVHN need not be there.

    Args:
        settings: Section ``data`` of a configuration.
        normalisation: As for ``load_dataset``.

    Returns:
        ``load_dataset(settings, normalisation).test``.

    Raises:
        DatasetError: As ``load_dataset``.
    """
    if settings.name not in _ONE_FILE_EACH:
        return load_dataset(settings, normalisation).test
    from bayes_dc.datasets import vision

    used = _constants(settings, vision.FAMILIES[settings.name].standard, normalisation)
    (test,) = vision.load(settings.name, settings.root, settings.download, used, (False,))
    return test


def _load_splits(
    settings: DataConfig, wanted: Normalisation | None
) -> tuple[Split, Split, Normalisation]:
    """Return the official splits and the constants they use."""
    # Each family is imported when it is asked for: torchvision and scikit-learn cost a second or
    # two each.
    if settings.name == "digits":
        from bayes_dc.datasets import digits

        used = _constants(settings, digits.STANDARD, wanted)
        return *digits.load(used), used
    if settings.name == "imagefolder":
        from bayes_dc.datasets import images

        if settings.image_size is None:
            raise DatasetError(
                "imagefolder needs data.image_size, the side in pixels to resize to."
            )
        used = _constants(settings, images.STANDARD, wanted)
        return *images.load(settings.root, settings.image_size, used), used
    if settings.name == "npz":
        from bayes_dc.datasets import npz

        train, test, used = npz.load(settings.root, settings.scaling, wanted)
        _check_channels(settings, train.images.shape[1], used)
        return train, test, used
    from bayes_dc.datasets import vision

    used = _constants(settings, vision.FAMILIES[settings.name].standard, wanted)
    train, test = vision.load(settings.name, settings.root, settings.download, used)
    return train, test, used


def _constants(
    settings: DataConfig, standard: Normalisation, wanted: Normalisation | None
) -> Normalisation:
    """Choose the constants: the caller's, or those of the scaling named in the settings."""
    channels = len(standard.mean)
    if wanted is None:
        return (
            standard
            if settings.scaling == "standard"
            else Normalisation((0.0,) * channels, (1.0,) * channels)
        )
    _check_channels(settings, channels, wanted)
    return wanted


def _check_channels(settings: DataConfig, channels: int, wanted: Normalisation) -> None:
    """Refuse constants of another number of channels."""
    if len(wanted.mean) != channels:
        raise DatasetError(
            f"{settings.name} has images of {channels} channel(s); the network was trained on "
            f"images of {len(wanted.mean)}. Use a data set of that kind, or pass the files with "
            "--images."
        )
