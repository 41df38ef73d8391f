"""Every scheme of ours, with parameters as training leaves them: nowhere the ones that they start with."""

from __future__ import annotations

import pytest
import torch

import normlab as nl
from normlab.probes.trace.locate import locate_all
from normlab.probes.trace.verbs import SchemeLayout, _scaled


def moved(scheme: str, *, depth: int = 4) -> nl.Transformer:
    torch.manual_seed(0)
    model = nl.Transformer(nl.TransformerConfig(vocab_size=40, dim=32, depth=depth, heads=2, scheme=scheme))
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.after_step_()
    return model.eval()


@pytest.mark.parametrize("scheme", sorted(nl.SCHEMES))
def test_what_training_may_move_is_no_broken_identity(scheme):
    """Admin weighs each coordinate of the skip, residual scaling shifts it as well: both were refused once trained."""
    tokens = torch.randint(40, (4, 24), generator=torch.Generator().manual_seed(1))
    found = nl.diagnose(moved(scheme), [tokens], skips=False)
    assert not found.identity_error > 1e-4  # NaN where the stream is no sum
    matrices = {(row.layer, row.name) for row in found.readings.matrices}
    assert matrices
    assert matrices <= {(row.layer, row.name) for row in found.readings.pulls}


def test_a_rest_that_is_no_scaled_stream_is_seen_still():
    generator = torch.Generator().manual_seed(1)
    before, added = torch.randn(4, 24, 32, generator=generator), torch.randn(4, 24, 32, generator=generator)
    weight, shift = torch.randn(32, generator=generator), torch.randn(32, generator=generator)
    assert _scaled(0.7 * before + added, added, before) < 1e-6
    assert _scaled(weight * before + shift + added, added, before) < 1e-6
    assert _scaled(weight * before + 0.1 * before.roll(1, -1) + added, added, before) > 0.05
    assert _scaled((weight * before + added)[:1, :8], added[:1, :8], before[:1, :8]) > 0.05  # too few tokens to tell


def test_layers_are_told_apart_by_their_norms():
    tokens = torch.zeros(1, 8, dtype=torch.long)
    kinds = {}
    for scheme in ("mix_norm", "pre_norm", "block_attn_res"):
        model = moved(scheme, depth=8)
        (layout,) = locate_all(model, lambda model=model: model(tokens))
        assert isinstance(layout, SchemeLayout)
        assert len(layout.norms) in (0, 8)
        kinds[scheme] = len(set(layout.norms))
    assert kinds == {"mix_norm": 2, "pre_norm": 0, "block_attn_res": 0}
