"""Modules that read the weights of their layers without calling the layers."""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

_CALLS = {"forward", "__call__"}
_WALKS = {"children", "modules", "named_children", "named_modules", "values", "items", "_modules"}
_Name = tuple[str, int | str | None]
"""``(a, None)`` for self.a, ``(a, 0)`` for self.a[0]."""


def read_past(owner: nn.Module) -> list[nn.Module]:
    """Modules of which ``owner`` reads the weight and which it never calls.

    ``F.linear(x, self.fc.weight)`` or ``F.linear(x, self.layers[0].weight)``: a mask in such a
    layer would have no effect. Found in the source of the owner's class; a class without source is
    taken to call what it holds.

    Args:
        owner: A module.

    Returns:
        Children, and items of lists, of which ``forward``, and the methods it calls, do that.
    """
    read, whole = _names(type(owner).__mro__)
    used = {id(module) for name in whole for module in _meant(owner, name, within=True)}
    found = [module for name in read for module in _meant(owner, name)]
    return [module for module in found if id(module) not in used]


def _meant(owner: nn.Module, name: _Name, *, within: bool = False) -> list[nn.Module]:
    """The module of a name, if there is one, and on request those that it holds as a list."""
    attribute, index = name
    module = dict(owner._modules.items()).get(attribute)  # of TorchScript no dictionary
    if module is None:
        return []
    is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
    items = list(module._modules.values()) if is_list or isinstance(module, nn.ModuleDict) else []
    if index is None:
        found = [module, *items] if within else [module]
    elif is_list and isinstance(index, int):
        found = [items[index]] if -len(items) <= index < len(items) else []
    else:
        found = [module._modules.get(index)] if items and isinstance(index, str) else []
    return [m for m in found if m is not None]


@functools.cache
def _names(classes: tuple[type, ...]) -> tuple[frozenset[_Name], frozenset[_Name]]:
    """Of what ``forward`` reads the weight, and what any method uses as a whole."""
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
    read = frozenset().union(*(u.read for name in reached for u in uses[name]))
    return read, frozenset().union(*(u.whole for found in uses.values() for u in found))


class _Uses(NamedTuple):
    """What a method has as self.a.weight, as self.a not followed by a dot, and as self.a()."""

    read: set[_Name]
    whole: set[_Name]
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
    followed: set[ast.AST] = set()
    for node in ast.walk(method):  # from the outside in
        if isinstance(node, ast.Call) and (name := _own(node.func, self)):
            found.called.add(name[0])
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            continue
        name = _own(node, self)
        if name and isinstance(node, ast.Subscript):
            followed.add(node.value)
        if name and not (node in followed or _is_store(node)):
            found.whole.add(name)
        if not isinstance(node, ast.Attribute) or node.attr in _CALLS | _WALKS:
            continue
        if name := _own(node.value, self):
            followed.add(node.value)
            if node.attr == "weight":
                found.read.add(name)
    return found


def _own(node: ast.AST, self: str) -> _Name | None:
    """The name in ``self.<name>`` and ``self.<name>[<constant>]``; None for other expressions."""
    if isinstance(node, ast.Subscript):
        name, index = _own(node.value, self), _constant(node.slice)
        return (name[0], index) if name and name[1] is None and index is not None else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.attr, None) if node.value.id == self else None
    return None


def _constant(node: ast.AST) -> int | str | None:
    """A number or text that is written out, also a negative number."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, (int, str)) else None


def _is_store(node: ast.Attribute | ast.Subscript) -> bool:
    """Whether an attribute is written and not read."""
    return not isinstance(node.ctx, ast.Load)
