"""Plain tables, plots and pages. A leaf: it knows no model, so every room may draw with it."""

from normlab.report.page import Page, write_page
from normlab.report.tables import terminal_table as table
from normlab.report.terminal import bar, console, print_json, print_page, progress, sparkline

__all__ = ["Page", "bar", "console", "print_json", "print_page", "progress", "sparkline", "table", "write_page"]
