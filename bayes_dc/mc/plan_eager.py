"""What the same passes would hold without a plan: every result in memory of its own."""

import operator
from dataclasses import dataclass

from bayes_dc.mc.trace_types import Node, Trace
from bayes_dc.mc.views import VIEWS, packet


@dataclass(eq=False)
class _Buffer:
    """Memory of one result, from the node that made it to the last one that reads it."""

    nbytes: int
    first: int
    last: int


def eager_bytes(trace: Trace, b: int, passes: int) -> int:
    """Most bytes of tensors that one chunk of passes holds at once in eager mode.

    Every operator's result takes memory of its own, views none, and it is let go after its last
    reader; the input, which the caller holds, and what is computed once for all chunks stay.
    Parameters, what depends on them alone, and memory that operators take for themselves are left
    out; operators that work in place count as if they did not.

    Args:
        trace: A forward of one pass.
        b: Inputs.
        passes: Passes of the chunk.

    Returns:
        Bytes.
    """
    end = len(trace.nodes)
    held: dict[Node, list[_Buffer]] = {}
    made: list[_Buffer] = []
    for node in trace.nodes:
        if node.kind == "constant":
            continue
        item = node.target is operator.getitem
        if item and not _is_view(node.inputs[0], trace):
            of, index = node.args
            held[node] = held[of][index : index + 1]
        elif item or _is_view(node, trace):
            held[node] = held.get(node.inputs[0], [])
        else:
            # Several results: a place for each, so that getitem finds its own.
            sizes = [m.layout(b, passes).end() * m.dtype.itemsize if m else 0 for m in node.outs]
            held[node] = [_Buffer(nbytes, node.index, node.index) for nbytes in sizes]
            made += held[node]
        for read in node.inputs:
            stays = node.kind == "folded" and read.kind == "plain"  # until the last chunk
            for buffer in held[node] if item else held.get(read, []):
                buffer.last = end if stays else max(buffer.last, node.index)
    for kept in (trace.input, trace.output):
        for buffer in held[kept]:
            buffer.last = end
    change = [0] * (end + 2)
    for buffer in made:
        change[buffer.first] += buffer.nbytes
        change[buffer.last + 1] -= buffer.nbytes
    most = now = 0
    for step in change:
        now += step
        most = max(most, now)
    return most


def _is_view(node: Node, trace: Trace) -> bool:
    """Whether results lie in memory of the operand; so does the trace's own copy of the input."""
    name = packet(node.target)
    return name in VIEWS or (name == "clone" and node.inputs == [trace.input])
