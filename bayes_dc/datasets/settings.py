"""Settings of a data set, as they stand in section ``data`` of a configuration."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

DatasetName = Literal[
    "digits",
    "mnist",
    "fashion_mnist",
    "kmnist",
    "cifar10",
    "cifar100",
    "svhn",
    "imagefolder",
    "npz",
]
"""Data sets that can be named in a configuration."""

Scaling = Literal["standard", "unit"]
"""``"standard"`` subtracts the mean and divides by the deviation of the training set, per channel;
``"unit"`` maps 0 … 255 to 0 … 1, so that an empty (black) background stays exactly zero.
"""


def _usable_path(path: str) -> str:
    if "\0" in path:
        raise ValueError(f"a path cannot hold a null byte; got {path!r}")
    if path == "None":
        raise ValueError(
            "None is text in YAML: write null for no value, ./None for a file of that name"
        )
    return path


PathText = Annotated[str, Field(min_length=1), AfterValidator(_usable_path)]
"""Path of a file or folder."""


class Settings(BaseModel):
    """Base of all settings: immutable, strict types, no unknown keys, no NaN, no infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(Settings):
    """Which data set, where its files are, and how it is split.

    Attributes:
        name: Data set.
        root: Folder of the data files; ``digits`` needs none, for ``npz`` the file itself.
        download: Fetch missing files (torchvision's sources). Without it nothing touches the
            network.
        validation_fraction: Share of the training set that is set aside for validation, 0 … 1
            (excluded).
        validation_seed: Chooses which samples are set aside; independent of the run's seed.
        scaling: How pixels become floats.
        image_size: Side of the square to which ``imagefolder`` resizes; refused for other sets.
    """

    name: DatasetName
    root: PathText = "data"
    download: bool = False
    validation_fraction: float = Field(default=0.0, ge=0, lt=1)
    validation_seed: int = Field(default=0, ge=0, lt=2**63)
    scaling: Scaling = "standard"
    image_size: int | None = Field(default=None, ge=1, le=4096)

    @model_validator(mode="after")
    def _image_size_goes_with_imagefolder(self) -> "DataConfig":
        if self.name == "imagefolder" and self.image_size is None:
            raise ValueError(
                "imagefolder needs image_size, the side in pixels to resize to, e.g. 32"
            )
        if self.name != "imagefolder" and self.image_size is not None:
            raise ValueError(
                f"image_size is read by imagefolder only; {self.name} has a fixed size: remove it"
            )
        return self
