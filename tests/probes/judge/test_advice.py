"""What the verdicts advise can be typed: every command they name exists and takes the options and schemes it is given."""

import re

import pytest

import normlab as nl
from normlab.cli import app
from normlab.probes.judge.advice import TEXTS, advise

COMMAND = re.compile(r"normlab ((?:[a-z]+)(?: (?:--)?[A-Za-z_][\w,.-]*)*)")


def commands():
    return [(verdict, found) for verdict in TEXTS for found in COMMAND.findall(advise(verdict))]


def test_there_are_commands_to_check():
    assert len(commands()) >= 5


@pytest.mark.parametrize(("verdict", "words"), commands(), ids=lambda value: value.replace(" ", "_"))
def test_advised_commands_exist(verdict, words):
    import typer

    root = typer.main.get_command(app)
    name, *rest = words.split()
    assert name in root.commands, f"{verdict} advises `normlab {name}`"
    command = root.commands[name]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options
    for names in (rest[i + 1] for i, word in enumerate(rest) if word == "--schemes"):
        assert set(names.split(",")) <= set(nl.SCHEMES)


@pytest.mark.parametrize("verdict", TEXTS)
def test_no_model_is_told_to_try_its_own_scheme(verdict):
    for own in [*nl.SCHEMES, "mixed", "all_norms"]:
        prose, _, command = advise(verdict, own).partition("normlab ")
        assert own not in re.findall(r"\w+", prose)
        for names in re.findall(r"--schemes (\S+)", command):
            chosen = names.split(",")
            assert len(set(chosen)) == len(chosen) >= 2
            assert set(chosen) <= set(nl.SCHEMES)


def test_a_scheme_is_compared_with_its_own():
    advice = advise("pre_norm_dilution", "ln_scaling")
    assert "To test peri_norm or block_attn_res at your depth" in advice
    assert advice.endswith("normlab compare --schemes ln_scaling,peri_norm,block_attn_res")
    assert advise("pre_norm_dilution", "gpas").endswith("--schemes pre_norm,ln_scaling,peri_norm,block_attn_res")


def test_no_advice_changes_a_model_that_may_only_need_mending():
    """`swap` has shown no gain, and `prune` saves a layer that the skip experiment says is not needed."""
    pruned = {verdict for verdict in TEXTS if "normlab prune" in advise(verdict)}
    assert pruned == {"wasted_layers", "duplicated_layers"}
    assert not [verdict for verdict in TEXTS if "normlab swap" in advise(verdict) or "for good" in advise(verdict)]
