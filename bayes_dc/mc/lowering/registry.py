"""Rules: how an operator of the exported graph becomes steps of a plan."""

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
"""``rule(context, *args, **kwargs)`` with the arguments of the node: ``Value`` for tensors and
``Rows`` for sizes that follow the batch. Returns a ``Value``, or a tuple with None for results that
are not computed."""

_RULES: dict[tuple[object, str], Rule] = {}
_DEVICES = ("cpu", "cuda")


def lowering(*targets: object, devices: tuple[str, ...] = _DEVICES) -> Callable[[Rule], Rule]:
    """Register a rule for operators.

    Args:
        targets: Overloads, e.g. ``torch.ops.aten.relu.default``.
        devices: Types of device it is for.

    Returns:
        A decorator that returns the rule as it is.
    """

    def register(rule: Rule) -> Rule:
        _RULES.update({(target, device): rule for target in targets for device in devices})
        return rule

    return register


def rule_for(target: object, device: str) -> Rule | None:
    """The rule of an operator.

    Args:
        target: The overload.
        device: Type of the device.

    Returns:
        None where there is none.
    """
    return _RULES.get((target, device))
