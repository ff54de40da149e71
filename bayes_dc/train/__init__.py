"""Training: settings, the loop, checkpoints."""

from bayes_dc.train.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    load_model,
    load_train_state,
    save_checkpoint,
)
from bayes_dc.train.errors import CheckpointError, TrainingError
from bayes_dc.train.evaluate import Score, evaluate
from bayes_dc.train.initial import start_from
from bayes_dc.train.inputs import (
    Inputs,
    load_images,
    load_inputs,
    load_other,
    readable,
    settings_of,
)
from bayes_dc.train.loop import fit
from bayes_dc.train.meta import CheckpointMeta, LayerMeta
from bayes_dc.train.model import build_model
from bayes_dc.train.outputs import Outputs, predict_inputs
from bayes_dc.train.run import RunFolder
from bayes_dc.train.settings import (
    AugmentConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from bayes_dc.train.trainer import resolve_device

__all__ = [
    "AugmentConfig",
    "CheckpointError",
    "CheckpointMeta",
    "Inputs",
    "LayerMeta",
    "ModelConfig",
    "OptimizerConfig",
    "Outputs",
    "RunFolder",
    "ScheduleConfig",
    "Score",
    "TrainConfig",
    "TrainingError",
    "build_model",
    "evaluate",
    "find_checkpoint",
    "fit",
    "load_checkpoint",
    "load_images",
    "load_inputs",
    "load_model",
    "load_other",
    "load_train_state",
    "predict_inputs",
    "readable",
    "resolve_device",
    "save_checkpoint",
    "settings_of",
    "start_from",
]
