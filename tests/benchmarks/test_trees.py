"""Another checkout of normlab beside ours, in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import normlab as nl
from benchmarks._trees import load_tree
from benchmarks.residuals import BASE, BEFORE, How, build, measure, write


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A tree that is a package of that name and no more: whose model answers like ours, and says that it is another."""
    package = tmp_path_factory.mktemp("before") / "src" / "normlab"
    for name in ("model", "schemes"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("")
    for name in ("model/transformer", "model/attention", "schemes/depth_stream", "schemes/sinkhorn"):
        (package / f"{name}.py").write_text("")
    (package / "__init__.py").write_text(
        "from torch import nn\n"
        "class TransformerConfig(dict):\n    pass\n"
        "def scheme(name, **options):\n    return name\n"
        "class Transformer(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        self.inner = nn.Embedding(config['vocab_size'], config['vocab_size'])\n"
        "    def forward(self, tokens):\n"
        "        return self.inner(tokens)\n"
    )
    return load_tree(package.parents[1])


def test_ours_stays_ours(other: object) -> None:
    assert other is not nl
    assert sys.modules["normlab"] is nl
    assert not any(
        "before" in str(getattr(m, "__file__", "")) for n, m in sys.modules.items() if n.startswith("normlab")
    )


def test_both_take_turns(other: object, tmp_path: Path) -> None:
    """The tree of before is the base, and its schemes stand beside ours."""
    assert isinstance(build("pre_norm", 1, 16), nl.Transformer)
    assert not isinstance(build("pre_norm" + BEFORE, 1, 16, other=other), nl.Transformer)
    rows = measure(["block_attn_res"], (8, 16), How(rounds=2, clock="processor", other=other), what="")
    assert [row["candidate"] for row in rows] == [BASE + BEFORE, BASE, "block_attn_res", "block_attn_res" + BEFORE]
    assert rows[0]["training"] == 1.0
    write(tmp_path / "table.md", {"conditions": {"processor": "x"}, "8x16 eager": rows}, "A table")
    text = (tmp_path / "table.md").read_text()
    assert "processor: x" in text
    assert "| block_attn_res, before |" in text


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no checkout of normlab"):
        load_tree(tmp_path)
