"""What depends on no input: parameters, buffers, and what is computed from them once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.layouts import fixed
from bayes_dc.mc.plan_types import Storage, Value
from bayes_dc.mc.trace_types import Node, mapped
from bayes_dc.mc.views import argument, expanded, packet, tensor_of

_FILLS = {"zeros": 0, "ones": 1, "empty": 0}
FACTORIES = frozenset(
    f"{before}{name}{after}"
    for name in (*_FILLS, "full")
    for before, after in (("", ""), ("new_", ""), ("", "_like"))
)
"""Names of operators that make tensors of equal entries."""


class Constants:
    """The constants of a plan.

    Args:
        device: Where they lie.
    """

    def __init__(self, device: torch.device) -> None:
        self.memory = device
        self.constants: list[Storage] = []
        self._scalars: dict[tuple[float, torch.dtype], Value] = {}

    def constant(self, storage: Storage) -> Value:
        """Take a constant into the plan.

        Args:
            storage: With its tensor.

        Returns:
            The whole of it.
        """
        tensor = storage.tensor
        assert tensor is not None
        storage.nbytes = tensor.numel() * tensor.element_size()
        self.constants.append(storage)
        layout = fixed(tensor.shape, tensor.stride())
        return Value(storage, tuple(tensor.shape), tensor.dtype, layout, "constant")

    def parameter(self, node: Node) -> Value:
        """A parameter or buffer.

        Args:
            node: Its node.

        Returns:
            A constant.
        """
        assert node.tensor is not None
        name = node.attribute or node.name
        return self.constant(
            Storage(name, "constant", "constant", tensor=node.tensor, target=node.attribute)
        )

    def derive(
        self, compute: Callable[..., Tensor], sources: Sequence[Value], name: str, op: str
    ) -> Value:
        """A constant computed from constants.

        Args:
            compute: What computes it.
            sources: Constants it gets the tensors of.
            name: Its name.
            op: What it belongs to.

        Returns:
            A constant.
        """
        given = [tensor_of(source) for source in sources]
        tensor = compute(*given)
        if any(_shares(tensor, source) for source in given):
            tensor = tensor.clone()
        return self.constant(
            Storage(name, op, "derived", tensor=tensor, compute=compute, sources=tuple(sources))
        )

    def scalar(self, number: float, dtype: torch.dtype) -> Value:
        """A number as a constant.

        Args:
            number: The number.
            dtype: Its type.

        Returns:
            A constant without dimensions.
        """
        known = self._scalars.get((number, dtype))
        if known is None:
            tensor = torch.tensor(number, dtype=dtype, device=self.memory)
            known = self.constant(Storage(str(number), "number", "constant", tensor=tensor))
            self._scalars[number, dtype] = known
        return known

    def filled(self, node: Node) -> Value:
        """A tensor of equal entries for every row, without memory for them.

        Args:
            node: One of ``FACTORIES``.

        Returns:
            A number with zero strides.
        """
        meta, name = node.outs[0], packet(node.target)
        assert meta is not None
        number = argument(node, "fill_value")
        if number is None:
            number = _FILLS[name.removeprefix("new_").removesuffix("_like")]
        return expanded(self.scalar(number, meta.dtype), meta, node.kind)

    def folded(self, node: Node, value_of: Callable[[Any], Any]) -> Any:
        """What an operator computes from constants: now, and again when they change.

        Args:
            node: A node of constants only.
            value_of: Gives the value of a node, anything else as it is.

        Returns:
            A constant, or a tuple of them.
        """
        reads = [read for read in node.inputs if isinstance(value_of(read), Value)]
        sources = [value_of(read) for read in reads]

        def computing(index: int) -> Callable[..., Tensor]:
            def compute(*tensors: Tensor) -> Tensor:
                given = dict(zip(reads, tensors, strict=True))

                def taken(leaf: Any) -> Any:
                    return given[leaf] if isinstance(leaf, Node) else leaf

                args, kwargs = mapped((node.args, node.kwargs), taken)
                result = node.target(*args, **kwargs)
                return result[index] if node.many else result

            return compute

        made = [
            self.derive(computing(index), sources, node.name, node.op) if meta else None
            for index, meta in enumerate(node.outs)
        ]
        return tuple(made) if node.many else made[0]


def _shares(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one memory."""
    same = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return same and one.numel() > 0
