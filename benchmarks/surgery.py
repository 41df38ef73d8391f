"""What a swap costs: a swapped pre_norm (the same arithmetic) against the untouched Hugging Face model, and Block AttnRes.

Forward pass, training step (forward and backward) and decoding with a cache, of a Llama with random weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import normlab as nl
from benchmarks.timing import arguments, ratios, show
from normlab.observe.timing import interleave
from normlab.report import print_json

OURS, BLOCK, THEIRS = "swapped pre_norm", "swapped block_attn_res", "transformers"


def models(*, dim: int = 256, depth: int = 12) -> dict[str, nn.Module]:
    import transformers

    found = {}
    for name, scheme in ((OURS, "pre_norm"), (BLOCK, "block_attn_res"), (THEIRS, None)):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=1000, hidden_size=dim, intermediate_size=3 * dim, num_hidden_layers=depth,
            num_attention_heads=dim // 64, num_key_value_heads=dim // 64, pad_token_id=0,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        if scheme is not None:
            nl.swap(model, scheme)
        found[name] = model
    return found


def candidates(found: dict[str, nn.Module], tokens: torch.Tensor) -> dict[str, dict[str, Callable[[], Any]]]:
    def forward(model: nn.Module) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return model(tokens)

        return run

    def step(model: nn.Module) -> Callable[[], Any]:
        def run() -> None:
            model.zero_grad()
            model(tokens, labels=tokens).loss.backward()

        return run

    def decode(model: Any) -> Callable[[], Any]:
        how = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        return lambda: model.generate(tokens[:1, :16], **how)

    kinds = {"forward": forward, "training step": step, "decoding": decode}
    return {kind: {name: make(model) for name, model in found.items()} for kind, make in kinds.items()}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "").parse_args(argv)
    tokens = torch.randint(1, 1000, (4, 128), generator=torch.Generator().manual_seed(0))
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    found = models()
    for kind, made in candidates(found, tokens).items():
        for model in found.values():  # once: going through all modules is no part of a pass
            model.train(kind == "training step")
        rounds = interleave(made, rounds=options.rounds or 20)
        results[kind] = ratios(rounds, OURS)
        if not (options.quiet or options.json):
            show(f"surgery, {kind}, 12 layers, d 256, {results['threads']} thread(s)", results[kind], OURS)
    if options.json:
        print_json(results)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
