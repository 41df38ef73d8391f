"""`check_against` passes what is right and names what is wrong, on ports written by hand and on transformers' decoders."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import normlab as nl
from normlab.cli import run
from normlab.errors import ConfigError, ContractError, InputError
from tests.testing.ports import DIM, AttnRes, Mhc

HERE = Path(__file__).parent


@pytest.mark.parametrize("port", [Mhc, AttnRes])
def test_the_right_port_passes(port):
    found = nl.testing.check_against(port())
    assert found.passed
    assert found.scheme == port().config.name
    assert {"start", "outputs", "gradients", "large logits"} <= {finding.rule for finding in found.findings}


PLANTED = [
    (Mhc, "comb not transposed", "not transposed"),
    (Mhc, "bias zero", "biases never set"),
    (Mhc, "H_res not applied", "computed but not applied"),
    (Mhc, "output read missing", "output read is missing: the plain sum"),
    (Mhc, "gain forgotten", "a norm's gain is forgotten"),
    (Mhc, "gradient cut", "gradient that leaves out part of the path"),
    (AttnRes, "output read missing", "output read is missing: the plain sum of the sources"),
    (AttnRes, "gain forgotten", "the key norm's gain is forgotten"),
    (AttnRes, "no key norm", "keys are not normalised"),
    (AttnRes, "sqrt(d)", r"divided by sqrt\(d\)"),
    (AttnRes, "queries not zero", "do not start at zero"),
]


@pytest.mark.parametrize(("port", "mistake", "words"), PLANTED, ids=[f"{p.__name__}-{m}" for p, m, _ in PLANTED])
def test_a_planted_mistake_is_named_and_nothing_else(port, mistake, words):
    with pytest.raises(ContractError, match=words):
        nl.testing.check_against(port(mistake))
    found = nl.testing.examine(port(mistake))
    assert len(found.mistakes) == 1, found.mistakes


def test_trained_weights_are_not_judged_as_a_start():
    found = nl.testing.examine(Mhc("bias zero"), trained=True)
    assert found.passed
    assert "start" not in {finding.rule for finding in found.findings}


def test_what_is_tried_leaves_no_trace():
    module = Mhc()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    nl.testing.examine(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


# -- one connection or one read, from outside ---------------------------------------------------------------------------
def one_connection(streams=4, dim=DIM, **options):
    """The first branch's connection of our own scheme, as a black box."""
    made = nl.scheme("mhc", streams=streams, **options).build(nl.testing.Frame(dim, nl.testing.make_sites(1)))
    site = made.frame.sites[0]

    def step(module, given, branch):
        pre, post, res = module.coefficients(given, site)
        return res @ given + post.unsqueeze(-1) * branch((pre.unsqueeze(-1) * given).sum(-2)).unsqueeze(-2)

    return nl.testing.Connection("a black box", made, streams, dim, step)


def changed(port, step):
    return nl.testing.Connection(port.what, port.module, port.streams, port.dim, step)


def test_a_connection_from_outside():
    port = one_connection()
    assert nl.testing.check_against(port, "mhc").passed
    site = port.module.frame.sites[0]

    def dropped(module, given, branch):
        pre, post, _ = module.coefficients(given, site)
        return given + post.unsqueeze(-1) * branch((pre.unsqueeze(-1) * given).sum(-2)).unsqueeze(-2)

    with pytest.raises(ContractError, match="computed but not applied"):
        nl.testing.check_against(changed(port, dropped), "mhc")

    def cut(module, given, branch):
        pre, post, res = module.coefficients(given, site)
        return res.detach() @ given + post.unsqueeze(-1) * branch((pre.unsqueeze(-1) * given).sum(-2)).unsqueeze(-2)

    with pytest.raises(ContractError, match="leaves out part of the path"):
        nl.testing.check_against(changed(port, cut), "mhc")

    def turned(module, given, branch):
        pre, post, res = module.coefficients(given, site)
        y = branch((pre.unsqueeze(-1) * given).sum(-2))
        return res.transpose(-1, -2) @ given + post.unsqueeze(-1) * y.unsqueeze(-2)

    found = nl.testing.check_against(changed(port, turned), "mhc")
    said = {finding.rule: finding.seen for finding in found.findings}
    assert "with DeepSeek-V4's weights comb would not be transposed" in said["doubly stochastic"]
    straight = {finding.rule: finding.seen for finding in nl.testing.check_against(port, "mhc").findings}
    assert "transposed" not in straight["doubly stochastic"]


class Operator(nn.Module):
    """The read of the package attn-res: a query, keys without a gain."""

    def __init__(self, mistake=""):
        super().__init__()
        self.pseudo_query, self.mistake = nn.Parameter(torch.zeros(DIM)), mistake

    def forward(self, sources):
        keys = sources if self.mistake == "no key norm" else nn.functional.rms_norm(sources, (DIM,), eps=1e-6)
        logits = keys @ self.pseudo_query / (DIM**0.5 if self.mistake == "sqrt(d)" else 1.0)
        return (torch.softmax(logits, 0).unsqueeze(-1) * sources).sum(0)


def test_a_read_of_sources_from_outside():
    assert nl.testing.check_against(Operator()).scheme == "attn_res"
    with pytest.raises(ContractError, match="keys are not normalised"):
        nl.testing.check_against(Operator("no key norm"))
    with pytest.raises(ContractError, match=r"divided by sqrt\(d\)"):
        nl.testing.check_against(Operator("sqrt(d)"))


# -- bad input -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("thing", "error", "words"),
    [
        (lambda: one_connection(streams=1), ConfigError, "one stream: its mixing is the number 1"),
        (
            lambda: nl.testing.Connection("", nn.Linear(3, 3), 8, 3, lambda *_: None),
            ConfigError,
            "8 streams of width 3: their mixing cannot be told",
        ),
        (lambda: nn.Linear(4, 4), InputError, "Linear is no residual that can be recognised: expected the verbs"),
        (lambda: 3, InputError, "int is no torch module"),
        (
            lambda: nl.testing.Connection(
                "", nn.Linear(DIM, DIM).double(), 2, DIM, lambda m, x, f: m(x) + f(x[..., 0, :])[..., None, :]
            ),
            InputError,
            "Linear is no residual of streams",
        ),
    ],
    ids=["one stream", "too many streams", "no residual", "no module", "no residual of streams"],
)
def test_bad_input_is_one_sentence(thing, error, words):
    with pytest.raises(error, match=words):
        nl.testing.check_against(thing(), "mhc")


# -- the command ---------------------------------------------------------------------------------------------------------
def test_the_command(capsys):
    assert run(["verify", f"{HERE / 'ports.py'}:right"]) == 0
    assert "Mhc (the four verbs) against mhc: passes" in capsys.readouterr().out
    assert run(["verify", f"{HERE / 'ports.py'}:untransposed", "--strict", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert any("not transposed" in (f["looks_like"] or "") for f in found["findings"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch.nn", "names no object"),
        ("torch.nn:Linnear", "cannot be loaded"),
        ("torch.nn:Linear", "cannot be called without arguments"),
        ("torch.nn:Identity", "Identity is no residual that can be recognised"),
        ("nowhere.py:x", "cannot be loaded"),
    ],
)
def test_the_command_says_what_is_wrong(name, words, capsys):
    assert run(["verify", name]) == 2
    text = capsys.readouterr().err
    assert words in text
    assert len(text.strip().splitlines()) == 1


def test_help_needs_no_torch():
    script = "from normlab.cli import run; run(['verify', '--help']); import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
