"""Tutorials: Python files in the percent format, executed as notebooks when the site is built.

A cell whose code fails, fails the build. The notebook with its outputs can be downloaded beside the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SECONDS = 300


def tutorials() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs; it runs in `folder`."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    folder.mkdir(parents=True, exist_ok=True)
    place = {"transport": "ipc", "ip": str(folder.resolve() / "kernel")}  # sockets in the folder: no port is opened
    how = Config({"KernelManager": place})
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_name="python3", timeout=SECONDS, resources=where, config=how).execute()
    return notebook


def as_markdown(notebook: nbformat.NotebookNode, *, source: str) -> str:
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code" and cell.source.strip():
            parts.append(f"```python\n{cell.source}\n```")
            parts += [shown for output in cell.outputs if (shown := _output(output))]
    parts.append(f"*This page is a notebook that ran when the site was built: [download it]({source}.ipynb).*")
    return "\n\n".join(parts) + "\n"


def _output(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return _block(output.text) if output.name == "stdout" else ""
    if output.output_type not in ("execute_result", "display_data"):
        return ""
    if "image/svg+xml" in output.data:
        return f'<figure class="scheme" markdown="0">{output.data["image/svg+xml"]}</figure>'
    return _block(output.data.get("text/plain", ""))


def _block(text: str) -> str:
    lines = [line.rstrip().split("\r")[-1] for line in ANSI.sub("", text).rstrip().splitlines()]
    return "```{.text .output}\n" + "\n".join(lines) + "\n```" if lines else ""


def write(path: Path, out: Path, scratch: Path) -> None:
    notebook = execute(path, scratch / path.stem)
    nbformat.write(notebook, out / f"{path.stem}.ipynb")
    (out / f"{path.stem}.md").write_text(as_markdown(notebook, source=path.stem), encoding="utf-8")
