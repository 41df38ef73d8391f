"""Every rule on a table that is written by hand: silent on the healthy one, and its sentence states its numbers."""

import math
import re
from dataclasses import replace

import pytest

from normlab.probes.judge import rules
from normlab.probes.judge.advice import TEXTS
from normlab.probes.judge.outliers import outliers
from normlab.probes.judge.verdicts import ModelEvidence, listed
from normlab.probes.measure.derivatives import DerivativeRow
from normlab.probes.measure.gradients import NoiseReading, PullRow
from normlab.probes.measure.outputs import OutputReading
from normlab.probes.measure.readings import Readings
from normlab.probes.measure.skips import SkipReport
from normlab.probes.measure.summary import summarise
from normlab.probes.measure.table import HeadRow, LayerRow, MaskRow
from normlab.probes.measure.trials.repair import RepairReading
from normlab.probes.measure.trials.run import TrialRow, UndoneReading
from normlab.probes.measure.twin.compare import Coarse, Deviation, TwinReading
from normlab.probes.measure.weights import EmbeddingReading, ExpertTwin, GainRow, MatrixRow, MatrixTwin, Twin
from normlab.probes.measure.weights.experts import ExpertRow
from normlab.probes.measure.weights.functions import RepeatRow, TokenRow
from normlab.probes.measure.weights.gains import NormRow
from normlab.probes.measure.weights.response import ResponseRow
from normlab.probes.trace.identity import Breach
from normlab.probes.trace.structure.settings import SettingRow

DEPTH, ODD = 8, 4


def row(i):
    """A stream that grows like a root, branches that grow with it."""
    size = math.sqrt(1 + i)
    return LayerRow(
        layer=i, attention_norm=0.5 * size, attention_ratio=0.5, attention_cosine=0.1, ffn_norm=0.6 * size, ffn_ratio=0.6,
        ffn_cosine=0.1, block_influence=0.1, norm=1.2 * size, norm_median=1.1 * size, nonfinite=0.0, token_cosine=0.2,
        token_variance=0.8, median_magnitude=0.1, massive=0.0, effective_rank=40.0, token_cosine_robust=0.2,
        homogenisation=0.3, mixing_gain=1.0, composite_gain=1.0, rms=0.1, max_magnitude=2.0, max_position=3,
        max_coordinate=5, angular_distance=0.1, entropy=0.6 + 0.01 * i, max_weight=0.3, sink_mass=0.1, sink_position=0,
        sink_heads=0.0, gradient_norm=1.0 + 0.1 * i, stream_gradient=1.0, skip_loss_change=0.3,
    )  # fmt: skip


def table(rows, **changes):
    return replace(BASE, rows=tuple(rows), summary=summarise(rows), **changes)


def causal(*changes):
    return SkipReport(
        loss=2.0, chance=5.5, learnt=3.5, informative=True, better_without=0, batches=4, shared=False, change=changes,
        error=(0.001,) * len(changes), runs=(), later=(),
    )  # fmt: skip


READINGS = Readings(
    heads=tuple(HeadRow(i, h, 0.6, 0.3, 0.1, 1.0 + 0.2 * h, (h + 1) % 4, 0.2) for i in range(DEPTH) for h in range(4)),
    matrices=(
        *(
            MatrixRow(i, name, 0.1 + 0.01 * i, 0.8, 1.5, 0.0, 0.0, None, 1.6, 3.2, 0.99)
            for i in range(DEPTH) for name in ("q.weight", "o.weight")
        ),
        *(MatrixRow(i, "experts.down", 0.1, 0.8, 1.5, 0.0, 0.0, e) for i in range(DEPTH) for e in range(4)),
    ),
    gains=(
        *(GainRow(i, "norm1", 1.1 + 0.02 * i, 1.3, 0.05, 0.0, 0.0) for i in range(DEPTH)),
        GainRow(-1, "norm", 1.3, 1.2, 0.05, 0.0, 0.0),
    ),
    embedding=EmbeddingReading(rows=60, norm=1.0, peak=1.3, small=0.0, rank=0.8, common=0.2, rotary=0.0),
    experts=tuple(ExpertRow(i, e, 4, 0.25, 1.0) for i in range(DEPTH) for e in range(4)),
    pulls=tuple(PullRow(i, "q.weight", 0.01, 1.0, 0.2) for i in range(DEPTH)),
    noise=NoiseReading(5000.0, 9000.0, 8),
    masks=tuple(MaskRow(i, 128, 127, 0) for i in range(DEPTH)),
    norms=tuple(NormRow(i, "norm1", 1e-6, 1e-5, 1.0, 1e-7, "RMSNorm") for i in range(DEPTH)),
    tokens=tuple(TokenRow(i, 1e-7) for i in range(DEPTH)),
    responses=tuple(ResponseRow(i, "q", 2.0) for i in range(DEPTH)),
    output=OutputReading(
        loss=2.0, chance=5.5, frequencies=3.3, entropy=2.1, favourite=0.2, early=2.1, late=1.95, leak=0.0,
        repeat=0.0, sharpness=1.0, kind="causal", normed=True,
    ),
)  # fmt: skip
ROWS = tuple(row(i) for i in range(DEPTH))
BASE = ModelEvidence(ROWS, summarise(ROWS), "pre_norm", causal=causal(*[0.3] * DEPTH), readings=READINGS, start=1.0)


def layers(**changes):
    return table([replace(each, **changes) if each.layer == ODD else each for each in ROWS])


def every(change):
    return table([replace(each, **change(each)) for each in ROWS])


def read(**changes):
    return replace(BASE, readings=replace(READINGS, **changes))


def one(rows, **changes):
    """The same rows, those of the odd layer changed."""
    return tuple(replace(each, **changes) if each.layer == ODD else each for each in rows)


def first(rows, **changes):
    found = next(i for i, each in enumerate(rows) if each.layer == ODD)
    return (*rows[:found], replace(rows[found], **changes), *rows[found + 1 :])


def drawn():
    """Layers as they were drawn: constant gains and the singular values of noise."""
    gains = tuple(replace(each, spread=0.0 if each.layer >= 0 else each.spread) for each in READINGS.gains)
    return read(gains=gains, matrices=tuple(replace(each, edge=1.0) for each in READINGS.matrices))


def tried(what="with query and key of layer 4 exchanged", layers=(ODD,), *, gain=0.005, **changes):
    """A trial that helps; `gain`: what a few steps of training gain while the change is in place."""
    undone = UndoneReading(replace(READINGS.output, **changes), RepairReading(gain, 2, 2))
    return TrialRow(what, "causal", layers, 2.4, -0.4, 0.01, 8, carried=4, undone=undone)


ONE_STREAM = {"homogenisation": None, "effective_sources": None}


CASES = {
    "non_finite": lambda: layers(nonfinite=3.0),
    "broken_residual": lambda: read(breaches=(Breach(ODD, "the layer returns x", 2.13, "it returns 3 x"),)),
    "coarse_arithmetic": lambda: read(twin=TwinReading(0.0133, (), Coarse(21, 0.0028, 0.0047))),
    "not_its_class": lambda: read(twin=TwinReading(0.2, (Deviation(ODD, "attention", "layers.4.self_attn", 0.883),))),
    "batch_leaks": lambda: read(rows_apart=0.125, experts=()),
    "uncalled_layers": lambda: read(uncalled=("layers.8", "layers.9")),
    "repeated_branch": lambda: read(repeats=(RepeatRow("ffn", 2, ODD, 0.99999),)),
    "ffn_mixes_tokens": lambda: read(tokens=one(READINGS.tokens, mixing=1.3)),
    "broken_norm": lambda: read(norms=one(READINGS.norms, size=4.0, misfit=3.0)),
    "odd_setting": lambda: read(
        settings=tuple(SettingRow(i, "act", "SiLU" if i != ODD else "ReLU", True) for i in range(DEPTH))
    ),
    "one_direction": lambda: read(
        matrices=tuple(replace(m, top=0.6 if m.name == "q.weight" else 0.1) for m in READINGS.matrices)
    ),
    "wrong_gradient": lambda: read(
        derivatives=(
            DerivativeRow(0, 0.01, 0.5, 0.001),
            DerivativeRow(4, 0.01, 0.25, 0.002),
            DerivativeRow(5, 0.01, 0.01, 0.001),
        )
    ),
    "unknown_cause": lambda: read(repair=RepairReading(0.125, 2, 2)),
    "quickly_repaired": lambda: read(repair=RepairReading(0.125, 2, 2)),
    "copied_scales": lambda: read(scales=(MatrixTwin("q.weight", 2, ODD, 0.0123),)),
    "copied_matrices": lambda: read(twins=(MatrixTwin("q.weight", 2, ODD, 0.9993),)),
    "exploding_stream": lambda: every(lambda r: {"norm_median": 2.0**r.layer}),
    "stream_jump": lambda: every(lambda r: {"norm_median": r.norm_median * (40 if r.layer >= ODD else 1)}),
    "representation_collapse": lambda: layers(token_cosine_robust=0.99),
    "massive_activations": lambda: layers(massive=2.0, max_magnitude=4000.0),
    "unbounded_mixing": lambda: every(lambda r: {"composite_gain": 2.0**r.layer}),
    "stream_homogenisation": lambda: every(lambda r: {"homogenisation": 0.99}),
    "dead_branches": lambda: layers(ffn_ratio=1e-5, ffn_norm=1e-5),
    "oversized_branch": lambda: layers(ffn_ratio=9.0, ffn_norm=14.0),
    "undersized_branch": lambda: layers(attention_ratio=0.02, attention_norm=0.04),
    "pre_norm_dilution": lambda: every(
        lambda r: {
            "attention_ratio": 0.5 / (1 + 3 * r.layer),
            "ffn_ratio": 0.6 / (1 + 3 * r.layer),
            **ONE_STREAM,
        }
    ),
    "gradient_imbalance": lambda: every(lambda r: {"gradient_norm": 2.5**r.layer}),
    "attention_outlier": lambda: layers(entropy=0.02),
    "attention_dispersion": lambda: every(lambda r: {"entropy": 0.99}),
    "attention_sinks": lambda: every(lambda r: {"sink_mass": 0.7}),
    "head_outlier": lambda: read(
        heads=(*READINGS.heads[:16], replace(READINGS.heads[16], output=90.0), *READINGS.heads[17:])
    ),
    "sees_the_future": lambda: read(output=replace(READINGS.output, leak=0.4)),
    "gain_outlier": lambda: read(gains=one(READINGS.gains, median=50.0)),
    "gain_pattern": lambda: read(gains=one(READINGS.gains, flipped=0.4)),
    "reset_gain": lambda: read(gains=one(READINGS.gains, spread=0.0)),
    "matrix_outlier": lambda: read(matrices=first(READINGS.matrices, rms=0.9)),
    "row_outlier": lambda: read(matrices=first(READINGS.matrices, peak=60.0)),
    "zero_weights": lambda: read(matrices=one(READINGS.matrices, quiet=0.5)),
    "low_rank": lambda: read(matrices=one(READINGS.matrices, rank=0.05)),
    "expert_outlier": lambda: read(
        matrices=tuple(replace(m, rms=2.0) if (m.layer, m.expert) == (ODD, 2) else m for m in READINGS.matrices)
    ),
    "unused_experts": lambda: read(
        experts=tuple(replace(e, share=0.0) if (e.layer, e.expert) == (ODD, 2) else e for e in READINGS.experts)
    ),
    "unsettled_weights": lambda: read(pulls=one(READINGS.pulls, pull=1.4)),
    "duplicated_layers": lambda: replace(BASE, duplicates=(Twin(2, ODD, 0.999),)),
    "embedding_scale": lambda: replace(BASE, start=80.0),
    "embedding_rows": lambda: read(embedding=replace(READINGS.embedding, small=0.2)),
    "positions": lambda: read(embedding=replace(READINGS.embedding, rotary=2.0)),
    "final_norm": lambda: read(
        gains=(*READINGS.gains[:-1], replace(READINGS.gains[-1], median=13.0)),
        output=replace(READINGS.output, loss=4.0, entropy=0.4),
    ),
    "worse_than_frequencies": lambda: read(output=replace(READINGS.output, loss=4.4, entropy=1.5)),
    "worse_than_chance": lambda: read(output=replace(READINGS.output, loss=9.0)),
    "at_chance": lambda: read(output=replace(READINGS.output, loss=5.5, entropy=5.4)),
    "hardly_trained": lambda: read(output=replace(READINGS.output, loss=3.3, entropy=3.6)),
    "miscalibrated": lambda: read(output=replace(READINGS.output, entropy=0.3)),
    "context_unused": lambda: read(output=replace(READINGS.output, late=3.0)),
    "averaging_mixing": lambda: every(lambda _: {"mixing_keeps": 0.3}),
    "broken_mixing": lambda: replace(layers(mixing_error=0.5), placement="mhc"),
    "closed_write": lambda: layers(write_gate=0.01),
    "dead_stream": lambda: every(lambda _: {"smallest_stream": 0.01}),
    "one_stream_head": lambda: every(lambda _: {"head_share": 0.99}),
    "few_values": lambda: read(matrices=first(READINGS.matrices, distinct=0.02)),
    "spectrum_outlier": lambda: read(matrices=first(READINGS.matrices, edge=1.0)),
    "tails_outlier": lambda: read(matrices=first(READINGS.matrices, tails=1.2)),
    "misfit": lambda: read(responses=one(READINGS.responses, response=0.5)),
    "norm_eps": lambda: read(norms=one(READINGS.norms, eps=0.1, share=0.4)),
    "copied_experts": lambda: read(expert_twins=(ExpertTwin(ODD, 1, 3, 0.998),)),
    "wrong_mask": lambda: read(masks=one(READINGS.masks, back=3)),
    "twin_heads": lambda: read(heads=first(READINGS.heads, twin_cosine=0.9991)),
    "not_deterministic": lambda: read(output=replace(READINGS.output, repeat=0.03)),
    "better_changed": lambda: read(trials=(tried(),)),
    "helping_change": lambda: read(trials=(tried(gain=0.2),)),
    "gradient_outlier": lambda: read(pulls=one(READINGS.pulls, size=6.0)),
    "coherent_gradients": lambda: read(noise=NoiseReading(80.0, 120.0, 8)),
    "not_trained": lambda: replace(drawn(), readings=replace(drawn().readings, output=None)),
    "frozen_layers": lambda: drawn(),
    "saturated_gates": lambda: replace(layers(stuck_gates=1.0), placement="mhc"),
    "harmful_layers": lambda: replace(BASE, causal=causal(*[0.3] * ODD, -2.5, *[0.3] * (DEPTH - ODD - 1))),
    "wasted_layers": lambda: replace(BASE, causal=causal(*[0.3] * ODD, 0.002, *[0.3] * (DEPTH - ODD - 1))),
}


def test_the_healthy_table_has_no_verdicts():
    assert rules.judge(BASE) == ()
    assert rules.headline((), judged=True) == "Healthy"
    noted = tuple(found for id in ("attention_sinks", "massive_activations") for found in rules.judge(CASES[id]()))
    assert {found.severity for found in noted} == {"note"}
    assert rules.headline(noted, judged=True).startswith("Healthy; worth knowing, no fault: ")


def test_every_rule_has_a_case_and_words():
    names = {rule.__name__ for rule in (*rules.RULES, rules.stream.non_finite)}
    assert names == set(TEXTS) == set(CASES)


@pytest.mark.parametrize("id", CASES)
def test_the_planted_case_is_found_and_its_sentence_states_its_number(id):
    verdict = next((found for found in rules.judge(CASES[id]()) if found.id == id), None)
    assert verdict is not None, [found.title for found in rules.judge(CASES[id]())]
    assert verdict.subject == TEXTS[id].subject or id == "zero_weights"
    if len(verdict.layers) == 1:
        assert verdict.layers == (ODD,) or id == "gradient_imbalance"
    stated = [float(number) for number in re.findall(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?", verdict.title)]
    value = abs(verdict.value)
    assert any(abs(abs(n) - v) <= 0.05 * v + 0.005 for n in stated for v in (value, 100 * value)), (stated, value)
    for text in (verdict.title, verdict.why, verdict.advice, verdict.normal):
        assert text


def test_a_one_sided_change_is_not_called_small():
    """A loss that falls by 2.5 nats does not 'change by less than'."""
    found = {verdict.id for verdict in rules.judge(CASES["harmful_layers"]())}
    assert "harmful_layers" in found
    assert "wasted_layers" not in found


def test_gradients_without_a_trend_are_not_said_to_grow():
    sizes = [1.0, 90.0, 1.0, 70.0, 2.0, 80.0, 1.5, 60.0]
    found = rules.judge(every(lambda r: {"gradient_norm": sizes[r.layer]}))
    title = next(verdict.title for verdict in found if verdict.id == "gradient_imbalance")
    assert "without a trend" in title
    assert "toward the input" not in title


def test_one_jump_is_not_growth_in_every_layer():
    found = {verdict.id for verdict in rules.judge(CASES["stream_jump"]())}
    assert "exploding_stream" not in found


def test_a_young_model_is_told_in_notes():
    output = replace(READINGS.output, loss=3.3, entropy=3.6)
    young = replace(layers(entropy=0.02), readings=replace(READINGS, output=output))
    found = rules.judge(young)
    assert {verdict.severity for verdict in found} == {"note"}
    assert rules.headline(found, judged=True).startswith("Not trained, or hardly: the loss is 3.30")


def test_a_model_at_chance_is_not_trained():
    assert rules.headline(rules.judge(CASES["at_chance"]()), judged=True).startswith(
        "Not trained, or hardly: the loss is 5.50"
    )


def test_a_symptom_names_its_cause():
    both = replace(
        layers(ffn_ratio=9.0, ffn_norm=14.0), readings=replace(READINGS, gains=one(READINGS.gains, median=50.0))
    )
    found = rules.judge(both)
    assert [verdict.id for verdict in found[:2]] == ["gain_outlier", "oversized_branch"]
    assert found[1].title.endswith("(may follow from gain outlier)")
    assert rules.headline(found, judged=True).startswith(f"Look at layer {ODD}: the gain of norm1")


def test_a_cause_of_the_whole_model_explains_what_the_loss_does():
    sick = read(trials=(tried(layers=()),), output=replace(READINGS.output, entropy=0.3))
    found = rules.judge(sick)
    assert [verdict.id for verdict in found] == ["better_changed", "miscalibrated"]
    assert found[1].title.endswith("(may follow from better changed)")
    assert "may follow" not in found[0].title


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        (tried(gain=0.2), "6 steps of training still gain 0.2 nats"),
        (replace(tried(gain=0.1), change=-0.7), "6 steps of training still gain 0.1 nats"),
        (replace(tried(gain=0.02), change=-0.05, error=0.001), "6 steps of training still gain 0.02 nats"),
        (tried(entropy=0.9), "expects a loss of 0.90 nats and gets 2.00"),
        (tried(early=1.5), "context still hurts"),
        (tried(loss=3.0, entropy=3.0), "the loss is still 3.00 nats"),
        (replace(tried(), undone=None), "not examined"),
        (replace(tried(), carried=None), "too few windows"),
    ],
)
def test_a_trial_after_which_something_is_still_wrong_accuses_nobody(trial, why):
    (found,) = rules.judge(read(trials=(trial,)))
    assert (found.id, found.severity) == ("helping_change", "note")
    assert why in found.title
    assert "not the cause" in found.title
    assert rules.headline((found,), judged=True).startswith("Healthy")
    assert found.advice.startswith("do not keep the change")


def test_what_costs_and_is_not_explained_is_said_with_what_was_tried():
    both = read(trials=(tried(gain=0.2),), repair=RepairReading(0.3, 2, 2))
    assert rules.headline(rules.judge(both), judged=True) == (
        "Something costs at least 0.6 nats, and its cause was not found; with query and key of layer 4 exchanged it falls "
        "by 0.4, which is not the cause"
    )
    harmed = replace(both, causal=causal(*[0.3] * ODD, -2.5, *[0.3] * (DEPTH - ODD - 1)))
    assert "found; without layer 4 the loss falls by 2.5" in rules.headline(rules.judge(harmed), judged=True)
    known = replace(both, readings=replace(both.readings, gains=one(READINGS.gains, median=50.0)))
    assert [found.id for found in rules.judge(known)] == ["gain_outlier", "quickly_repaired", "helping_change"]


def test_a_model_that_looks_young_and_regains_what_no_young_one_does_is_damaged():
    output = replace(READINGS.output, loss=3.2, entropy=3.4)
    young, damaged = (read(output=output, repair=RepairReading(gain, 2, 2)) for gain in (0.15, 0.6))
    assert {found.severity for found in rules.judge(young)} == {"note"}
    assert rules.headline(rules.judge(damaged), judged=True).startswith("Something costs at least 0.6 nats")


def test_the_first_trial_that_undoes_a_mistake_is_named_even_if_another_gains_more():
    wrong = replace(tried("with the embedding times 10", (), gain=0.2), change=-0.6)
    (found,) = rules.judge(read(trials=(wrong, tried())))
    assert (found.id, found.layers) == ("better_changed", (ODD,))


def test_a_mistake_of_a_nat_may_leave_to_training_what_any_text_in_one_piece_does():
    assert [found.id for found in rules.judge(read(trials=(replace(tried(gain=0.1), change=-1.0),)))] == [
        "better_changed"
    ]


def test_a_gain_within_its_corrected_error_is_nothing():
    """0.4 nats with a standard error of 0.1 over 8 windows: beyond 2.4 errors, within the 3.5 that four trials ask for."""
    assert rules.judge(read(trials=(replace(tried(), error=0.1),))) != ()
    assert rules.judge(read(trials=(replace(tried(), error=0.12),))) == ()
    assert rules.judge(read(trials=(replace(tried(), error=0.12, carried=1),))) != ()


def test_exact_facts_stand_before_trials_and_these_before_statistics():
    sick = read(
        trials=(tried(layers=(2,)),),
        twins=(MatrixTwin("q.weight", 2, ODD, 0.9993),),
        gains=tuple(replace(each, median=50.0) if each.layer == 6 else each for each in READINGS.gains),
    )
    assert [found.id for found in rules.judge(sick)] == ["copied_matrices", "better_changed", "gain_outlier"]
    assert [found.severity for found in rules.judge(sick)] == ["warn", "bad", "warn"]


@pytest.mark.parametrize("id", rules.WEAK)
def test_a_weak_finding_warns_only_beside_a_second_one(id):
    alone = CASES[id]()
    assert [(found.id, found.severity) for found in rules.judge(alone)] == [(id, "note")]
    both = replace(alone, readings=replace(alone.readings, repair=RepairReading(0.125, 2, 2)))
    assert {found.id: found.severity for found in rules.judge(both)} == {
        "unknown_cause": "warn",
        "quickly_repaired": "warn",
        id: "warn",
    }
    weak = replace(
        CASES["one_direction"](),
        readings=replace(CASES["one_direction"]().readings, output=CASES["context_unused"]().readings.output),
    )
    assert {found.severity for found in rules.judge(weak)} == {"note"}


def test_random_weights_are_accused_of_how_their_streams_begin_alone():
    fresh = replace(drawn().readings, output=None, matrices=one(drawn().readings.matrices, quiet=0.5))
    rows = [replace(each, mixing_keeps=0.2, homogenisation=0.99) for each in ROWS]
    found = rules.judge(replace(BASE, rows=tuple(rows), summary=summarise(rows), readings=fresh, start=80.0))
    assert {verdict.id for verdict in found if verdict.severity != "note"} == {"averaging_mixing"}
    assert {"not_trained", "stream_homogenisation", "embedding_scale", "zero_weights"} <= {v.id for v in found}


# -- outliers -----------------------------------------------------------------------------------------------------------
def test_a_trend_and_a_step_make_no_outlier():
    assert outliers([2.0**i for i in range(8)], least=2) == []
    assert outliers([1, 1, 1, 1, 9, 9, 9, 9], least=2) == []
    assert outliers([1, 30, 1, 30, 1, 30, 1, 30], least=2) == []


def test_one_layer_stands_out_on_a_trend():
    values = [2.0**i for i in range(8)]
    values[3] *= 20
    (found,) = outliers(values, least=3)
    assert found.layer == 3
    assert found.times > 10


def test_the_ends_need_more():
    assert outliers([12, 1, 1, 1, 1, 1], least=3) == []
    assert [each.layer for each in outliers([40, 1, 1, 1, 1, 1], least=3)] == [0]


def test_zero_is_an_outlier_and_nan_is_nothing():
    assert [each.layer for each in outliers([1, 1.1, 0.0, 0.9, 1, math.nan], least=3)] == [2]
    assert outliers([1, 1, math.nan], least=2) == []


def test_tails_that_are_merely_lighter_than_heavy_ones_are_no_fault():
    """Trained matrices of one model have a kurtosis between 3.1 and 44 (SmolLM2): none of them was clipped."""
    heavy = tuple(replace(each, tails=8.0) for each in READINGS.matrices)
    assert not rules.judge(read(matrices=first(heavy, tails=4.1)))
    assert rules.judge(read(matrices=first(heavy, tails=2.9)))[0].id == "tails_outlier"


def test_the_loss_may_pull_hard_where_massive_activations_are_made():
    pulled = CASES["gradient_outlier"]()
    massive = tuple(replace(each, massive=float(each.layer >= ODD), max_magnitude=4000.0) for each in ROWS)
    assert [found.id for found in rules.judge(pulled)] == ["gradient_outlier"]
    assert [found.id for found in rules.judge(replace(pulled, rows=massive))] == ["massive_activations"]


@pytest.mark.parametrize(
    ("layers", "said"),
    [((3,), "layer 3"), ((3, 4), "layers 3 and 4"), ((0, 1, 5), "layers 0, 1 and 5"), ((3, 4, 5, 9), "layers 3 to 5 and 9"),
     (tuple(range(0, 16, 2)), "layers 0, 2, 4, 6, 8, 10 and 2 more")],
)  # fmt: skip
def test_layers_are_listed_in_words(layers, said):
    assert listed(layers) == said


def test_layers_of_another_kind_are_not_compared():
    """Gemma's layers 5, 11 and 17 attend to all tokens, the others to a window: their gains differ, and that is no fault."""
    odd = read(gains=one(READINGS.gains, median=50.0))
    masks = tuple(replace(each, window=None if each.layer == ODD else 512) for each in READINGS.masks)
    assert [found.id for found in rules.judge(odd)] == ["gain_outlier"]
    assert not rules.judge(replace(odd, readings=replace(odd.readings, masks=masks)))


def test_zero_is_one_of_the_levels_of_a_coarser_format():
    """A matrix of four bits among matrices of eight has many zeros; one of eight bits that has them lost something."""
    eight = tuple(replace(each, distinct=0.9, zeros=0.01) for each in READINGS.matrices)
    assert not rules.judge(read(matrices=first(eight, distinct=0.45, zeros=0.11)))
    assert rules.judge(read(matrices=first(eight, distinct=0.8, zeros=0.11)))[0].id == "zero_weights"


@pytest.mark.parametrize("id", ["spectrum_outlier", "misfit"])
def test_one_matrix_that_is_unlike_the_others_is_a_note_where_batches_see_nothing_to_change(id):
    case = CASES[id]()
    calm = replace(case, readings=replace(case.readings, noise=NoiseReading(30000.0, math.inf, 4)))
    worried = replace(case, readings=replace(case.readings, noise=NoiseReading(3000.0, 4000.0, 4)))
    assert [found.severity for found in rules.judge(calm) if found.id == id] == ["note"]
    assert [found.severity for found in rules.judge(worried) if found.id == id] == ["warn"]


def test_dilution_is_a_disease_of_one_sum():
    """A branch that reads several streams, or earlier branches by weights of its own, need not add much to any."""
    assert "pre_norm_dilution" in {each.id for each in rules.judge(CASES["pre_norm_dilution"]())}
    several = CASES["pre_norm_dilution"]()
    several = replace(several, rows=[replace(row, homogenisation=0.5) for row in several.rows])
    assert "pre_norm_dilution" not in {each.id for each in rules.judge(several)}


def test_layers_with_other_norms_are_not_neighbours():
    """The first layer behind Post-Norm layers makes the stream anew (Mix-LN)."""
    odd = CASES["oversized_branch"]()
    assert [each.severity for each in rules.judge(odd) if each.id == "oversized_branch"] == ["warn"]
    layer = next(each.layers[0] for each in rules.judge(odd) if each.id == "oversized_branch")
    mixed = replace(odd, norms=("post",) * layer + ("pre",) * (DEPTH - layer))
    assert "oversized_branch" not in {each.id for each in rules.judge(mixed)}


def test_a_branch_that_is_read_by_weight_may_be_of_any_size():
    odd = CASES["oversized_branch"]()
    read_by_weight = replace(odd, rows=[replace(row, effective_sources=2.0) for row in odd.rows])
    assert [each.severity for each in rules.judge(read_by_weight) if each.id == "oversized_branch"] == ["note"]


def test_that_batches_agree_on_a_young_model_is_no_fault():
    young = replace(CASES["coherent_gradients"]().readings, output=replace(READINGS.output, loss=3.3, entropy=3.6))
    young = replace(young, noise=replace(young.noise, high=60.0))
    steady = one(READINGS.pulls, steady=40.0)
    found = rules.judge(replace(BASE, readings=replace(young, pulls=steady)))
    assert {verdict.severity for verdict in found} == {"note"}
    assert "coherent_gradients" in {verdict.id for verdict in found}


def test_an_expert_and_layers_that_are_coarser_than_the_others_are_named():
    """Also where half of the layers are coarse, so that none is unlike its neighbours; not where only the ends are fine."""
    fine = tuple(replace(each, values=60.0, distinct=0.9) for each in READINGS.matrices)
    coarse = tuple(replace(each, values=3.0, distinct=0.05) if each.expert == 2 else each for each in fine)
    found = {each.id: each for each in rules.judge(read(matrices=coarse))}["few_values"]
    assert (found.subject, found.value) == ("experts", 3.0)
    half = tuple(replace(each, values=12.0, distinct=0.2) if each.layer % 2 else each for each in fine)
    assert {each.id: each for each in rules.judge(read(matrices=half))}["few_values"].layers == (1, 3, 5, 7)
    ends = tuple(each if each.layer in (0, DEPTH - 1) else replace(each, values=12.0, distinct=0.5) for each in fine)
    assert "few_values" not in {each.id for each in rules.judge(read(matrices=ends))}


def test_norms_of_queries_that_were_not_loaded_are_named():
    ones = tuple(GainRow(i, "attn.q_norm", 1.0, 1.0, 0.0, 0.0, 0.0) for i in range(DEPTH))
    found = {each.id: each for each in rules.judge(read(gains=(*READINGS.gains, *ones)))}["reset_gain"]
    assert found.subject == "attention"
    trained = tuple(replace(each, spread=0.05) for each in ones)
    assert "reset_gain" not in {each.id for each in rules.judge(read(gains=(*READINGS.gains, *trained)))}


def test_an_adapter_that_has_learnt_nothing_is_no_fault():
    """The second factor of every adapter starts at zero; a matrix that is zero in one layer only lost something."""
    factors = tuple(
        replace(each, name="attention.query.up", narrow=True, zeros=1.0, quiet=1.0)
        for each in READINGS.matrices
        if each.name == READINGS.matrices[0].name
    )
    assert not [v for v in rules.judge(read(matrices=(*READINGS.matrices, *factors))) if v.id == "zero_weights"]
    learnt = (factors[0], *(replace(each, zeros=0.0, quiet=0.0) for each in factors[1:]))
    assert next(v.id for v in rules.judge(read(matrices=(*READINGS.matrices, *learnt)))) == "zero_weights"
    wide = tuple(replace(each, narrow=None) for each in factors)
    assert next(v.id for v in rules.judge(read(matrices=(*READINGS.matrices, *wide)))) == "zero_weights"
