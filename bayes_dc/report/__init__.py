"""Turns predictions into a folder that a person can read and act on."""

from bayes_dc.report.compare import compare_sides, comparison_table, read_side
from bayes_dc.report.environment import describe_environment, peak_memory
from bayes_dc.report.estimate import FEWEST, Estimate
from bayes_dc.report.evaluation import Cost, Evaluation, Named, ReportError
from bayes_dc.report.layout import published_schema, read_report
from bayes_dc.report.plots_sections import plot_differences
from bayes_dc.report.sections import (
    OODSet,
    RotatedInput,
    SeedRun,
    ShiftPoint,
    ShiftSweep,
    Temperature,
)
from bayes_dc.report.shifted import TURNED, shift_point
from bayes_dc.report.writer import check_output, write_report

__all__ = [
    "FEWEST",
    "TURNED",
    "Cost",
    "Estimate",
    "Evaluation",
    "Named",
    "OODSet",
    "ReportError",
    "RotatedInput",
    "SeedRun",
    "ShiftPoint",
    "ShiftSweep",
    "Temperature",
    "check_output",
    "compare_sides",
    "comparison_table",
    "describe_environment",
    "peak_memory",
    "plot_differences",
    "published_schema",
    "read_report",
    "read_side",
    "shift_point",
    "write_report",
]
