"""Attention Residuals around any row of the placement family: a source is what the row's step adds, v = T(h) - h."""

import pytest
import torch

import normlab as nl
from normlab import testing
from normlab.errors import ConfigError
from normlab.schemes.rows import ROWS

SHAPES = [{"name": "attn_res"}, {"name": "block_attn_res", "block_size": 3}]
INNER = ["pre_norm", "post_norm", "peri_norm", "res_norm", "ln_scaling", "mix_norm", "sub_norm", "hybrid_norm", "gpas"]


def model_of(scheme, **changes):
    torch.manual_seed(0)
    shape = {"vocab_size": 23, "dim": 16, "depth": 4, "heads": 2, **changes}
    return nl.Transformer(nl.TransformerConfig(scheme=scheme, **shape)).double()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s["name"])
@pytest.mark.parametrize("inner", ROWS)
def test_with_every_weight_one_it_is_the_row_itself(inner, shape):
    """The depth weights set to 1, a read is the plain sum of the sources, which is the stream of the row."""
    ours = model_of({**shape, "inner": inner, "mixing": "static", "read": "reference"}, eps=1e-12)
    row = model_of({"name": inner, "final_norm": True}, eps=1e-12)
    branches = {k: v for k, v in ours.state_dict().items() if not k.startswith("scheme.")}
    row.load_state_dict(branches, strict=False)
    with torch.no_grad():
        testing.perturb_(row.scheme)
        for weights in ours.scheme.weights:
            weights.fill_(1.0)
        # The same gains, scales and gates: theirs lie in `placed`, or beside the reads where the row is norms alone.
        target = ours.scheme if ours.scheme.placed is None else ours.scheme.placed
        stored = {k: v for k, v in row.scheme.state_dict().items() if not k.startswith(("final", "embedding."))}
        missing = target.load_state_dict({**dict(target.state_dict().items()), **stored}, strict=False)
        assert all(k.startswith("out.") for k in missing.unexpected_keys), missing
        ours.scheme.final.load_state_dict(row.scheme.final.state_dict())
        if "embedding.weight" in row.scheme.state_dict():
            target.embedding.load_state_dict(row.scheme.embedding.state_dict())
    tokens = torch.randint(0, 23, (2, 5))
    torch.testing.assert_close(ours(tokens), row(tokens), rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s["name"])
@pytest.mark.parametrize("inner", INNER)
def test_fast_and_reference_reads_agree(inner, shape):
    tokens = torch.randint(0, 23, (2, 5))
    fast = model_of({**shape, "inner": inner})
    testing.perturb_(fast.scheme)
    plain = model_of({**shape, "inner": inner, "read": "reference"})
    plain.load_state_dict(fast.state_dict())
    found, wanted = testing.gradients_of(fast, tokens), testing.gradients_of(plain, tokens)
    torch.testing.assert_close(fast(tokens), plain(tokens), rtol=0, atol=1e-11)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-11)


def test_what_is_no_row_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="row of the single-stream family, for AttnRes replaces every other kind"):
        nl.scheme("attn_res", inner="mhc")
    with pytest.raises(ConfigError, match="did you mean 'hybrid_norm'"):
        nl.scheme("block_attn_res", inner="hybridnorm")


def test_a_rows_demands_reach_the_branches():
    model = model_of({"name": "attn_res", "inner": "sub_norm"})
    assert all(branch.inner_norm is not None for branch in model.branches)
    model = model_of({"name": "attn_res", "inner": "hybrid_norm"})
    assert all(branch.value_norm is not None for branch in model.branches[::2])
