"""Whether the modules of a model are as they were: the quick look of every call of an engine."""

import operator
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from torch import nn

from bayes_dc.mc.engine_values import called

PARTS = ("_parameters", "_buffers", "_modules")
_UNREADABLE = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
"""A module or an attribute is gone, or does not compare with what it was."""


# What is compared of a module: it, its class, what a call of it runs, whether that is no more than
# the forward of its class, and attributes. No NamedTuple, as Python unpacks those more slowly.
_Seen = tuple[
    weakref.ref[nn.Module],
    type,
    tuple[Any, ...],
    bool,
    Callable[[dict[str, Any]], tuple[Any, ...]],
    tuple[Any, ...],
]


class Snapshot:
    """Classes, calls, parts and options of modules, as they are now.

    It only says yes or no, and takes about 0.2 µs for a module and 0.1 for a part; what has changed
    is for ``Guard`` to find. Modules are not kept alive.

    Args:
        modules: All modules of a model.
        options: Names of the attributes to be compared with ``==``, for each module.
    """

    def __init__(self, modules: Sequence[nn.Module], options: Sequence[Sequence[str]]) -> None:
        self._seen: list[_Seen] = []
        for module, names in zip(modules, options, strict=True):
            read = operator.itemgetter(*PARTS, *names)
            calls, kind = called(module), type(module)
            bare = calls == (kind, None, [], [])
            values = read(vars(module))
            self._seen.append((weakref.ref(module), kind, calls, bare, read, values))
        # The dictionaries of the modules themselves: a part that comes or goes is seen here.
        states = [vars(module) for module in modules]
        entries = [state[name] for name in PARTS for state in states]  # modules last
        self._filled = [parts for parts in entries if parts]
        self._empty = [parts for parts in entries if not parts]
        children = [child for state in states for child in state["_modules"].values()]
        self._children = [_reference(child) for child in children]
        parts = self._parts()
        self._tensors = parts[: len(parts) - len(children)]
        self._names = self._names_of_parts()

    def is_current(self) -> bool:
        """Whether everything is as it was.

        Returns:
            False also where it cannot be read.
        """
        # Not by their ids: where Python is audited, each call of id() is.
        known, parts = [*self._tensors, *[ref() for ref in self._children]], self._parts()
        if any(self._empty) or self._names_of_parts() != self._names:
            return False
        if not all(map(operator.is_, parts, known)):
            return False
        try:
            for ref, kind, calls, bare, read, values in self._seen:
                module = ref()
                if type(module) is not kind:
                    return False
                state = module.__dict__
                if read(state) != values:
                    return False
                more = state["_forward_pre_hooks"] or state["_forward_hooks"] or "forward" in state
                if (more or not bare) and called(module) != calls:
                    return False
        except _UNREADABLE:
            return False
        return True

    def _parts(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._filled)))

    def _names_of_parts(self) -> list[list[str]]:
        """Of each dictionary by itself: a part may move to another, or change its name."""
        return list(map(list, self._filled))


def _reference(child: nn.Module | None) -> Callable[[], nn.Module | None]:
    """Where a child is, without keeping it alive; None may stand in its place."""
    return (lambda: None) if child is None else weakref.ref(child)
