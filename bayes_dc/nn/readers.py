"""Modules that read the weights of their layers without calling the layers."""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

_CALLS = {"forward", "__call__"}


def read_past(owner: nn.Module, child: str) -> bool:
    """Whether a module computes with ``self.<child>.weight`` and never calls ``self.<child>``.

    Then a mask in the child would have no effect: ``F.linear(x, self.fc.weight)``. Found in the
    source of the owner's class; a class without source is taken to call its children.

    Args:
        owner: A module.
        child: Name of one of its children.

    Returns:
        True if that is what ``forward``, and the methods it calls, do.
    """
    return child in _read_past(type(owner).__mro__)


@functools.cache
def _read_past(classes: tuple[type, ...]) -> frozenset[str]:
    """Attributes of which ``forward`` reads the weight, and which no method uses as a whole."""
    uses: dict[str, list[_Uses]] = {}  # of each method, and of those it overrides
    for base in classes:
        if base is nn.Module or base.__module__ == nn.Sequential.__module__:
            break
        for name, value in vars(base).items():
            if inspect.isfunction(value):
                uses.setdefault(name, []).append(_uses(value))
    reached: set[str] = set()
    new = {"forward"} & set(uses)
    while new:
        reached |= new
        called = set().union(*(u.called for name in new for u in uses[name]))
        new = (called & set(uses)) - reached
    read = set().union(*(u.read for name in reached for u in uses[name]))
    return frozenset(read.difference(*(u.whole for found in uses.values() for u in found)))


class _Uses(NamedTuple):
    """Names ``a`` for which a method has self.a.weight, self.a not followed by a dot, self.a()."""

    read: set[str]
    whole: set[str]
    called: set[str]


def _uses(function: Callable[..., object]) -> _Uses:
    """Look at the source of a method, if it is there."""
    found = _Uses(set(), set(), set())
    try:
        method = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return found
    if not isinstance(method, ast.FunctionDef) or not method.args.args:
        return found
    self = method.args.args[0].arg
    followed = set()
    for node in ast.walk(method):  # from the outside in
        if isinstance(node, ast.Call) and (name := _own(node.func, self)):
            found.called.add(name)
        if not isinstance(node, ast.Attribute):
            continue
        if (name := _own(node.value, self)) and node.attr not in _CALLS:
            followed.add(node.value)
            if node.attr == "weight":
                found.read.add(name)
        elif (name := _own(node, self)) and not (node in followed or _is_store(node)):
            found.whole.add(name)
    return found


def _own(node: ast.AST, self: str) -> str | None:
    """The name in ``self.<name>``; None for other expressions."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == self else None
    return None


def _is_store(node: ast.Attribute) -> bool:
    """Whether an attribute is written and not read."""
    return not isinstance(node.ctx, ast.Load)
