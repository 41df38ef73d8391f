"""One self-contained HTML page: text, tables with CSV download, plotly figures. No network; opens from disk.

Everything that is shown is escaped (jinja2 autoescape; JSON inside scripts has `<` escaped). plotly's script is
inlined once. Colours follow the reader's light or dark setting, and a button switches them.
"""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from normlab.errors import MissingDependencyError, PageNotWritten, require
from normlab.files import write_text
from normlab.report.tables import Row, TableView, all_columns, html_table, layout, plain_text
from normlab.report.terminal import finite

if TYPE_CHECKING:
    from jinja2 import Environment

    from normlab.report.figures import Figure


class Drawn(Protocol):
    """A figure of plotly's own."""

    def to_json(self) -> str: ...


class Page:
    """Collect sections in reading order, then write.

    >>> page = Page("Five schemes at initialisation", subtitle="24 layers, d = 128")
    >>> page.heading("How the stream grows")
    >>> page.text("Pre-Norm grows like the square root of depth.")
    >>> page.table([{"scheme": "pre_norm", "rms": 7.0}], name="growth")
    >>> page.figure(figure, caption="...")          # a plotly figure, or its dict
    >>> page.write("runs/report.html")
    """

    def __init__(self, title: str, *, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self.parts: list[dict[str, object]] = []

    def heading(self, text: str, *, anchor: str | None = None, level: int = 2, short: str = "") -> None:
        """Level 2 stands in the contents, with its `short` form where it has one; level 3 does not."""
        kind = "heading" if level == 2 else "subheading"
        self.parts.append({"kind": kind, "text": text, "anchor": anchor or _slug(text), "short": short or text})

    def text(self, text: str, *, style: str = "") -> None:
        """A paragraph; style "lead" is larger, "note" is smaller, "good" / "warn" / "bad" are call-outs."""
        self.parts.append({"kind": "text", "text": text, "style": style})

    def details(self, summary: str, *paragraphs: str) -> None:
        """What only some want to read: closed until it is asked for, open on paper."""
        self.parts.append({"kind": "details", "summary": summary, "paragraphs": paragraphs})

    def links(self, links: Mapping[str, str]) -> None:
        """Words -> a file beside the page. Addresses elsewhere are refused: the page needs no network."""
        for target in links.values():
            if ":" in target or target.startswith("/"):
                raise ValueError(f"a page links to files beside it, not to {target!r}")
        self.parts.append({"kind": "links", "links": tuple(links.items())})

    def code(self, text: str) -> None:
        self.parts.append({"kind": "code", "text": text})

    def table(self, rows: Sequence[Row], *, name: str, caption: str = "", columns: Sequence[str] | None = None) -> None:
        """Dict rows; `name` is the file name of the CSV that the reader can save."""
        drawn = html_table(rows, columns=columns, caption=caption)
        self.parts.append({"kind": "table", "name": name, "fragment": drawn, "csv": _saved(layout(rows, columns))})

    def csv(self, rows: Sequence[Row], *, name: str, caption: str = "") -> None:
        """A table that is too long to show: a button that saves it."""
        view = layout(rows, all_columns(rows))
        self.parts.append({"kind": "csv", "name": name, "caption": caption, "csv": _saved(view)})

    def figure(self, figure: Figure | Drawn, *, caption: str = "", height: int = 380, label: str = "") -> None:
        """A plotly figure (or the dict of one). `label` describes it to a screen reader; the caption does if empty."""
        spec = figure if isinstance(figure, dict) else json.loads(figure.to_json())
        spec = {"data": spec.get("data", []), "layout": {**spec.get("layout", {})}}
        spec["layout"].pop("template", None)
        self.parts.append(
            {
                "kind": "figure",
                "caption": caption,
                "height": height,
                "label": label or caption,
                "spec": script_json(spec),
            }
        )

    def html(self, fragment: str) -> None:
        """Trusted markup of our own (a template's output); never pass text from outside."""
        self.parts.append({"kind": "html", "fragment": fragment})

    def render(self) -> str:
        drawn = any(part["kind"] == "figure" for part in self.parts)
        rendered: str = (
            environment()
            .get_template("page.html")
            .render(page=self, parts=self.parts, plotly=plotly_script() if drawn else "")
        )
        return rendered

    def write(self, path: str | Path) -> Path:
        return write_text(path, self.render())


def write_page(page: Page, path: str | Path) -> Path | None:
    """Like `page.write`, but a missing plotly or jinja2 is a warning and None: nobody loses an answer for its page."""
    try:
        return page.write(path)
    except MissingDependencyError as error:
        warnings.warn(f"page not written: {error}", PageNotWritten, stacklevel=2)
        return None


def environment(*folders: Path) -> Environment:
    """Templates of ours, which escape everything; those in `folders` may include the style of the pages."""
    jinja2 = require("jinja2", extra="report", purpose="an HTML report")
    places = [*folders, Path(__file__).parent / "templates"]
    made: Environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(places), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return made


def script_json(value: object) -> str:
    """JSON that is safe inside a <script> element."""
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _saved(view: TableView) -> str:
    """What the button saves: every value in full, and no text that a spreadsheet would run."""
    rows = [[plain_text(cell) for cell in line] for line in (view.columns, *view.raw)]
    return script_json(rows)


@cache
def plotly_script() -> str:
    """plotly.js as the installed package has it, with its outermost function in brackets.

    A browser parses a function that is handed on twice, once to skip it and once to run it, unless brackets say that it
    is run at once: of five megabytes that is a fifth of what opening a page takes.
    """
    offline = require("plotly.offline", extra="report", purpose="a page with plots")
    script: str = offline.get_plotlyjs()
    head, found, body = script.partition(": this, () => {\n")
    if not found or not body.rstrip().endswith("}));"):
        return script  # another plotly
    return f"{head}: this, (() => {{\n{body.rstrip()[:-4]}}})));\n"


def _slug(text: str) -> str:
    return html.escape("-".join("".join(c if c.isalnum() else " " for c in text.lower()).split()))
