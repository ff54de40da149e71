"""``train_state.pt``: plain values and tensors, unpacked and checked before anything is used.

torch's ``weights_only`` runs no code. What it leaves open is closed here: archives that are packed
grow a thousandfold in memory, a number given to ``bytearray`` takes as much memory as it says, and
a list that holds one list ten times, which does so too, has no end when it is copied.
"""

import io
import pickletools
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

_PLAIN = (bool, int, float, str, type(None))

_NUMBERS = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")

_NAMES = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in _NUMBERS),
}
"""What a training state may name: tensors of real numbers."""


def read_state(content: bytes) -> dict[str, Any]:
    """Read what ``torch.save`` wrote of tensors and plain values.

    Args:
        content: The file.

    Returns:
        The values, tensors on the CPU.

    Raises:
        ValueError: If it is packed, or names anything but tensors. Damaged bytes raise whatever
            zipfile, pickletools and torch meet.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if packed or sum(entry.file_size for entry in entries) > len(content):
            raise ValueError(
                "its contents are larger than the file; training states are not packed"
            )
        pickles = [e for e in entries if e.filename.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise ValueError(f"it holds {len(pickles)} files data.pkl instead of one")
        for opcode, argument, _ in pickletools.genops(archive.read(pickles[0])):
            if opcode.name in _NAMING and argument not in _NAMES:
                raise ValueError(f"it names {argument!r}, which is no part of a training state")
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__} instead of a dict")
    return state


_NAMING = ("GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")


def check_optimizer_state(saved: Any, optimizer: Optimizer) -> None:
    """Refuse a state that is not of this optimizer's parameters, before it is copied.

    Args:
        saved: What claims to be ``optimizer.state_dict()``.
        optimizer: The optimizer.

    Raises:
        ValueError: If groups, parameters, or names, shapes and kinds of values differ.
    """
    groups = optimizer.state_dict()["param_groups"]
    if not isinstance(saved, Mapping) or saved.keys() != {"state", "param_groups"}:
        raise ValueError("it has no state and param_groups")
    found = saved["param_groups"]
    if not isinstance(found, list) or len(found) != len(groups):
        raise ValueError(f"it has not {len(groups)} groups of parameters")
    for got, want in zip(found, groups, strict=True):
        if not isinstance(got, dict) or got.get("params") != want["params"]:
            raise ValueError("its groups hold other parameters")
        for name, value in got.items():
            plain = value if name == "params" or isinstance(value, tuple) else (value,)
            if not all(isinstance(v, _PLAIN) for v in plain):
                raise ValueError(f"{name} of a group is no plain value")
    numbers = [i for group in groups for i in group["params"]]
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    shapes = {i: p.shape for i, p in zip(numbers, tensors, strict=True)}
    if not isinstance(saved["state"], dict) or not saved["state"].keys() <= shapes.keys():
        raise ValueError("it knows other parameters")
    for number, values in saved["state"].items():
        if not isinstance(values, dict):
            raise ValueError(f"parameter {number} has no named values")
        for name, value in values.items():
            fits = isinstance(value, torch.Tensor) and value.shape in (shapes[number], ())
            if not fits and not isinstance(value, _PLAIN):
                raise ValueError(f"{name} of parameter {number} is not of its shape")


def check_numbers(saved: Any) -> None:
    """Refuse anything but a mapping of names to numbers.

    Args:
        saved: What should be one.

    Raises:
        ValueError: If it is something else.
    """
    if not isinstance(saved, Mapping) or not all(
        isinstance(value, (int, float)) for value in saved.values()
    ):
        raise ValueError("it holds something else where numbers should be")
