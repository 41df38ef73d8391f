import pytest

from normlab.errors import ConfigError
from normlab.experiments.runs.score import ByLength, HeldOut


def test_passes_by_hand():
    score = HeldOut(validations=10, curve_sequences=8, sequences=64, layers=(0.0, 1.0), layer_sequences=4)
    effects = 2 * 25 * 2  # two looks, 24 branches and the whole model, two sequences
    assert score.passes(12) == 2 * (1.5 * 12 + 3 + 3 * 4) * 4 + effects + 10 * 8 + 3 * 64  # four gradient batches
    assert score.replace(prune=False).passes(12) == 2 * (3 + 3 * 4) * 4 + effects + 10 * 8 + 3 * 64


@pytest.mark.parametrize("depth", [2, 12, 48])
def test_scaled_sizes_cost_a_share_of_the_run_within_bounds(depth):
    for steps, batch in ((400, 8), (2000, 8), (1000, 16)):
        score = HeldOut.scaled(steps=steps, batch=batch, depth=depth)
        assert score.passes(depth) < 0.4 * 3 * steps * batch
    small, large = (HeldOut.scaled(steps=n, batch=4, depth=depth) for n in (10, 10**6))
    assert (small.validations, small.curve_sequences, small.sequences, small.layer_sequences) == (10, 8, 64, 4)
    assert (large.validations, large.curve_sequences, large.sequences, large.layer_sequences) == (20, 64, 256, 16)


def test_bad_scores():
    with pytest.raises(ConfigError, match="lengths"):
        ByLength(lengths=())
    with pytest.raises(ConfigError, match="did you mean 'sequences'"):
        HeldOut(sequence=3)
    score = ByLength(lengths=(4, 8), task="dyck(depth=5)")
    assert ByLength.from_yaml(score.to_yaml()) == score
    assert score.task.depth == 5
