import itertools

import pytest
import torch
from torch import nn

from normlab.experiments.runs import scoring
from normlab.experiments.runs.scoring import sequence_auc
from normlab.model import Transformer, TransformerConfig
from normlab.tasks import task
from normlab.theory import complement_theorem as theory


def test_auc_equals_counting_pairs():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(5, (40, 7), generator=generator).double()  # many ties
    legal = torch.rand(40, 7, generator=generator) < 0.5
    legal[0], legal[1] = True, False
    got = scoring.auc(scores, legal)
    for row in range(40):
        yes, no = scores[row][legal[row]].tolist(), scores[row][~legal[row]].tolist()
        if not (yes and no):
            assert got[row].isnan()
            continue
        wins = sum((a > b) + 0.5 * (a == b) for a, b in itertools.product(yes, no))
        assert got[row].item() == pytest.approx(wins / (len(yes) * len(no)), abs=1e-12)
    yes, no = scores[legal].tolist(), scores[~legal].tolist()
    wins = sum((a > b) + 0.5 * (a == b) for a, b in itertools.product(yes, no))
    assert scoring.pooled_auc(scores, legal) == pytest.approx(wins / (len(yes) * len(no)), abs=1e-12)


def test_distances():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]).double()
    law = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]).double()
    assert torch.allclose(scoring.total_variation(p, law), torch.tensor([0.25, 0.8]).double())
    assert torch.allclose(scoring.illegal_mass(p, law), torch.tensor([0.0, 0.8]).double())


class Exact(torch.nn.Module):
    """The theorem's construction as a model."""

    def __init__(self, v, c):
        super().__init__()
        self.made = theory.TightSolution(v, c)
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def forward(self, tokens):
        return torch.stack([self.made.logits(tokens[:, : t + 1]) for t in range(tokens.shape[1])], 1)


def test_the_construction_scores_its_own_closed_form():
    found = scoring.score(Exact(12, 9.0), task("set_complement", vocab=12), (1, 4, 11), count=16)
    for s in (1, 4, 11):
        row = found[str(s)]
        assert row["tv"] == pytest.approx(float(theory.total_variation(s, 12, 9.0 / s)), abs=1e-12)
        assert row["illegal_mass"] == pytest.approx(row["tv"], abs=1e-12)
        assert row["gap"] == pytest.approx(9.0 / s, abs=1e-10)
        assert row["auc"] == 1.0
        assert row["undefined"] == 0


def test_positions_where_all_is_legal_are_counted():
    ground = task("tomita", number=4)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=3, dim=8, depth=1, heads=2))
    row = scoring.score(model, ground, (13,), count=32)["13"]
    batch = ground.sample(32, 13, torch.Generator().manual_seed(13))
    every = ground.legal(batch.tokens)[:, -12:].all(-1)
    assert 0 < row["undefined"] == int(every.sum()) < row["prefixes"] == 32 * 12


@pytest.mark.parametrize(
    "options", [{}, {"softmax": "ssmax"}, {"softmax": "adaptive"}, {"positions": "rope", "qk_norm": "head"}]
)
def test_attention_weights_reproduce_the_models_output(options):
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=9, dim=8, depth=1, heads=2, init_std=0.5, **options))
    tokens = torch.randint(9, (3, 7))
    seen = {}

    def look(module, inputs, output):
        weights = scoring._weights(module, *inputs, 7)
        value = module.qkv(inputs[0])[..., 16:].unflatten(-1, (2, 4)).transpose(1, 2)
        mixed = (weights.to(value.dtype) @ value).transpose(1, 2).flatten(2)
        seen["same"] = torch.allclose(module.out(mixed), output, atol=1e-5)

    with torch.no_grad():
        model.branches[0].register_forward_hook(look)
        model(tokens)
    assert seen["same"]


def test_text_is_scored_by_loss_only(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("to be or not to be, that is the question. " * 100)
    torch.manual_seed(0)
    row = scoring.score(Transformer(TransformerConfig(vocab_size=256, dim=8, depth=1, heads=2, start="authors")),
                        task("text", path=str(path)), (16,), count=4)["16"]  # fmt: skip
    assert row["loss"] == pytest.approx(5.545, abs=0.5)
    assert "tv" not in row


class Oracle(nn.Module):
    """Puts all mass on what is legal; with `blind`, nothing is known."""

    def __init__(self, ground, *, blind=False):
        super().__init__()
        self.ground, self.blind, self.unused = ground, blind, nn.Parameter(torch.zeros(1))

    def forward(self, tokens):
        law = self.ground.law(tokens)
        flat = torch.full_like(law, 1 / law.shape[-1])
        return torch.where(law.sum(-1, keepdim=True) > 0, flat if self.blind else 0.98 * law + 0.02 * flat, flat).log()


@pytest.mark.parametrize(
    "ground", [task("dyck", pairs=2, depth=3), task("tomita", number=3), task("set_complement", vocab=12)]
)
def test_sequence_auc_knows_members_from_broken_strings(ground):
    """The law itself tells them apart; a model that knows nothing ranks them at random."""
    assert sequence_auc(Oracle(ground), ground, 10, 200) > 0.95
    assert sequence_auc(Oracle(ground, blind=True), ground, 10, 200) == pytest.approx(0.5)


def test_sequence_auc_is_undefined_where_nothing_is_illegal():
    assert sequence_auc(Oracle(task("max_retrieval")), task("max_retrieval"), 10, 8) is None
    assert sequence_auc(Oracle(task("dyck")), task("dyck"), 1, 8) is None
