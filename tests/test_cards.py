"""The stored cards are the schemes' own, and reading them needs no torch."""

import json
import subprocess
import sys

import pytest
from tools.cards import cards

from normlab.cards import FILE, stored_card
from normlab.errors import ConfigError


def test_the_stored_cards_are_those_of_the_schemes():
    assert json.loads(FILE.read_text(encoding="utf-8")) == json.loads(json.dumps(cards())), "run: python tools/cards.py"


def test_a_card_by_any_spelling():
    assert stored_card("block-attn-res").parent == stored_card("block_attn_res").parent
    with pytest.raises(ConfigError, match="did you mean 'peri_norm'"):
        stored_card("peri_nrom")


@pytest.mark.parametrize("arguments", [["schemes"], ["schemes", "--json"], ["schemes", "show", "keel"]])
def test_the_command_does_not_load_torch(arguments):
    code = f"import sys; from normlab.cli import run; run({arguments!r}); print('HEAVY', 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("HEAVY False")
