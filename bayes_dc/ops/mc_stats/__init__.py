"""Streaming statistics of Monte Carlo passes on a GPU: one kernel for a chunk, one for the end."""

from bayes_dc.ops.mc_stats.op import PassState, new_state, summary, update

__all__ = ["PassState", "new_state", "summary", "update"]
