import pytest
import torch

from bayes_dc.config import Config
from bayes_dc.datasets import ArraySplit, DatasetBundle, Normalisation
from bayes_dc.train import CheckpointMeta, ModelConfig, RunFolder, TrainConfig, build_model, fit

UNIT = Normalisation((0.0,), (1.0,))
CLASSES = ("a", "b", "c")


def toy_split(samples, seed):
    """Bars at one of three heights, with noise: learnable in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 3
    images = torch.randint(0, 120, (samples, 1, 3, 3), generator=generator, dtype=torch.uint8)
    images[torch.arange(samples), 0, labels] += 120
    return ArraySplit(images, labels, CLASSES, UNIT, f"toy ({seed})")


def toy_data(samples, validation):
    return DatasetBundle(
        name="toy",
        train=toy_split(samples, 0),
        validation=toy_split(11, 1) if validation else None,
        test=toy_split(7, 2),
        class_names=CLASSES,
        input_shape=(1, 3, 3),
        normalisation=UNIT,
    )


class Run:
    """One small training run: settings by keyword, everything else fixed."""

    def __init__(
        self,
        path,
        *,
        samples=23,
        validation=True,
        p=0.5,
        dropout=0.0,
        seed=3,
        hidden=(8,),
        **settings,
    ):
        self.data = toy_data(samples, validation)
        self.model_settings = ModelConfig(p=p, dropout=dropout, hidden=hidden)
        self.settings = TrainConfig.model_validate({"epochs": 3, "batch_size": 5, **settings})
        self.folder = RunFolder(path)
        config = Config.model_validate({
            "output_dir": str(path),
            "seed": seed,
            "data": {"name": "digits"},
            "model": self.model_settings.model_dump(mode="json"),
            "train": self.settings.model_dump(mode="json"),
        })
        self.meta = CheckpointMeta(
            config=config.model_dump(mode="json"),
            seed=seed,
            class_names=self.data.class_names,
            input_shape=self.data.input_shape,
            normalisation=self.data.normalisation,
        )
        self.model = self.build()

    def build(self):
        classes = len(self.data.class_names)
        return build_model(self.model_settings, self.data.input_shape, classes, seed=self.meta.seed)

    def fit(self, **options):
        positional = (self.model, self.data, self.settings, self.folder, self.meta)
        return fit(*positional, config_text="seed: 3\n", **options)


@pytest.fixture
def make_run(tmp_path):
    """Return a function that makes runs in folders of their own."""

    def make(name="run", **options):
        return Run(tmp_path / name, **options)

    return make
