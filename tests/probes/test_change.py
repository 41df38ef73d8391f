"""Before and after: drift against a hand calculation, verdicts that come and go, a loss with an error bar."""

import json
import math

import pytest
import torch

import normlab as nl
from normlab.errors import InputError
from normlab.probes.change import by_layer, drifts, verdict_changes, why_not
from normlab.probes.judge.verdicts import verdict
from normlab.probes.show.change import as_text
from normlab.probes.show.change import build as build_page
from tests.probes.zoo import build, inputs


@pytest.fixture(scope="module")
def models():
    before, after = build("llama"), build("llama")
    with torch.no_grad():
        after.model.layers[1].mlp.down_proj.weight.zero_()
        after.model.layers[2].self_attn.q_proj.weight.mul_(1.0625)
    return before, after


@pytest.fixture(scope="module")
def change(models):
    return nl.diagnose_change(*models, [inputs("llama", batch=4, tokens=32)])


def test_drift_is_the_relative_distance(models):
    found = {each.name: each for each in drifts(*models)}
    scaled = found["model.layers.2.self_attn.q_proj.weight"]
    assert (scaled.layer, scaled.matrix) == (2, "self_attn.q_proj")
    assert scaled.drift == pytest.approx(0.0625, rel=1e-4)
    assert scaled.scale == pytest.approx(1.0625, rel=1e-6)
    assert scaled.cosine == pytest.approx(1.0, rel=1e-6)
    gone = found["model.layers.1.mlp.down_proj.weight"]
    assert gone.drift == pytest.approx(1.0)
    assert math.isnan(gone.cosine)
    assert found["model.embed_tokens.weight"].layer is None
    assert sum(each.moved > 0 for each in found.values()) == 2


def test_a_layer_is_one_long_vector(models):
    rows = {row.layer: row for row in by_layer(list(drifts(*models)))}
    flat = [torch.cat([p.detach().flatten().double() for p in m.model.layers[2].parameters()]) for m in models]
    assert rows[2].drift == pytest.approx(float((flat[1] - flat[0]).norm() / flat[0].norm()), rel=1e-6)
    assert rows[0].drift == 0
    assert rows[1].most == "mlp.down_proj"


def test_what_came_and_went(change):
    assert "dead_branches" in {each.verdict.id for each in change.of("gained")}
    back = list(verdict_changes(change.after.verdicts, change.before.verdicts))
    assert {e.verdict.id for e in back if e.kind == "lost"} == {e.verdict.id for e in change.of("gained")}
    one, two = (verdict("gain_outlier", "warn", "a", value=9.0, limit=3.0, layers=(layer,)) for layer in (1, 2))
    (moved,) = verdict_changes([one], [two])
    assert (moved.kind, moved.verdict.layers, moved.earlier.layers) == ("moved", (2,), (1,))
    assert list(verdict_changes([one], [one])) == []


def test_the_loss_is_that_of_the_models_on_the_same_windows(models, change):
    ids = inputs("llama", batch=4, tokens=32)["input_ids"]
    with torch.no_grad():
        values = [
            [float(torch.nn.functional.cross_entropy(m(ids[i : i + 1]).logits[0, :-1], ids[i, 1:])) for i in range(4)]
            for m in models
        ]
    changes = torch.tensor(values[1]) - torch.tensor(values[0])
    assert change.loss.change == pytest.approx(float(changes.mean()), rel=1e-4, abs=1e-6)
    assert change.loss.error == pytest.approx(float(changes.std()) / 2, rel=1e-3, abs=1e-6)
    assert change.loss.windows == 4


def test_the_sentence_says_the_numbers(change):
    assert change.headline.startswith("The loss")
    assert f"{change.loss.before:.3f}" in change.headline
    most = max(change.layers, key=lambda row: row.drift)
    assert f"layer {most.layer} moved most (by {100 * most.drift:.3g} % of its size" in change.headline
    assert "new: " in change.headline
    assert change.outstanding == (1,)


def test_the_same_model_twice_has_not_changed():
    same = nl.diagnose_change(build("llama"), build("llama"), inputs("llama", batch=2, tokens=16), options=None)
    assert same.headline == f"Nothing changed: all {len(same.weights)} parameters are the same."
    assert same.verdicts == ()
    assert same.loss.change == 0
    assert not same.loss.certain


def test_two_models_are_not_one_at_two_times():
    assert "only in one of them" in why_not(build("llama"), build("gpt2"))
    other = build("llama")
    other.model.norm.weight = torch.nn.Parameter(torch.ones(7))
    assert "other sizes (model.norm.weight" in why_not(build("llama"), other)
    with pytest.raises(InputError, match="not two checkpoints of one model"):
        nl.diagnose_change(build("llama"), build("gpt2"), inputs("llama"))
    with pytest.raises(InputError, match="need batches"):
        nl.diagnose_change(build("llama"), build("llama"))


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_text_fits(change, width):
    lines = as_text(change, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("The loss")


def test_json_and_page(change, tmp_path):
    held = json.loads(change.to_json(tmp_path / "change.json").read_text())
    assert held["headline"] == change.headline
    assert [row["drift"] for row in held["layers"]] == [row.drift for row in change.layers]
    page = build_page(change).render()
    assert "What changed" in page
    assert "How far each layer moved" in page


def test_our_own_branches_are_numbered_by_layer():
    """Eight branches, and eight norms of the scheme, are four layers and not sixteen."""
    import normlab as nl
    from normlab.probes.change import by_layer, drifts

    def model(seed):
        torch.manual_seed(seed)
        return nl.Transformer(nl.TransformerConfig(vocab_size=8, dim=8, depth=4, heads=2))

    weights = list(drifts(model(0), model(1)))
    assert [row.layer for row in by_layer(weights)] == [0, 1, 2, 3]
    places = {each.name: (each.layer, each.matrix) for each in weights}
    assert places["branches.3.down.weight"] == (1, "down")
    assert places["scheme.pre.3.weight"] == (1, "FFN pre norm")
    assert places["embedding.weight"][0] is None
