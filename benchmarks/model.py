"""One training step (forward, cross-entropy, backward; no optimizer) of our pre_norm model against its peers.

(a) `HandWritten`, the least PyTorch that computes the same function, with nn.RMSNorm as people write it, and with our
    faster norm, so that the ratio is the price of the abstraction alone;
(b) x-transformers and Hugging Face Llama of the same shape.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import arguments, ratios, show
from normlab import Transformer, TransformerConfig
from normlab.observe.timing import interleave
from normlab.report import print_json
from normlab.schemes.norms import RMSNorm

OURS = "normlab"
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    depth: int
    dim: int
    heads: int
    length: int
    batch: int
    vocab: int = 1024

    @property
    def hidden(self) -> int:
        return 8 * round(self.dim / 3)


SHAPES = {
    "12 layers, width 256": Shape(depth=12, dim=256, heads=4, length=256, batch=4),
    "6 layers, width 128": Shape(depth=6, dim=128, heads=4, length=128, batch=8),
}


# -- (a) by hand -------------------------------------------------------------------------------------------------------
class HandWrittenLayer(nn.Module):
    def __init__(self, shape: Shape, norm: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm, self.ffn_norm = norm(shape.dim, eps=EPS), norm(shape.dim, eps=EPS)
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim, bias=False)
        self.out = nn.Linear(shape.dim, shape.dim, bias=False)
        self.up = nn.Linear(shape.dim, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, dim = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, dim))
        gate, up = self.up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class HandWritten(nn.Module):
    def __init__(self, shape: Shape, norm: Callable[..., nn.Module] = nn.RMSNorm) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleList(HandWrittenLayer(shape, norm) for _ in range(shape.depth))
        self.norm = norm(shape.dim, eps=EPS)
        head_dim = shape.dim // shape.heads
        powers = torch.arange(0, head_dim, 2) / head_dim
        angles = (torch.arange(shape.length)[:, None] * 10000.0**-powers).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embedding.weight)


# -- ours and (b) ------------------------------------------------------------------------------------------------------
def ours(shape: Shape) -> nn.Module:
    return Transformer(
        TransformerConfig(
            embedding_scale=1.0,  # as the peers
            vocab_size=shape.vocab,
            dim=shape.dim,
            depth=shape.depth,
            heads=shape.heads,
            ffn_dim=shape.hidden,
            eps=EPS,
        )
    )


def x_transformers(shape: Shape) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        attn_dim_head=shape.dim // shape.heads,
        attn_flash=True,
        use_rmsnorm=True,
        rotary_pos_emb=True,
        rotary_emb_dim=shape.dim // shape.heads,
        ff_mult=shape.hidden / shape.dim,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
    )
    return TransformerWrapper(
        num_tokens=shape.vocab,
        max_seq_len=shape.length,
        attn_layers=layers,
        use_abs_pos_emb=False,
        tie_embedding=True,
    )


class HuggingFaceLlama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.dim,
            intermediate_size=shape.hidden,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            max_position_embeddings=shape.length,
            rms_norm_eps=EPS,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False).logits


PEERS: dict[str, Callable[[Shape], nn.Module]] = {
    OURS: ours,
    "hand-written": HandWritten,
    "hand-written, our norm": lambda shape: HandWritten(shape, RMSNorm),
    "x-transformers": x_transformers,
    "Hugging Face Llama": HuggingFaceLlama,
}


def step(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    return run


def measure(shape: Shape, *, rounds: int, what: str) -> dict[str, dict[str, Any]]:
    torch.manual_seed(0)
    tokens = torch.randint(0, shape.vocab, (shape.batch, shape.length + 1))
    models = {name: build(shape).train() for name, build in PEERS.items()}
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    # x-transformers' GLU has a bias that no option removes: 0.2 % more parameters.
    assert max(sizes.values()) < 1.005 * sizes[OURS] == 1.005 * sizes["hand-written"], f"not the same model: {sizes}"
    seconds = interleave({name: step(model, tokens) for name, model in models.items()}, rounds=rounds, what=what)
    return {name: {**row, "parameters": sizes[name]} for name, row in ratios(seconds, OURS).items()}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "").parse_args(argv)
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    for name, shape in SHAPES.items():
        what = "" if options.quiet or options.json else name
        results[name] = measure(shape, rounds=options.rounds or 15, what=what)
        if what:
            title = f"training step, {name}, length {shape.length}, batch {shape.batch}, {results['threads']} thread(s)"
            show(title, results[name], OURS)
    if options.json:
        print_json(results)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
