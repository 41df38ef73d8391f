"""Training steps of the minimal model (v = 32, d = 31, length 31, batch 256): the fast path against the general model.

A step is sampling, loss, gradient, clipping and AdamW, on one thread. `fast` is the eager fast path in a plain loop;
`compiled` is what `normlab lengthgen` takes from 5000 steps on: the compiled fast path over flat parameters, with
averaging (half a minute of compiling for each scheme, then cached; `--eager` leaves it out). Losses and gradients of the
candidates are equal (tests/training/test_minimal.py, test_stacked.py).
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from torch import nn

from benchmarks.timing import arguments, ratios, show
from normlab import Transformer, TransformerConfig
from normlab.observe.timing import interleave
from normlab.report import print_json
from normlab.tasks import task
from normlab.training import Schedule, TrainConfig, cross_entropy, optim
from normlab.training.ensemble import Ensemble
from normlab.training.minimal import SCHEMES, FastMinimal

V, LENGTH, BATCH = 32, 31, 256


def stepper(scheme: str, kind: str) -> Any:
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig.from_dict(
            {
                "vocab_size": V,
                "dim": V - 1,
                "depth": 1,
                "heads": 1,
                "ffn": "none",
                "positions": "nope",
                "scheme": scheme,
                "tie_embeddings": False,
                "init_std": (V - 1) ** -0.5,
                "embedding_scale": 1.0,
            }
        )
    )
    ground = task("set_complement", vocab=V)
    if kind == "compiled":
        config = TrainConfig(steps=10**6, batch=BATCH, length=LENGTH, lr=1e-3, log_every=10**6, schedule=Schedule())
        ensemble = Ensemble([model], ground, [config], tempfile.mkdtemp(), quiet=True)
        assert ensemble.fast is not None
        ensemble.feed.ahead = ensemble.feed.used = 1  # drawn ahead, 63 steps of 64 would be measured without sampling
        return ensemble._one
    generator = torch.Generator().manual_seed(0)
    optimizer = optim.adamw(model, lr=1e-3)
    fast = None if kind == "general" else FastMinimal(model)

    def step() -> None:
        batch = ground.sample(BATCH, LENGTH, generator)
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(batch.tokens), batch, exact=False) if fast is None else fast(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__ or "")
    parser.add_argument("--eager", action="store_true", help="leave the compiled fast path out")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    given, _ = parser.parse_known_args(argv)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for scheme in given.schemes.split(","):
        kinds = ["general", "fast", *([] if given.eager else ["compiled"])]
        candidates = {kind: stepper(scheme, kind) for kind in kinds}
        seconds = interleave(candidates, rounds=given.rounds or 15, warmup=3, what="" if given.quiet else scheme)
        found = ratios(seconds, "general")
        results[scheme] = found
        if not given.quiet and not given.json:
            show(f"{scheme}: general / it = how many times faster", found, "general")
    if given.json:
        print_json(results)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
