"""The ledger: one row a claim, one file a seed. A new claim is one row; nothing else needs to know it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from normlab.errors import ConfigError, unknown
from normlab.experiments.claims.claim import Claim


@cache
def ledger() -> Mapping[str, Claim]:
    """Every claim by its id, in order."""
    found: dict[str, Claim] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        rows: tuple[Claim, ...] = importlib.import_module(f"{__name__}.{module}").CLAIMS
        for row in rows:
            if row.id in found or not module.endswith(row.seed):
                raise ConfigError(f"{module}: the claim {row.id} is there twice, or in the file of another seed")
            found[row.id] = row
    return dict(sorted(found.items()))


def find(text: str) -> Claim:
    """The claim of this id; an unknown one is told with the nearest."""
    name = text.strip().lower()
    if name not in ledger():
        raise ConfigError(unknown("claim", text, ledger(), hint="`normlab claims` lists them"))
    return ledger()[name]


def pages() -> dict[str, list[Claim]]:
    """The claims of each seed: one page, one family of tests."""
    found: dict[str, list[Claim]] = {}
    for claim in ledger().values():
        found.setdefault(claim.seed, []).append(claim)
    return found
