"""Checkpoints: a folder of three files that is whole or not there.

    model.safetensors   weights and buffers
    meta.json           what the weights are (meta.py), with the SHA-256 of the other files
    train_state.pt      what training needs to go on, tensors and plain values; may be left out

``calibration.json`` may be added afterwards (calibration.py); saving a checkpoint removes it.

Only these names are ever opened, whatever ``meta.json`` says. Nothing is unpickled beyond torch's
``weights_only`` set.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bayes_dc.nn import dropconnect_layers, number_layers
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.folder import current_folder, read_file, replace_folder
from bayes_dc.train.meta import MOST_BYTES, CheckpointMeta, LayerMeta, read_meta, unreadable
from bayes_dc.train.model import build_model
from bayes_dc.train.settings import ModelConfig
from bayes_dc.train.state import read_state

MODEL_FILE = "model.safetensors"
META_FILE = "meta.json"
STATE_FILE = "train_state.pt"
CALIBRATION_FILE = "calibration.json"
FILES = (MODEL_FILE, META_FILE, STATE_FILE, CALIBRATION_FILE, f"{CALIBRATION_FILE}.tmp")
"""Every file that the folder of a checkpoint may hold; the last is what a kill leaves."""

_OWN_NETWORK = "the network of its configuration"
_OWN_REMEDY = (
    "The files are of two different runs, or were changed: use a checkpoint as it was saved."
)

_SHOWN = 20
"""Weights that do not fit are listed up to so many."""


def save_checkpoint(
    folder: str | Path,
    model: nn.Module,
    meta: CheckpointMeta,
    train_state: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint; a kill or a full disk at any instant leaves the previous one readable.

    Args:
        folder: Folder of the checkpoint, created or replaced.
        model: Network to save.
        meta: What it is; ``layers`` and ``sha256`` are filled in.
        train_state: What training needs to go on, tensors and plain Python values. Default None:
            leave it out.

    Raises:
        CheckpointError: If the files cannot be written.
    """
    folder = Path(folder)
    files = {MODEL_FILE: safetensors.torch.save(_portable(model.state_dict()))}
    if train_state is not None:
        buffer = io.BytesIO()
        torch.save(dict(train_state), buffer)
        files[STATE_FILE] = buffer.getvalue()
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    full = meta.model_copy(update={"layers": _layers(model), "sha256": checksums})
    files[META_FILE] = (full.model_dump_json(indent=1) + "\n").encode()
    if len(files[META_FILE]) > MOST_BYTES:
        raise CheckpointError(
            f"cannot write checkpoint {folder}: {META_FILE} would have {len(files[META_FILE])} "
            f"bytes, and at most {MOST_BYTES} are read. Use shorter names of classes."
        )
    size_mib = -(-sum(map(len, files.values())) // 2**20)
    try:
        replace_folder(folder, files)
    except OSError as error:
        raise CheckpointError(
            f"cannot write checkpoint {folder}: {error.strerror or error}. The previous one, if "
            f"any, is kept; free {size_mib} MiB or name another output_dir."
        ) from error


def find_checkpoint(folder: str | Path) -> Path:
    """Return the folder that holds a checkpoint's files.

    Args:
        folder: A checkpoint, or a run's output folder: then ``best`` if there is one, else
            ``last``.

    Returns:
        Where the files are; ``<name>.old`` if a kill while saving left only that.

    Raises:
        CheckpointError: If there is none.
    """
    folder = Path(folder)
    current = current_folder(folder)
    if current is None:
        raise CheckpointError(
            f"no checkpoint at {folder}: there is no such folder. Train one first, or name the "
            "output_dir of a run."
        )
    if (current / META_FILE).is_file():
        return current
    for name in ("best", "last"):
        inner = current_folder(folder / name)
        if inner is not None and (inner / META_FILE).is_file():
            return inner
    raise CheckpointError(
        f"no checkpoint at {folder}: it holds neither {META_FILE} nor a folder best or last with "
        "one. Name the output_dir of a run, or its folder best or last."
    )


def load_checkpoint(folder: str | Path) -> tuple[CheckpointMeta, dict[str, Tensor]]:
    """Read a checkpoint and check that it is whole.

    Args:
        folder: A checkpoint or a run's output folder (see ``find_checkpoint``).

    Returns:
        What the weights are, and the weights on the CPU.

    Raises:
        CheckpointError: If a file is missing, truncated, changed, or not ours.
    """
    current = find_checkpoint(folder)
    meta = read_meta(current / META_FILE)
    content = _read_checked(current, MODEL_FILE, meta)
    try:
        return meta, safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError, MemoryError) as error:
        raise CheckpointError(unreadable(current / MODEL_FILE, error)) from error


def load_model(
    folder: str | Path, *, classes: int | None = None
) -> tuple[nn.Module, CheckpointMeta]:
    """Rebuild the network of a checkpoint.

    Args:
        folder: A checkpoint or a run's output folder (see ``find_checkpoint``).
        classes: Number of classes of the data it will be used on. Default None: not checked.

    Returns:
        The network on the CPU in evaluation mode, and what it is.

    Raises:
        CheckpointError: If the checkpoint cannot be read, its weights do not fit its configuration,
            its masks would differ from those it was trained with, or the number of classes differs.
    """
    meta, state = load_checkpoint(folder)
    if classes is not None and classes != len(meta.class_names):
        data = meta.config.get("data")
        name = data.get("name", "unknown") if isinstance(data, dict) else "unknown"
        raise CheckpointError(
            f"checkpoint {folder} was trained for {len(meta.class_names)} classes; the data has "
            f"{classes}. Use the data set it was trained on ({name}) or train a new one."
        )
    where = find_checkpoint(folder)
    try:
        settings = ModelConfig.model_validate(meta.config.get("model"))
        with torch.device("meta"):  # no memory before it is known that the weights need as much
            sketch = build_model(settings, meta.input_shape, len(meta.class_names))
        _check_weights(sketch, state, where / MODEL_FILE, _OWN_NETWORK, _OWN_REMEDY)
        model = build_model(settings, meta.input_shape, len(meta.class_names), seed=meta.seed)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(unreadable(where / META_FILE, error)) from error
    load_weights(model, state, where / MODEL_FILE)
    if _layers(model) != meta.layers:
        raise CheckpointError(
            f"{where / META_FILE}: the masks of this version differ from those in the checkpoint "
            f"(p_effective or layer numbers). Use bayes_dc {meta.package_version}, which wrote it, "
            "or train again."
        )
    return model.eval(), meta


def load_weights(
    model: nn.Module,
    state: Mapping[str, Tensor],
    path: Path,
    *,
    network: str = _OWN_NETWORK,
    remedy: str = _OWN_REMEDY,
) -> None:
    """Copy weights into a network if every name, shape and dtype fits.

    Args:
        model: Network to fill.
        state: Weights by name.
        path: Where they come from, for the message.
        network: What they should fit, for the message.
        remedy: What to do if they do not.

    Raises:
        CheckpointError: If anything is missing, left over, or of another shape or dtype.
    """
    _check_weights(model, state, path, network, remedy)
    model.load_state_dict(dict(state))


def _check_weights(
    model: nn.Module, state: Mapping[str, Tensor], path: Path, network: str, remedy: str
) -> None:
    """Refuse weights of other names, shapes or dtypes than a network's."""
    own = model.state_dict()
    problems = [f"missing {name}" for name in own if name not in state]
    problems += [f"unexpected {name}" for name in state if name not in own]
    for name in own.keys() & state.keys():
        want, got = _kind(own[name]), _kind(state[name])
        if want != got:
            problems.append(f"{name} is {got} and should be {want}")
    if problems:
        listed = "; ".join(sorted(problems)[:_SHOWN])
        if len(problems) > _SHOWN:
            listed += f"; and {len(problems) - _SHOWN} more"
        raise CheckpointError(f"{path}: the weights do not fit {network}: {listed}. {remedy}")


def load_train_state(folder: str | Path) -> dict[str, Any]:
    """Read what training needs to go on.

    Args:
        folder: A checkpoint or a run's output folder (see ``find_checkpoint``).

    Returns:
        What was given to ``save_checkpoint``, tensors on the CPU.

    Raises:
        CheckpointError: If the file is missing, truncated, changed, or holds anything but tensors
            and plain values.
    """
    current = find_checkpoint(folder)
    content = _read_checked(current, STATE_FILE, read_meta(current / META_FILE))
    try:
        return read_state(content)
    except Exception as error:  # the unpickler raises whatever damaged bytes lead it to
        raise CheckpointError(unreadable(current / STATE_FILE, error)) from error


def _layers(model: nn.Module) -> dict[str, LayerMeta]:
    """Describe the masks of every DropConnect layer."""
    numbers = number_layers(model)
    return {
        name: LayerMeta(p=m.p, p_effective=m.p_effective, mask_layer=numbers[name])
        for name, m in dropconnect_layers(model).items()
    }


def _portable(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, contiguous and each with memory of its own."""
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in state.items()}


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _read_checked(folder: Path, name: str, meta: CheckpointMeta) -> bytes:
    """Read one of the other files and compare its checksum."""
    path = folder / name
    try:
        content = read_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {folder}: {name} is missing. Copy the folder as a whole, or train again."
        ) from error
    except (OSError, ValueError, MemoryError) as error:
        raise CheckpointError(unreadable(path, error)) from error
    if hashlib.sha256(content).hexdigest() != meta.sha256.get(name):
        raise CheckpointError(
            f"{path} is truncated or was changed: its SHA-256 is not the one in {META_FILE}. Copy "
            "the folder again, or use another checkpoint of the run."
        )
    return content
