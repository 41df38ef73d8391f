"""docs/start.md says what the cards, the stored losses and the models say."""

import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from tools.start_candidates import stored, table
from tools.start_page import PAGE, page

import normlab as nl
from normlab.tasks import Text


def test_the_tables_are_those_of_cards_and_stored_losses():
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
    assert sum(line.startswith("| `") for line in text.splitlines()) == 11


def test_the_chosen_start_has_the_smallest_worst_regret():
    first = table(stored(PAGE.parents[0] / "results" / "start")).splitlines()[2]
    assert first.startswith("| unit, out / sqrt(2L) |")
    assert "at least" not in first


def test_four_schemes_lie_within_the_difference_that_choose_names():
    best = {}
    for row in stored(PAGE.parents[0] / "results" / "start"):
        if row["candidate"] == "unit, out / sqrt(2L)" and row["seed"] == 0:
            cell = (row["dim"], row["scheme"])
            best[cell] = min(best.get(cell, math.inf), row["loss"])
    assert len(best) == 8
    for dim in (32, 64):
        losses = [loss for (width, _), loss in best.items() if width == dim]
        assert max(losses) - min(losses) < 0.02


def test_the_spread_over_random_seeds_that_the_page_names():
    cell = {"candidate": "unit, out / sqrt(2L)", "scheme": "pre_norm", "dim": 32, "lr": 0.01}
    rows = stored(PAGE.parents[0] / "results" / "start")
    losses = [row["loss"] for row in rows if all(row[key] == value for key, value in cell.items())]
    assert len(losses) == 5
    half = 2.776 * statistics.stdev(losses) / 5**0.5
    mean = statistics.fmean(losses)
    assert f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f}, n = 5)" in PAGE.read_text(encoding="utf-8")


def test_a_cell_counts_only_where_its_best_rate_lies_inside():
    rows = [
        {"candidate": "unit", "scheme": scheme, "dim": 32, "seed": 0, "lr": lr, "loss": loss}
        for scheme, losses in {"pre_norm": (2.0, 1.9, 2.1), "post_norm": (2.0, 1.9, 1.8)}.items()
        for lr, loss in zip((0.001, 0.01, 0.1), losses, strict=True)
    ]
    shown = table(rows)
    assert "`pre_norm`, 32" in shown
    assert "post_norm" not in shown


@pytest.mark.parametrize(("dim", "tied", "loss"), [(64, True, 7.1), (128, True, 9.5), (64, False, 5.9)])
def test_the_first_losses_that_the_page_names(dim, tied, loss):
    torch.manual_seed(0)
    shape = {"vocab_size": 256, "dim": dim, "depth": 6, "heads": 4}
    model = nl.Transformer(nl.TransformerConfig(tie_embeddings=tied, **shape))
    batch = Text().sample(16, 64, torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten()).item()
    assert first == pytest.approx(loss, abs=0.15)
    assert first > math.log(256)
