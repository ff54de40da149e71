"""Turns predictions into a folder that a person can read and act on."""

from bayes_dc.report.environment import describe_environment, peak_memory
from bayes_dc.report.evaluation import Cost, Evaluation, ReportError, join_predictions
from bayes_dc.report.writer import check_output, write_report

__all__ = [
    "Cost",
    "Evaluation",
    "ReportError",
    "check_output",
    "describe_environment",
    "join_predictions",
    "peak_memory",
    "write_report",
]
