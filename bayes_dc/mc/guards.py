"""What a prediction leaves as it was, and layers it cannot run."""

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_BATCH_STATISTICS = """\
BatchNorm {names} keeps no running statistics (track_running_stats=False), so it would normalise
with those of the batch and mix inputs and passes. Train it with track_running_stats=True, or use a
normalisation that keeps inputs apart (nn.GroupNorm, nn.LayerNorm).
"""


class _Locks:
    """Locks by what they belong to."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget them: what other threads held when a process was forked, none would release."""
        self.guard = threading.Lock()
        self.of: weakref.WeakKeyDictionary[object, threading.RLock] = weakref.WeakKeyDictionary()


_locks = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.renew)


def lock_of(owner: object) -> threading.RLock:
    """One lock per model, whose layers can follow one run at a time, and per engine.

    Args:
        owner: A module or an engine.

    Returns:
        The same lock for the same object, in one process.
    """
    found = _locks.of.get(owner)  # three times as fast as to ask under the guard
    if found is None:
        with _locks.guard:
            found = _locks.of.setdefault(owner, threading.RLock())
    return found


def refuse_batch_statistics(model: nn.Module) -> None:
    """Refuse BatchNorm layers that use the statistics of the batch even in evaluation mode.

    Args:
        model: Any module.

    Raises:
        ValueError: If there is one, with the names.
    """
    names = [
        repr(name)
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is None
    ]
    if names:
        raise ValueError(_BATCH_STATISTICS.format(names=", ".join(names)))


def version_of(tensor: Tensor) -> int:
    """Count of the writes into a tensor.

    Args:
        tensor: Any tensor.

    Returns:
        Its version; 0 for an inference tensor, which cannot be written outside inference mode.
    """
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode and uncompiled, without gradients; all comes back.

    Mode flags and the values of buffers are afterwards as before, also after an exception. A
    compiled module cannot be traced through the function mode that folds the passes: its original
    runs.

    Args:
        model: Any module.

    Yields:
        Nothing.
    """
    modules = list(model.modules())
    flags = [module.training for module in modules]
    buffers = [
        (module, name, buffer, version_of(buffer), buffer.detach().clone())
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    empty = [
        (module, name)
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is None
    ]
    with torch.inference_mode(False), torch.no_grad(), contextlib.ExitStack() as stack:
        for module in modules:
            if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
                stack.enter_context(_uncompiled(module))
            if module.training:  # setting an attribute of a module takes longer than asking
                module.training = False
        try:
            yield
        finally:
            for module, training in zip(modules, flags, strict=True):
                if module.training != training:
                    module.training = training
            for module, name, buffer, version, value in buffers:
                if version_of(buffer) != version:
                    buffer.copy_(value)
                if getattr(module, name) is not buffer:
                    setattr(module, name, buffer)
            for module, name in empty:
                module._buffers[name] = None


@contextlib.contextmanager
def _uncompiled(module: nn.Module) -> Iterator[None]:
    """Run a module compiled by ``torch.compile(module)`` or ``module.compile()`` as it was."""
    call, original = module._compiled_call_impl, getattr(module, "_orig_mod", None)
    forward = module.forward
    if call is not None:
        module._compiled_call_impl = None
    if original is not None:
        module.forward = original.__call__
    try:
        yield
    finally:
        if call is not None:
            module._compiled_call_impl = call
        if original is not None:
            module.forward = forward
