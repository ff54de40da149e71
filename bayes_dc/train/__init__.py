"""Training: settings, the loop, checkpoints."""

from bayes_dc.train.calibrate import calibrate
from bayes_dc.train.calibration import (
    CalibrationState,
    SavedPolicy,
    SavedTemperature,
    TemperatureChoice,
    load_calibration,
    policy_scores,
    save_calibration,
    saved_policy,
)
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
    load_inputs,
    readable,
    settings_of,
)
from bayes_dc.train.loop import fit
from bayes_dc.train.meta import CheckpointMeta, LayerMeta
from bayes_dc.train.model import build_model
from bayes_dc.train.outputs import Outputs, predict_inputs
from bayes_dc.train.pictures import (
    changed_inputs,
    load_images,
    load_other,
    turned_input,
    turned_inputs,
)
from bayes_dc.train.ranks import Ranks, joined_ranks
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
    "CalibrationState",
    "CheckpointError",
    "CheckpointMeta",
    "Inputs",
    "LayerMeta",
    "ModelConfig",
    "OptimizerConfig",
    "Outputs",
    "Ranks",
    "RunFolder",
    "SavedPolicy",
    "SavedTemperature",
    "ScheduleConfig",
    "Score",
    "TemperatureChoice",
    "TrainConfig",
    "TrainingError",
    "build_model",
    "calibrate",
    "changed_inputs",
    "evaluate",
    "find_checkpoint",
    "fit",
    "joined_ranks",
    "load_calibration",
    "load_checkpoint",
    "load_images",
    "load_inputs",
    "load_model",
    "load_other",
    "load_train_state",
    "policy_scores",
    "predict_inputs",
    "readable",
    "resolve_device",
    "save_calibration",
    "save_checkpoint",
    "saved_policy",
    "settings_of",
    "start_from",
    "turned_input",
    "turned_inputs",
]
