"""Claims that are algebra: the residual of each identity on real modules, in float64 where nothing else is stated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import require
from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import number
from normlab.experiments.claims.measured.start.initialisation import small
from normlab.model import Transformer, TransformerConfig
from normlab.observe.portrait import walk
from normlab.schemes import parse_scheme
from normlab.theory.mean_field import MeanFieldSetting, backprop_forms


def _tokens(seed: int, length: int = 12) -> Tensor:
    return torch.randint(64, (2, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def plain_sum(seed: int) -> float:
    """Distance of Pre-Norm's depth mixing from the all-ones triangle, and of each read from the sum of what came before."""
    model, tokens = small("pre_norm", seed), _tokens(seed)
    mixing = model.depth_mixing(tokens)
    ones = torch.ones(mixing.shape[-2:], dtype=mixing.dtype).tril()
    seen = walk(model, lambda: model.features(tokens))
    sums = [model.embed(tokens, torch.arange(tokens.shape[1]))]
    for output in seen.outputs:
        sums.append(sums[-1] + output)
    apart = max(float((h - total).abs().max() / total.abs().max()) for h, total in zip(seen.reads, sums, strict=True))
    return max(apart, float((mixing - ones).abs().max()))


@measure("000-01", seeds=3, seconds=1)
def standard_residual(bench: Bench) -> Findings:
    values = [plain_sum(seed) for seed in bench.seeds]
    return Findings([number("distance of the depth mixing from the all-ones triangle", values)], {"layers": 4, "d": 32})


@torch.no_grad()
def convexity(seed: int) -> float:
    """How far AttnRes with random queries is from a convex combination of its sources, whose norm it may not exceed."""
    model = small("attn_res", seed)
    model.scheme.queries.normal_(std=2.0, generator=torch.Generator().manual_seed(seed))  # type: ignore[operator, union-attr]
    tokens = _tokens(seed)
    mixing = model.depth_mixing(tokens)
    seen = walk(model, lambda: model.features(tokens))
    negative = float(-mixing.min())
    sums = float((mixing.sum(-1) - 1).abs().max())
    longest = torch.stack([v.norm(dim=-1) for v in seen.sources]).amax(0)
    excess = max(float((h.norm(dim=-1) / longest).max()) - 1 for h in seen.reads)
    return max(negative, sums, excess, 0.0)


@measure("000-16", seeds=3, seconds=1)
def convex(bench: Bench) -> Findings:
    values = [convexity(seed) for seed in bench.seeds]
    return Findings([number("excess over a convex combination", values)], {"layers": 4, "d": 32, "queries": "N(0, 4)"})


@torch.no_grad()
def recurrence(seed: int) -> float:
    """Hyper-connections at their start against Pre-Norm with the same weights; then, with random mixing, the part of the
    depth mixing below the diagonal that a recurrence over n streams cannot hold (its rank beyond n)."""
    plain, streams = small("pre_norm", seed), small("hyper_connections", seed)
    same = streams.load_state_dict(plain.state_dict(), strict=False)
    assert not same.unexpected_keys or all(k.startswith("scheme") for k in same.unexpected_keys)
    tokens = _tokens(seed)
    apart = float((plain(tokens) - streams(tokens)).abs().max())
    mixed = small("hyper_connections(streams=2, dynamic=false)", seed, depth=6)
    generator = torch.Generator().manual_seed(seed)
    for name, p in mixed.scheme.named_parameters():
        if "norm" not in name and "pre" not in name and "final" not in name:
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    mixing = mixed.depth_mixing(_tokens(seed))[0, 0]
    beyond = 0.0
    for cut in range(1, mixing.shape[0]):
        values = torch.linalg.svdvals(mixing[cut:, :cut])
        beyond = max(beyond, float(values[2] / values[0]) if len(values) > 2 else 0.0)
    return max(apart, beyond)


@measure("000-23", seeds=3, seconds=2)
def hyper_connections(bench: Bench) -> Findings:
    metric = "distance of hyper-connections from Pre-Norm and of their mixing from its rank"
    return Findings(
        [number(metric, [recurrence(seed) for seed in bench.seeds])], {"streams": "4 and 2", "layers": "4 and 6"}
    )


@torch.no_grad()
def final_norm_factor(seed: int) -> float:
    """Each layer's share of the stream before the final norm and behind it."""
    model = small("pre_norm", seed)
    tokens = _tokens(seed)
    seen = walk(model, lambda: model.features(tokens))
    before = seen.reads[-1]
    final: Any = model.scheme.final
    factor = final(before) / before  # one number a token, if the claim is true
    shares = [(v * factor).norm(dim=-1) / final(before).norm(dim=-1) for v in seen.sources]
    plain = [v.norm(dim=-1) / before.norm(dim=-1) for v in seen.sources]
    return max(float((a - b).abs().max()) for a, b in zip(shares, plain, strict=True))


@measure("001-19", seeds=3, seconds=1)
def one_factor(bench: Bench) -> Findings:
    metric = "largest difference of a layer's share before and behind the final norm"
    return Findings([number(metric, [final_norm_factor(seed) for seed in bench.seeds])], {"norm": "rmsnorm, gain 1"})


def against_torch(seed: int, *, pre: bool) -> float:
    """Our placement and torch.nn's encoder layers with the same weights: largest difference of the outputs, in float32."""
    torch.manual_seed(seed)
    depth, width = 3, 32
    layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, activation="relu", norm_first=pre, batch_first=True)
    theirs = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width) if pre else None, enable_nested_tensor=False)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn_like(p))
    ours = Transformer(
        TransformerConfig(
            vocab_size=64, dim=width, depth=depth, heads=4, ffn_dim=64, norm="layernorm", ffn="relu", positions="nope",
            causal=False, bias=True, eps=1e-5, start="authors", init_std=1.0,
            scheme=parse_scheme("pre_norm" if pre else "post_norm"),
        )
    )  # fmt: skip
    ours.load_state_dict(_renamed(theirs, pre=pre), strict=False)
    tokens = _tokens(seed)
    with torch.no_grad():
        x = ours.embed(tokens, torch.arange(tokens.shape[1]))
        return float((ours.features(tokens) - theirs(x)).abs().max())


def _renamed(theirs: nn.TransformerEncoder, *, pre: bool) -> dict[str, Tensor]:
    names = {
        "self_attn.in_proj_": "branches.{a}.qkv.", "self_attn.out_proj.": "branches.{a}.out.", "linear1.": "branches.{f}.up.",
        "linear2.": "branches.{f}.down.", "norm1.": "scheme.{p}.{a}.", "norm2.": "scheme.{p}.{f}.",
    }  # fmt: skip
    found: dict[str, Tensor] = {}
    for i, layer in enumerate(theirs.layers):
        for name, value in layer.named_parameters():
            start = next(key for key in names if name.startswith(key))
            place = names[start].format(a=2 * i, f=2 * i + 1, p="pre" if pre else "out")
            found[place + name.removeprefix(start)] = value.detach()
    if pre:
        assert theirs.norm is not None
        found |= {f"scheme.final.{name}": value.detach() for name, value in theirs.norm.named_parameters()}
    return found


@measure("004-01", seeds=3, seconds=1)
def equations(bench: Bench) -> Findings:
    values = [max(against_torch(seed, pre=pre) for pre in (False, True)) for seed in bench.seeds]
    return Findings([number("difference from torch.nn's encoder layers", values)], {"layers": 3, "dtype": "float32"})


@measure("004-02", seeds=1, seconds=10)
def placements(bench: Bench) -> Findings:
    """Small models of the classes that ship, with random weights; the placement is read from the modules."""
    from normlab.probes.diagnose import diagnose

    hf = require("transformers", extra="hf", purpose="the shipped models")
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    opt = {**small, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}
    shipped = {
        "post_norm bert": hf.BertModel(hf.BertConfig(**small, intermediate_size=48)),
        "pre_norm gpt2": hf.GPT2Model(hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64)),
        "pre_norm llama": hf.LlamaModel(hf.LlamaConfig(**small, intermediate_size=48)),
        "post_norm opt": hf.OPTModel(hf.OPTConfig(**opt, do_layer_norm_before=False)),
    }
    told = {key: diagnose(model.eval(), _tokens(0), skips=False).placement for key, model in shipped.items()}
    right = sum(placement.startswith(key.split()[0]) for key, placement in told.items())
    notes = [f"{key.split()[1]}: {placement}" for key, placement in told.items()]
    return Findings([number("models whose placement is read as stated", right, exact=True)], {"layers": 2}, notes)


@measure("jacobian-forms", seeds=3, seconds=8)
def jacobians(bench: Bench) -> Findings:
    settings = [MeanFieldSetting(dim=16, tokens=3, seed=seed) for seed in bench.seeds]
    post = [backprop_forms("post_norm", setting=s).error for s in settings]
    pre = [backprop_forms("pre_norm", setting=s).error for s in settings]
    found = [
        number("distance of the whole Jacobian from the product", post),
        number("distance of the whole Jacobian from the sum", pre),
    ]
    return Findings(found, {"layers": 8, "d": 16, "tokens": 3})
