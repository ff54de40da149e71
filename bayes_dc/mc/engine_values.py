"""What a guard compares of the attributes of modules, and how."""

import functools
import types
from typing import Any

import torch
from torch import Tensor, nn

from bayes_dc.nn.dropout import KeyedForward
from bayes_dc.nn.module import call_forward

_SCALARS = (bool, int, float, str, type(None), torch.dtype)
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
)
_LONGEST = 80  # characters of a value in a message


def called(module: nn.Module | None) -> tuple[Any, ...]:
    """What a call of a module runs.

    Args:
        module: The module, or None if it is gone.

    Returns:
        Its class, a forward of its own and the numbers of its hooks, to be compared.
    """
    if module is None:
        return ()
    own = module.__dict__.get("forward")
    before, after = module._forward_pre_hooks, module._forward_hooks
    return (
        type(module),
        # Keys are attached while another thread predicts.
        None if own is None or isinstance(own, KeyedForward) else id(own),
        [n for n, hook in before.items() if hook is not call_forward] if before else [],
        list(after) if after else [],
    )


def frozen(value: object) -> Any:
    """What is compared of an attribute with a later one.

    Args:
        value: The attribute.

    Returns:
        Numbers, words and flags as they are, also within containers; functions and tensors by
        identity; None for what is not followed.
    """
    if is_plain(value):
        return (value,)
    if isinstance(value, (Tensor, *_FUNCTIONS)):
        return id(value)
    if not isinstance(value, (dict, list, tuple)):
        return None
    held = list(value.values()) if isinstance(value, dict) else list(value)
    if any(isinstance(entry, Tensor) for entry in held):
        return None
    entries = [frozen(entry) for entry in held]
    keys = list(value) if isinstance(value, dict) else []
    return None if None in entries else (type(value), keys, entries)


def differ(now: object, was: object) -> bool:
    """Whether values differ.

    Args:
        now: A value.
        was: An earlier one.

    Returns:
        Also True where they do not compare, as a tensor in the place of a number.
    """
    try:
        return bool(now != was)
    except (RuntimeError, TypeError, ValueError):
        return True


def is_plain(value: object) -> bool:
    """Whether a value can be compared with a later one of its name, and says all there is to it.

    Args:
        value: An attribute.

    Returns:
        True for numbers, words, flags and tuples of them.
    """
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, _SCALARS)


def brief(value: object) -> str:
    """A value in a message.

    Args:
        value: The value.

    Returns:
        Its repr, cut where it is long; the sizes of a tensor.
    """
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def address(tensor: Tensor) -> int:
    """Where a tensor lies.

    Args:
        tensor: Any tensor.

    Returns:
        0 for one without memory of its own (sparse, empty).
    """
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
