import pytest
import torch
from scipy import stats

from normlab.errors import ConfigError, InputError
from normlab.tasks import IGNORE, from_dict, task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("set_complement", {"vocab": 6}),
        ("set_complement", {"vocab": 4, "replacement": True}),
        ("dyck", {}),
        ("tomita", {"number": 3}),
        ("tomita", {"number": 5, "source": "strings"}),
    ],
)
def test_targets_are_draws_from_the_law(name, options):
    """Prefixes are grouped by their law; within a group the targets follow it (chi-square)."""
    batch = task(name, **options).sample(6000, 5, rng(3), law=True)
    scored = batch.targets != IGNORE
    laws, group = batch.law[scored].unique(dim=0, return_inverse=True)
    checked = 0
    for i, law in enumerate(laws):
        seen = torch.bincount(batch.targets[scored][group == i], minlength=len(law)).double()
        possible = law > 0
        assert seen[~possible].sum() == 0
        if possible.sum() > 1 and seen.sum() * law[possible].min() > 5:
            checked += 1
            assert stats.chisquare(seen[possible].numpy(), (law[possible] * seen.sum()).numpy()).pvalue > 1e-4
    assert checked >= 1


@pytest.mark.parametrize(("name", "nearest"), [("set-complment", "set_complement"), ("dick", "dyck")])
def test_unknown_task(name, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        task(name)


def test_bad_shapes_are_one_sentence():
    with pytest.raises(InputError, match=r"at most 31 distinct tokens .* a length of 32"):
        task("set_complement", vocab=32).sample(4, 32, rng())
    with pytest.raises(InputError, match="a batch of 0"):
        task("dyck").sample(0, 4, rng())
    with pytest.raises(InputError, match="lengths start at 1"):
        task("dyck").sample(4, 0, rng())
    with pytest.raises(ConfigError, match="did you mean 'number'"):
        task("tomita", nmber=3)
    with pytest.raises(ConfigError, match="number"):
        task("tomita", number=8)
    with pytest.raises(ConfigError, match="more than the 50000"):
        task("dyck", pairs=100, depth=4).sample(1, 4, rng())
    assert from_dict(task("dyck", pairs=3).to_dict()) == task("dyck", pairs=3)
