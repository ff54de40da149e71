"""Streaming statistics of Monte Carlo passes: one kernel for a chunk, one for the end."""

from bayes_dc.ops.mc_stats.op import (
    Launchers,
    PassState,
    fields,
    launchers,
    new_state,
    row_entries,
    state_entries,
    state_in,
    summary,
    update,
)

__all__ = [
    "Launchers",
    "PassState",
    "fields",
    "launchers",
    "new_state",
    "row_entries",
    "state_entries",
    "state_in",
    "summary",
    "update",
]
