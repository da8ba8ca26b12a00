"""The report of a run: one offline HTML file and PNG plots, from the run folder alone."""

from vlmrl.report.page import build_report

__all__ = ["build_report"]
