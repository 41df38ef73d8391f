"""Plain tables, plots and pages. A leaf: it knows no model, so every room may draw with it."""

from normlab.report.page import Page
from normlab.report.tables import terminal_table as table
from normlab.report.terminal import bar, console, print_json, progress, sparkline

__all__ = ["Page", "bar", "console", "print_json", "progress", "sparkline", "table"]
