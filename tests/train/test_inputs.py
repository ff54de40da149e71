"""Inputs of a saved network: other sets in its shape, changed pictures, image files."""

import numpy as np
import pytest
import torch
from PIL import Image

from bayes_dc.config import Config
from bayes_dc.datasets import DatasetError, Normalisation
from bayes_dc.datasets.split import to_float
from bayes_dc.train import CheckpointMeta, load_images, load_inputs, load_other, settings_of
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.settings import ModelConfig

CPU = torch.device("cpu")


def meta(shape=(1, 8, 8), **data):
    """What a checkpoint on the digits says about itself."""
    config = {"output_dir": "x", "data": {"name": "digits", "validation_fraction": 0.1} | data}
    return CheckpointMeta(
        config=Config.model_validate(config).model_dump(mode="json"),
        seed=0,
        class_names=tuple("0123456789"),
        input_shape=shape,
        normalisation=Normalisation((0.1,) * shape[0], (0.5,) * shape[0]),
    )


@pytest.fixture
def pictures(tmp_path):
    """A folder of colour pictures: root/test/<class>."""
    for part in ("train", "test"):
        for k, name in enumerate(("cat", "dog")):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            Image.new("RGB", (6, 10), (60 * k, 100, 50)).save(folder / "1.png")
    return tmp_path


def test_other_sets_take_the_shape_of_the_network(pictures):
    found = load_other(meta(), "imagefolder", root=str(pictures))
    assert found.labels is None
    assert found.image(0).shape == (8, 8, 1)
    grey = np.asarray(Image.new("RGB", (8, 8), (60, 100, 50)).convert("L"))
    assert np.array_equal(found.image(1)[..., 0], grey)
    assert found.describe["conversion"] == "grey, resized to 8 × 8 pixels"
    assert found.describe["name"] == "imagefolder"
    pixels = torch.from_numpy(found.image(1).copy()).permute(2, 0, 1)[None]
    want = to_float(pixels, meta().normalisation)
    assert torch.equal(found.batch(torch.tensor([1]), CPU), want)


def test_other_sets_of_the_same_shape_are_left_alone():
    found = load_other(meta(), "digits", limit=5)
    same = load_inputs("here", meta(), limit=5)
    assert len(found) == 5
    assert "conversion" not in found.describe
    positions = torch.arange(5)
    assert torch.equal(found.batch(positions, CPU), same.batch(positions, CPU))
    colour = load_other(meta((3, 4, 4)), "digits", limit=2)
    assert colour.image(0).shape == (4, 4, 3)
    assert colour.describe["conversion"] == "RGB, resized to 4 × 4 pixels"


def test_changed_pictures_keep_names_and_labels():
    inputs = load_inputs("here", meta(), limit=9)
    pixels = np.stack([inputs.image(i) for i in range(4)])
    same, dark = inputs.with_pixels(pixels), inputs.with_pixels(pixels // 2)
    positions = torch.arange(4)
    assert torch.equal(same.batch(positions, CPU), inputs.batch(positions, CPU))
    want = to_float(torch.from_numpy(pixels // 2).permute(0, 3, 1, 2), meta().normalisation)
    assert torch.equal(dark.batch(positions, CPU), want)
    assert dark.ids == ("0", "1", "2", "3")
    assert torch.equal(dark.labels, inputs.labels[:4])
    assert np.array_equal(dark.image(3), pixels[3] // 2)


def test_files_need_a_network_of_pictures(pictures):
    files = sorted((pictures / "test").rglob("*.png"))
    assert len(load_images(meta((3, 5, 5)), files)) == 2
    with pytest.raises(DatasetError, match=r"the network takes 2 channels; images have 1 \(grey\)"):
        load_images(meta((2, 5, 5)), files)


def test_settings_that_cannot_be_read_name_their_section():
    broken = meta().model_copy(update={"config": {"model": {"p": 7}}})
    text = r"(?s)section model of the configuration in the checkpoint cannot be read .*bayes_dc "
    with pytest.raises(CheckpointError, match=text):
        settings_of(ModelConfig, "model", broken)
