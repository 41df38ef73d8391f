"""Why each verdict matters and what to try, in words. The rules that find them are in `rules`."""

from __future__ import annotations

from normlab.probes.judge.advice import output, stream, weights
from normlab.probes.judge.advice.words import Words

__all__ = ["TEXTS", "Words", "advise"]

TEXTS: dict[str, Words] = {**weights.TEXTS, **stream.TEXTS, **output.TEXTS}


def advise(id: str, own: str = "") -> str:
    """What to try, for a model that has the scheme `own` already: another one, compared with its own."""
    text = TEXTS[id]
    others = {key: [name for name in names if name != own] for key, names in text.schemes.items()}
    known = {name for each in TEXTS.values() for names in each.schemes.values() for name in names}
    compare = [own if own in known else "pre_norm", *(name for names in others.values() for name in names)]
    words = {key: " or ".join(filter(None, (", ".join(names[:-1]), names[-1]))) for key, names in others.items()}
    return text.advice.format(**words, compare=",".join(dict.fromkeys(compare)))
