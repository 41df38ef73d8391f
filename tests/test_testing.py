"""The contract suite over the whole registry, over the variants, and over schemes that are wrong on purpose."""

from typing import Literal

import pytest
import torch

import normlab as nl
from normlab import testing
from normlab.errors import ConfigError, ContractError
from normlab.schemes.base import Card, Scheme, SchemeConfig

QUICK = [name for name in testing.CHECKS if name != "data_parallel"]
VARIANTS = {
    "attn_res": [
        {"mixing": "sigmoid"},
        {"mixing": "static"},
        {"query": "input"},
        {"heads": 4},
        {"key_norm": False},
        {"window": 2},
        {"output_read": False},
        {"inner": "peri_norm"},
        {"inner": "res_norm"},
        {"inner": "post_norm"},
        {"inner": "ln_scaling"},
        {"inner": "hybrid_norm"},
        {"inner": "gpas"},
    ],
    "block_attn_res": [
        {"blocks": 1},
        {"blocks": 3},
        {"block_size": 1},
        {"block_size": 3},
        {"block_size": 3, "inner": "peri_norm", "window": 2},
        {"blocks": 2, "mixing": "sigmoid", "heads": 2},
        {"inner": "mix_norm"},
        {"inner": "sub_norm"},
    ],
    "hyper_connections": [{"dynamic": False}, {"streams": 1}, {"streams": 3}],
    "mhc": [
        {"initial": "stream"},
        {"initial": "identity", "streams": 2},
        {"streams": 1},
        {"head": "mean", "eps": 1e-6},
        {"single_pass": True, "streams": 3},
    ],
    "independent_hc": [{"streams": 2, "magnitude": 1.0}],
    "gated_residual": [{"streams": 2, "rank": 5}],
    "lambda_skip": [{"backout": True}, {"initial": "plain"}],
    "delta_attn_res": [{"null_source": True}],
    "dense_former": [{"dilation": 2}, {"period": 2}, {"dilation": 2, "period": 3}],
    "hybrid_norm": [{"pre_first_layer": True}],
    "keel": [{"plain_first_layer": False}, {"alpha": 3.0}],
    "post_norm": [{"embedding_norm": True, "final_norm": True}],
    "pre_norm": [{"final_norm": False}],
    "mix_norm": [{"post_fraction": 0.5}],
    "layer_scale": [{"initial": 0.3}],
}
CASES = [(name, options) for name, cases in VARIANTS.items() for options in cases]
# These speak of the default setting only: its formula, and (slow to check again) its compilation and DDP.
OF_THE_DEFAULT = ("parameters_as_stated", "data_parallel", "compiles")


@pytest.mark.parametrize("rule", QUICK)
@pytest.mark.parametrize("name", nl.SCHEMES)
def test_contract(name, rule):
    assert testing.check_scheme(name, only=[rule]) == [rule]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{o}" for n, o in CASES])
def test_contract_of_variants(name, options):
    testing.check_scheme(nl.scheme(name, **options), skip=OF_THE_DEFAULT)


def test_data_parallel():
    """Two gloo processes, started once for the whole registry."""
    testing.check_data_parallel([config() for config in nl.SCHEMES.values()])


@pytest.mark.parametrize("name", [pytest.param("pre_norm", marks=pytest.mark.slow), "block_attn_res"])
def test_the_default_compiler_agrees_too(name):
    testing.check_compiled(nl.scheme(name), backend="inductor")


def test_there_are_enough_schemes():
    assert len(nl.SCHEMES) >= 32


def test_an_unknown_rule_is_named():
    with pytest.raises(ConfigError, match="did you mean 'compiles'"):
        testing.check_scheme("pre_norm", only=["compile"])


# -- the suite must fail on what is wrong ------------------------------------------------------------------------------
class Wrong(SchemeConfig):
    """A scheme with one fault, chosen by `fault`."""

    card = Card(family="wrong", equation="-", citation="-", growth="-", extra_parameters="M*d", parent="pre_norm")
    name: Literal["wrong"] = "wrong"
    fault: str = "none"

    def build(self, frame):
        return WrongStream(self, frame)

    def growth(self, frame):
        return [1.0 + i for i in range(len(frame.sites) + 1)]

    def neutral(self):
        return self


class WrongStream(Scheme):
    """x <- x + g F(N(x)), g one, with a fault."""

    def __init__(self, config, frame):
        super().__init__(config, frame, pre=True)
        self.fault = config.fault
        self.gain = torch.nn.Parameter(torch.ones(len(frame.sites), frame.dim))
        self.unused = torch.nn.Parameter(torch.ones(3)) if self.fault == "unused" else None
        self.final = frame.new_norm()

    def reset_parameters(self):
        if self.fault != "meta":
            torch.nn.init.ones_(self.gain)

    def open(self, x):
        return self._source(x)

    def read(self, stream, site):
        h = stream
        if self.fault == "leak":
            h = h + h.mean(1, keepdim=True)
        if self.fault == "batch":
            h = h + h.mean(0, keepdim=True)
        if self.fault == "impure":
            stream += 1e-3
        return self.enter(h, site), None

    def write(self, stream, y, carry, site):
        y = self.leave(self.gain[site.index] * y, site)
        if self.fault == "grow":
            y = 2 * y
        if self.fault == "nonlinear":
            y = y * stream.tanh()
        if self.fault == "graph_break" and y.sum().item() > 1e9:
            y = -y
        return stream + y

    def close(self, stream):
        return self.final(self._read(stream))


nl.register(Wrong)


@pytest.fixture(scope="module", autouse=True)
def _unregister():
    yield
    nl.SCHEMES.pop("wrong", None)


nl.SCHEMES.pop("wrong")  # keep it out of the parametrised tests above


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("leak", "no_future_leak"),
        ("leak", "cached_generation"),
        ("batch", "batch_permutation"),
        ("impure", "verbs_are_pure"),
        ("grow", "growth_law"),
        ("grow", "neutral_equals_parent"),
        ("nonlinear", "depth_mixing_rebuilds"),
        ("meta", "meta_device"),
        ("unused", "gradients_reach_everything"),
        ("none", "parameters_as_stated"),
        ("none", "state_and_config_round_trip"),
    ],
)
def test_the_suite_catches(fault, rule):
    with pytest.raises(ContractError, match=rule):
        testing.check_scheme(Wrong(fault=fault), only=[rule])


def test_the_suite_catches_a_graph_break():
    with pytest.raises(Exception, match=r"item|data-dependent|graph"):
        testing.check_scheme(Wrong(fault="graph_break"), only=["compiles"])


def test_keys_over_depth_stay_precise_under_autocast():
    """Statistics of a source are taken in float32 wherever they are taken: when it is read, and when it is closed."""
    from normlab.schemes import depth_stream

    seen = set()
    original = depth_stream.keys

    def recorded(v, queries, eps, gather=None):
        logits, source = original(v, queries, eps, gather)
        seen.add(logits.dtype)
        return logits, source

    depth_stream.keys = recorded
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for name in ("attn_res", "block_attn_res"):
                testing.tiny_model(nl.scheme(name))(testing.some_tokens())
    finally:
        depth_stream.keys = original
    assert seen == {torch.float32}
