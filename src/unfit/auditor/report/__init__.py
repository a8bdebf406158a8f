"""Images and the page, from a saved Audit only."""

from unfit.auditor.report.page import write_report

__all__ = ["write_report"]
