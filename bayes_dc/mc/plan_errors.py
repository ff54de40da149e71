"""What is said where a forward cannot be planned."""

from typing import NoReturn

_REFUSED = "No plan without allocations for {op} at {node}{source}: {why}. {remedy}"
_SOURCE = " ({source})"
FOLDED = "predict_with_uncertainty(..., engine='folded') runs the model as it is"
"""The way that is always open."""

MIXES = (
    "it works along the dimension of the inputs, whose rows it would mix",
    "A row of the result may depend on one input only; keep the inputs along one dimension of "
    "their own and compute along the others.",
)
"""Why and remedy of an operation along the rows."""


class PlanError(ValueError):
    """A model, or a node of it, for which there is no plan.

    Args:
        op: The operator.
        node: Name of the node in the exported graph.
        source: File and line of the model, or "".
        why: What does not work, a clause.
        remedy: What to do, sentences.

    Attributes:
        op: As given; the others too.
    """

    def __init__(self, op: str, node: str, source: str, why: str, remedy: str) -> None:
        where = _SOURCE.format(source=source) if source else ""
        remedy = remedy or f"A call of {FOLDED}."
        super().__init__(_REFUSED.format(op=op, node=node, source=where, why=why, remedy=remedy))
        self.op, self.node, self.source, self.why, self.remedy = op, node, source, why, remedy


def refuse(op: str, node: str, source: str, why: str, remedy: str = "") -> NoReturn:
    """Raise ``PlanError``.

    Args:
        op: The operator.
        node: Name of the node.
        source: File and line of the model, or "".
        why: What does not work, a clause.
        remedy: What to do, sentences; "" names the folded path.

    Raises:
        PlanError: Always.
    """
    raise PlanError(op, node, source, why, remedy)
