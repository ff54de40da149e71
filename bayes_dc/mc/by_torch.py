"""Calls of functions that draw dropout inside torch: understood, turned on, turned off."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

Function = Callable[..., Any]

_ATTENTION = inspect.signature(F.multi_head_attention_forward)
_RECURRENT: dict[Function, str] = {
    torch.lstm: "LSTM",
    torch.gru: "GRU",
    torch.rnn_tanh: "RNN",
    torch.rnn_relu: "RNN",
}


class DrawnByTorch(NamedTuple):
    """A call of such a function.

    Attributes:
        name: What it is.
        p: Drop probability.
        on: Positional and keyword arguments with dropout on.
        off: The same with dropout off.
    """

    name: str
    p: float
    on: tuple[tuple[Any, ...], dict[str, Any]]
    off: tuple[tuple[Any, ...], dict[str, Any]]


def drawn_by_torch(
    func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> DrawnByTorch | None:
    """Understand a call.

    Args:
        func: What is called.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        None for any other function, and for one without dropout.
    """
    on, off = (args, kwargs), (args, kwargs)
    if func is F.multi_head_attention_forward:
        bound = _ATTENTION.bind(*args, **kwargs)
        name, p = "multi-head attention", float(bound.arguments["dropout_p"])
        bound.arguments["training"] = True
        on = bound.args, bound.kwargs
        bound.arguments["training"] = False
        off = bound.args, bound.kwargs
    elif func is F.scaled_dot_product_attention:
        name, p = "scaled_dot_product_attention", float(kwargs.get("dropout_p", 0.0))
        off = args, {**kwargs, "dropout_p": 0.0}
        if len(args) > 4:
            p, off = float(args[4]), ((*args[:4], 0.0, *args[5:]), kwargs)
    elif func in _RECURRENT:
        # With and without packed sequences: […, layers, dropout, training, …]
        at = 4 if isinstance(args[3], bool) else 5
        name, p = _RECURRENT[func], float(args[at + 1]) if args[at] > 1 else 0.0
        on = (*args[: at + 2], True, *args[at + 3 :]), kwargs
        off = (*args[: at + 2], False, *args[at + 3 :]), kwargs
    else:
        return None
    return DrawnByTorch(name, p, on, off) if p else None
