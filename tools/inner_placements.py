"""Trains Attention Residuals around every norm placement for some hundred steps; writes the table of docs/frontier.md.

python tools/inner_placements.py            trains what docs/results/inner-placements.json lacks, then writes the table
python tools/inner_placements.py post_norm  only this placement
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import normlab as nl
from normlab.tasks.text import Text

ROOT = Path(__file__).parents[1]
RESULTS, DOCUMENT = ROOT / "docs/results/inner-placements.json", ROOT / "docs/frontier.md"
INNER = ("pre_norm", "post_norm", "peri_norm", "res_norm", "ln_scaling", "mix_norm", "sub_norm", "hybrid_norm", "gpas")
STEPS, BATCH, LENGTH, RATE, WARM_UP = 300, 8, 64, 3e-3, 30
SHAPE = {"vocab_size": 256, "dim": 48, "depth": 6, "heads": 4}


def shapes(inner: str) -> dict[str, object]:
    return {
        "alone": {"name": inner},
        "full": {"name": "attn_res", "inner": inner},
        "block": {"name": "block_attn_res", "block_size": 4, "inner": inner},
    }


def train(scheme: object, seed: int = 0) -> float:
    """Loss on held-out text, in nats a byte, after STEPS steps of AdamW with a short warm-up."""
    torch.manual_seed(seed)
    model = nl.Transformer(nl.TransformerConfig(scheme=scheme, start="authors", **SHAPE))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    draw, task = torch.Generator().manual_seed(seed), Text()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP)
        batch = task.sample(BATCH, LENGTH, draw)
        loss = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    held = task.held_out().sample(64, LENGTH, torch.Generator().manual_seed(9))
    with torch.no_grad():
        return float(F.cross_entropy(model(held.tokens).flatten(0, 1), held.targets.flatten()))


def table(found: dict[str, dict[str, float]]) -> str:
    lines = ["| placement | alone | Full AttnRes | Block AttnRes, S = 4 |", "|---|---|---|---|"]
    for inner, losses in found.items():
        lines.append(f"| {inner} | " + " | ".join(f"{losses[k]:.3f}" for k in ("alone", "full", "block")) + " |")
    return "\n".join(lines)


def main(chosen: list[str]) -> None:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for inner in chosen or [name for name in INNER if name not in found]:
        found[inner] = {kind: round(train(scheme), 4) for kind, scheme in shapes(inner).items()}
        print(inner, found[inner], flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    if DOCUMENT.exists():
        text, body = DOCUMENT.read_text(), table({name: found[name] for name in INNER if name in found})
        mark = r"(<!-- inner placements -->\n).*?(<!-- /inner placements -->)"
        DOCUMENT.write_text(re.sub(mark, rf"\g<1>{body}\n\g<2>", text, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1:])
