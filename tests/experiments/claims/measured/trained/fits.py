"""A measurement made small, and every criterion that rests on it: do the names of metrics, arms and places agree?"""

from normlab.experiments.claims.bench import Bench, find_measure
from normlab.experiments.claims.evidence import Evidence
from normlab.experiments.claims.ledger import ledger
from normlab.experiments.claims.nulls import column, differences


def evidence(name, folder, *, seeds=2):
    found = find_measure(name).function(Bench(tuple(range(seeds)), folder / name, quiet=True))
    return Evidence(name, tuple(found.measurements), tuple(range(seeds)), found.settings)


def judged(name, folder, *, seeds=2):
    """The findings of all claims that rest on this evidence, by claim."""
    made = evidence(name, folder, seeds=seeds)
    return {c.id: c.criterion.judge(made) for c in ledger().values() if c.evidence == name}


def fits_its_claims(name, folder, *, seeds=2):
    """A null has the metric, and the places, of every criterion that it stands beside."""
    made = evidence(name, folder, seeds=seeds)
    leaves = [leaf for c in ledger().values() for leaf in differences(c) if leaf.null_name == name]
    assert leaves
    for leaf in leaves:
        (found,) = [m for m in made.measurements if m.metric == leaf.metric] or made.measurements
        assert len(column(found, leaf)) == len(found.values)
