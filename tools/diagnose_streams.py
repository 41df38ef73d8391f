"""Diagnoses small random decoders of transformers that keep several streams; writes docs/diagnose/streams/NAME.txt."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import normlab as nl

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs/diagnose/streams"
sys.path.insert(0, str(ROOT))


def main() -> None:
    from tests.conformance.decoders import DECODERS, VOCAB

    OUT.mkdir(parents=True, exist_ok=True)
    tokens = torch.randint(0, VOCAB, (2, 16), generator=torch.Generator().manual_seed(0))
    for name, make in DECODERS.items():
        if name == "zaya":  # one stream
            continue
        torch.manual_seed(0)
        found = nl.diagnose(make().eval(), [tokens], name=f"{name}, small, transformers' own start", skips=False)
        (OUT / f"{name}.txt").write_text(str(found) + "\n")
        print(name, found.placement, f"{found.identity_error:.1e}", [verdict.id for verdict in found.verdicts])


if __name__ == "__main__":
    main()
