"""How long does the theory of random weights hold? The bridge before and after a little training.

    python examples/trained_bridge.py --schemes pre_norm,post_norm --steps 120

Small byte models on the built-in text; docs/dynamics.md has the numbers of one run.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

import normlab as nl
from normlab.dynamics.flow.starts import TEXT
from normlab.dynamics.networks.bridge import bridge
from normlab.report import console, table

LENGTH = 32


def run(name: str, steps: int, seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    data = torch.tensor(list((TEXT * 3).encode()))
    shape = {"dim": 64, "depth": 6, "heads": 4, "ffn": "gelu", "positions": "rope", "init_std": 64**-0.5}
    model = nl.Transformer(nl.TransformerConfig(vocab_size=128, scheme=nl.scheme(name), **shape))
    probe = torch.stack([data[i : i + LENGTH] for i in (0, 200, 400, 600)])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    draws = torch.Generator().manual_seed(seed + 1)
    before, loss = bridge(model, probe), torch.tensor(float("nan"))
    for _ in range(steps):
        starts = torch.randint(0, len(data) - LENGTH - 1, (16,), generator=draws)
        text = torch.stack([data[i : i + LENGTH + 1] for i in starts])
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step_()
    after = bridge(model, probe)
    return {
        "scheme": name,
        "loss": loss.item(),
        "cosine before": before.measured[-1],
        "after": after.measured[-1],
        "kernel before": before.kernel[-1],
        "after ": after.kernel[-1],
        "miss before": before.kernel_error,
        "after  ": after.kernel_error,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemes", default="pre_norm,post_norm,peri_norm,ngpt")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    console().print(table([run(name, given.steps, given.seed) for name in given.schemes.split(",")]))
