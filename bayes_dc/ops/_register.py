"""What the operators of every op tell torch, and what they must know of it."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_NO_TRITON = """\
{needs} triton, which could not be imported ({cause}).
Install it (pip install triton) or move the model and its input to the CPU.
"""


@contextmanager
def importing_triton(needs: str = "A CUDA tensor needs") -> Iterator[None]:
    """Say what to do where the imports of a ``with`` block fail.

    Args:
        needs: Who needs triton, the beginning of the message.

    Yields:
        Nothing.

    Raises:
        ImportError: If an import of the block fails.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(_NO_TRITON.format(needs=needs, cause=error)) from error


def one_by_one(op: Any) -> Callable[..., tuple[Tensor, int]]:
    """A vmap rule that calls ``op`` for each element: every element meets the same draws.

    Args:
        op: An operator that returns one tensor.

    Returns:
        The rule, for ``torch.library.register_vmap``.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        def pick(i: int) -> list[Any]:
            return [a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)]

        return torch.stack([op(*pick(i)) for i in range(info.batch_size)]), 0

    return rule


def register(
    library: torch.library.Library,
    name: str,
    cpu: Callable[..., Tensor],
    cuda: Callable[..., Tensor],
    fake: Callable[..., Tensor],
) -> None:
    """Give a defined operator its implementations, its shape function and a vmap rule.

    Args:
        library: Where the operator is defined.
        name: Its name in ``bayes_dc::``.
        cpu: Implementation for CPU tensors.
        cuda: Implementation for CUDA tensors.
        fake: An empty result of the right shape and type.
    """
    library.impl(name, cpu, "CPU")
    library.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"bayes_dc::{name}", fake, lib=library)
    rule = one_by_one(getattr(torch.ops.bayes_dc, name))
    torch.library.register_vmap(f"bayes_dc::{name}", rule, lib=library)


def keep_signatures(*functions: Any) -> None:
    """Note the signature of each function's forward, which autograd asks for in every call.

    Args:
        functions: ``autograd.Function`` classes with a ``setup_context``.
    """
    for function in functions:
        function.forward.__signature__ = inspect.signature(function.forward)


def compiled_without_gradients(*tensors: Tensor | None) -> bool:
    """Whether a compiler traces a call that needs no gradient: it must see the bare operator.

    Dynamo fails on an ``autograd.Function`` with a ``setup_context`` there (torch 2.14).

    Args:
        tensors: What could need a gradient.

    Returns:
        True for the operator, False for the function.
    """
    if not torch.compiler.is_compiling():
        return False
    return not torch.is_grad_enabled() or not any(
        t is not None and t.requires_grad for t in tensors
    )
