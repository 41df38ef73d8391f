"""Another checkout of normlab beside ours, in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import normlab as nl
from benchmarks._trees import Tree, belongs, load_tree
from benchmarks.residuals import BASE, BEFORE, How, build, measure, write
from normlab.schemes.depth_stream import DepthAttention


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree whose model answers like ours, and imports a part of itself only when it is built."""
    package = tmp_path_factory.mktemp("before") / "src" / "normlab"
    (package / "schemes").mkdir(parents=True)
    (package / "schemes" / "__init__.py").write_text("")
    (package / "schemes" / "depth_stream.py").write_text("class DepthAttention:\n    pass\n")
    (package / "__init__.py").write_text(
        "from torch import nn\n"
        "class TransformerConfig(dict):\n    pass\n"
        "def scheme(name, **options):\n    return name\n"
        "class Transformer(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        from normlab.schemes.depth_stream import DepthAttention\n"
        "        self.scheme = DepthAttention()\n"
        "        self.inner = nn.Embedding(config['vocab_size'], config['vocab_size'])\n"
        "    def forward(self, tokens):\n"
        "        return self.inner(tokens)\n"
    )
    return load_tree(package.parents[1])


def test_ours_stays_ours(other: Tree) -> None:
    assert other.package is not nl
    with other.taking_turns() as package:
        assert sys.modules["normlab"] is package
    assert sys.modules["normlab"] is nl
    assert not any(
        "before" in str(getattr(m, "__file__", "")) for n, m in sys.modules.items() if n.startswith("normlab")
    )


def test_what_is_imported_late_is_the_other_trees(other: Tree) -> None:
    """An old scheme that is built from our classes would be compared with itself."""
    scheme = build("block_attn_res" + BEFORE, 1, 16, other=other).scheme
    assert type(scheme) is not DepthAttention
    assert belongs(other.modules[type(scheme).__module__], other.source)
    assert type(build("block_attn_res", 8, 16).scheme) is DepthAttention


def test_both_take_turns(other: Tree, tmp_path: Path) -> None:
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
