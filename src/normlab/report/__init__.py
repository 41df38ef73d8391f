"""Plain tables, plots and pages. A leaf: it knows no model, so every room may draw with it."""

from normlab.report.page import Page
from normlab.report.terminal import bar, console, print_json, progress, sparkline, table

__all__ = ["Page", "bar", "console", "print_json", "progress", "sparkline", "table"]
