"""The table of architectures is consistent in itself, and picks the layout that a layer has."""

import pytest
from torch import nn

from normlab.probes.trace.roles import TABLE, BranchRoles, LayerRoles, branch_prefixes, roles_for
from tests.probes.zoo import ARCHITECTURES, build


def test_every_row_names_each_kind_once_and_only_the_last_of_a_class_is_unconditional():
    for row in TABLE:
        assert [branch.kind for branch in row.branches] == ["attention", "ffn"], row.layer
    for name in {row.layer for row in TABLE}:
        conditions = [row.when for row in TABLE if row.layer == name]
        assert all(condition is not None for condition in conditions[:-1]), f"{name}: a row that is never reached"


@pytest.mark.parametrize(
    ("norms", "placement"),
    [
        ({}, "no_norm"),
        ({"pre": "n"}, "pre_norm"),
        ({"pre": "n", "carry": "n"}, "carried_norm"),
        ({"res": "n"}, "res_norm"),
        ({"pre": "n", "res": "m"}, "peri_norm"),
        ({"out": "n"}, "post_norm"),
        ({"pre": "n", "out": "m"}, "pre_and_post_norm"),
    ],
)
def test_the_placement_follows_from_which_norms_there_are(norms, placement):
    branch = BranchRoles("ffn", "f", **norms)
    assert LayerRoles("L", (branch,)).placement == placement
    assert LayerRoles("L", (branch, BranchRoles("ffn", "g", res="a", out="b"))).placement == "mixed"
    beside = BranchRoles("ffn", "f", parallel=True, **norms)
    assert LayerRoles("L", (beside,)).placement == f"{placement}, parallel branches"


@pytest.mark.parametrize("name", ["opt", "opt_350m", "gpt_neox", "gpt_neox_sequential", "bloom_carried", "falcon"])
def test_the_condition_picks_among_rows_of_one_class(name):
    model = build(name)
    found = next(row for row in map(roles_for, model.modules()) if row is not None)
    assert found.placement == ARCHITECTURES[name][0]


def test_another_class_of_a_known_name_is_not_taken_for_it():
    assert roles_for(type("LlamaDecoderLayer", (nn.Module,), {})()) is None
    assert roles_for(nn.Linear(2, 2)) is None


def test_prefixes_are_as_short_as_keeps_the_branches_apart():
    llama, t5 = (next(row for row in TABLE if row.layer == name) for name in ("LlamaDecoderLayer", "T5Block"))
    assert branch_prefixes(llama) == {"attention": {"self_attn."}, "ffn": {"mlp."}}
    assert branch_prefixes(t5) == {"attention": {"layer.0."}, "ffn": {"layer.1."}}
