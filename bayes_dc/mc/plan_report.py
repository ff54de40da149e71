"""The table of a plan: every buffer with its operator, bytes, lifetime and offset."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayes_dc.mc.plan import Plan

_HEAD = """\
Plan for up to {capacity} inputs and {T} passes on {device}, {passes} passes in a chunk, mode {mode}
{once} steps once, {per_chunk} for each chunk, {sites} places that draw masks
arena {arena}, lower bound {bound} ({ratio:.3f} times), sum of tensors {sum}; offsets: {how}
without a plan: {eager} of tensors at once, and what operators take for themselves
{in_place} results in place, scratch {scratch}, constants {constants} of which derived {derived}
"""
_WORKSPACES = "libraries may allocate in {names}\n"


def report(plan: "Plan") -> str:
    """Everything a plan says about memory.

    Args:
        plan: The plan.

    Returns:
        Lines of text.
    """
    once = sum(step.phase == "once" for step in plan.steps)
    head = _HEAD.format(
        capacity=plan.capacity,
        T=plan.T,
        device=plan.device,
        passes=plan.passes,
        mode=plan.mode,
        once=once,
        per_chunk=len(plan.steps) - once,
        sites=len(plan.sites),
        arena=amount(plan.arena_bytes),
        bound=amount(plan.lower_bound),
        ratio=plan.arena_bytes / max(plan.lower_bound, 1),
        sum=amount(plan.sum_bytes),
        eager=amount(plan.eager_bytes),
        how=plan.how,
        in_place=plan.in_place,
        scratch=amount(sum(s.nbytes for s in plan.storages if s.kind == "scratch")),
        constants=amount(sum(s.nbytes for s in plan.constants)),
        derived=amount(sum(s.nbytes for s in plan.derived)),
    )
    if plan.library_workspaces:
        head += _WORKSPACES.format(names=", ".join(plan.library_workspaces))
    rows: list[tuple[str, ...]] = [("buffer", "operator", "kind", "bytes", "steps", "offset")]
    rows += [
        (s.name, s.op, s.kind, f"{s.nbytes:,}", f"{s.start} … {s.end}", f"{s.offset:,}")
        for s in plan.storages
        if s.offset is not None
    ]
    return head + table(rows)


def amount(nbytes: int) -> str:
    """Bytes in a unit that suits them.

    Args:
        nbytes: How many.

    Returns:
        E.g. ``"1.5 MiB"``.
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width, numbers to the right.

    Args:
        rows: The head first.

    Returns:
        Lines of text.
    """
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    right = {c for c, name in enumerate(rows[0]) if name in {"bytes", "offset"}}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if c in right else cell.ljust(width)
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
