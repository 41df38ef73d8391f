"""Streams taken apart and put together again at every cut, for every scheme, in one process."""

from itertools import pairwise

import pytest
import torch

import normlab as nl
from normlab.model.stages import default_cuts, make_plan, probe, probe_widths, walk


def model(scheme, **changes):
    options = {"vocab_size": 11, "dim": 24, "depth": 4, "heads": 2} | changes
    built = nl.Transformer(nl.TransformerConfig(scheme=scheme, **options)).double().eval()
    with torch.no_grad():
        for parameter in built.scheme.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


@pytest.mark.parametrize("name", sorted(nl.SCHEMES))
@torch.no_grad()
def test_every_cut_of_every_scheme(name):
    built, tokens = model(name), torch.randint(11, (2, 5))
    scheme, count = built.scheme, len(built.sites)
    positions = torch.arange(5)
    whole = built.features(tokens)
    likes = walk(probe(built.config, probe_widths(built.config)[0]), torch.zeros(1, 1, probe_widths(built.config)[0]))
    shared = built.new_pass(positions)
    stream, settled = scheme.open(built.embed(tokens, positions)), ()
    for cut in range(1, count + 1):
        stream = built.run(stream, shared, cut - 1, cut)
        parts = scheme.to_parts(stream)
        assert all(t.shape[:2] == (2, 5) for part in parts for t in part)
        assert len(parts.settled) >= len(settled)  # grows, and what was there stays as it was
        for old, new in zip(settled, parts.settled, strict=False):
            assert torch.equal(old, new)
        settled = parts.settled
        site = built.sites[cut] if cut < count else None
        stream = scheme.from_parts(parts, likes[cut], site)  # only the parts go on
    torch.testing.assert_close(scheme.close(stream), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["block_attn_res", "attn_res", "dense_former", "hyper_connections", "resi_dual"])
def test_the_plan_knows_the_shapes(name):
    """From a narrow probe, the sizes of the real stream, at an odd width and a boundary inside a layer."""
    built = model(name, dim=50, heads=5)
    plan = make_plan(built.config, ranks=2, cuts=[3], shape=(2, 5))
    with torch.no_grad():
        stream = built.scheme.open(torch.zeros(2, 5, 50, dtype=torch.float64))
        stream = built.run(stream, built.new_pass(torch.arange(5)), 0, 3)
    found = [[t.shape for t in part] for part in built.scheme.to_parts(stream)]
    assert found == [[t.shape for t in part] for part in plan.parts[0]]


def test_known_and_kept_tensors_meet():
    """A rank's cache holds exactly what its next chunk does not receive."""
    config = nl.TransformerConfig(vocab_size=8, dim=8, depth=12, heads=2, scheme=nl.scheme("block_attn_res", blocks=5))
    plan = make_plan(config, ranks=3, virtual_stages=3)
    held = dict.fromkeys(range(3), 0)
    for chunk in range(9):
        rank = plan.rank(chunk)
        assert plan.known(chunk) == held[rank]
        if chunk:
            arrived = plan.sent(chunk - 1, plan.parts[chunk - 1])
            whole = plan.parts[chunk - 1]
            assert held[rank] + len(arrived) == len(whole.settled) + len(whole.moving)
        kept = plan.kept(chunk)
        if chunk < 6:
            assert kept.start == held[rank]
            held[rank] = kept.stop
        else:
            assert not kept


def test_default_cuts_leave_no_chunk_empty():
    for branches in range(1, 40):
        for chunks in range(1, branches + 1):
            bounds = (0, *default_cuts(branches, chunks), branches)
            sizes = [b - a for a, b in pairwise(bounds)]
            assert min(sizes) >= 1
            assert max(sizes) - min(sizes) <= 1
