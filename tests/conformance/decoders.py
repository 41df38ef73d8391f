"""Small decoders of transformers with random weights, and a pass over them whose branches can be replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normlab.testing.shipped import BranchCall, Shipped, recognise, recorded

DIM, VOCAB, DEPTH = 32, 41, 3
PLAIN: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def deepseek_v4() -> nn.Module:
    from transformers import DeepseekV4Config, DeepseekV4Model

    config = DeepseekV4Config(
        **PLAIN,
        num_key_value_heads=1,
        head_dim=16,
        partial_rotary_factor=0.5,
        q_lora_rank=8,
        o_groups=2,
        o_lora_rank=8,
        moe_intermediate_size=24,
        n_routed_experts=4,
        num_experts_per_tok=2,
        index_n_heads=2,
        index_head_dim=8,
        index_topk=4,
        hc_sinkhorn_iters=7,
        layer_types=["sliding_attention"] * DEPTH,
        mlp_layer_types=["moe"] * DEPTH,
    )
    return DeepseekV4Model(config)


def glm5_next() -> nn.Module:
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel

    config = Glm5NextTextConfig(
        **PLAIN,
        num_key_value_heads=2,
        intermediate_size=40,
        moe_intermediate_size=24,
        n_routed_experts=4,
        num_experts_per_tok=2,
        kv_lora_rank=8,
        q_lora_rank=8,
        v_head_dim=16,
        qk_nope_head_dim=16,
        linear_head_dim=16,
        linear_num_heads=2,
        index_topk=16,
        index_head_dim=8,
        index_n_heads=2,
        layer_types=["linear_attention", "indexed_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "dense"],
    )
    return Glm5NextTextModel(config)


def hy_v4() -> nn.Module:
    from transformers.models.hy_v4.configuration_hy_v4 import HYV4Config
    from transformers.models.hy_v4.modeling_hy_v4 import HYV4Model

    config = HYV4Config(
        **PLAIN,
        intermediate_size=40,
        moe_intermediate_size=24,
        n_routed_experts=4,
        num_experts_per_tok=2,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=16,
        index_topk=16,
        index_head_dim=16,
        index_n_heads=2,
        hc_magnitude=1.5,
    )
    return HYV4Model(config)


def qwen4_exp() -> nn.Module:
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextModel

    config = Qwen4ExpTextConfig(
        **PLAIN,
        num_key_value_heads=1,
        head_dim=16,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        hc_lowrank=6,
        indexer_n_heads=2,
        indexer_kv_heads=1,
        indexer_head_dim=16,
        indexer_budget=8,
        indexer_compress_ratio=2,
        layer_types=["linear_attention", "indexed_attention", "linear_attention"],
    )
    return Qwen4ExpTextModel(config)


def zaya() -> nn.Module:
    from transformers.models.zaya.configuration_zaya import ZayaConfig
    from transformers.models.zaya.modeling_zaya import ZayaModel

    config = ZayaConfig(
        **PLAIN,
        num_key_value_heads=1,
        head_dim=16,
        moe_intermediate_size=24,
        num_experts=4,
        router_hidden_size=12,
    )
    return ZayaModel(config)


def gemma3n() -> nn.Module:
    from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextModel

    config = Gemma3nTextConfig(
        **PLAIN,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=40,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=6,
        laurel_rank=5,
        num_kv_shared_layers=0,
        activation_sparsity_pattern=[0.0] * DEPTH,
        layer_types=["full_attention"] * DEPTH,
    )
    return Gemma3nTextModel(config)


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "deepseek_v4": deepseek_v4,
    "glm5_next": glm5_next,
    "hy_v4": hy_v4,
    "qwen4_exp": qwen4_exp,
    "zaya": zaya,
    "gemma3n": gemma3n,
}


def randomise_(decoder: nn.Module, seed: int) -> None:
    """Weights that hide nothing: no gain is 1, no bias 0; matrices keep the size of what they act on."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "embed" in name:
                parameter.normal_(0.0, 1.0, generator=draw)
            elif parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=draw)
            else:
                noise = torch.empty_like(parameter).uniform_(-0.5, 0.5, generator=draw)
                parameter.copy_(noise + 1 if "norm" in name or "scale" in name else noise)


def paper_start_(decoder: Any) -> Any:
    """The biases that the mHC paper asks for, in the layout of transformers."""
    n = decoder.config.hc_mult
    with torch.no_grad():
        for i, hc in enumerate(hc for layer in decoder.layers for hc in (layer.attn_hc, layer.ffn_hc)):
            hc.fn.zero_()
            hc.base.zero_()
            hc.base[:n] = -3.0
            hc.base[i % n] = 3.0
            hc.base[2 * n :] = (6 * torch.eye(n) - 3).flatten()
            hc.scale.fill_(0.01)
    return decoder


@dataclass
class Pass:
    """One pass over their decoder: what each branch was given and gave."""

    calls: list[BranchCall]
    output: Tensor
    twins: dict[int, Tensor] = field(default_factory=dict)  # tensors that branches hand to each other, in our pass

    def replay(self, index: int, z: Tensor) -> Tensor:
        """Their branch on our input."""
        call = self.calls[index]
        named = "hidden_states" in call.kwargs
        args = tuple(self.twins.get(id(a), a) if isinstance(a, Tensor) else a for a in call.args)
        args = args if named else (z, *args[1:])
        kwargs = {**call.kwargs, "hidden_states": z} if named else call.kwargs
        made = call.module(*args, **kwargs)
        if isinstance(made, tuple):
            for theirs, ours in zip(call.output[1:], made[1:], strict=True):
                if isinstance(theirs, Tensor):
                    self.twins[id(theirs)] = ours
            return made[0]
        return made


def run_theirs(shipped: Shipped, x: Tensor, tokens: Tensor) -> Pass:
    return Pass(*recorded(shipped, x, tokens))


def run_ours(scheme: Any, x: Tensor, branch: Callable[[int, Tensor], Tensor]) -> Tensor:
    stream = scheme.open(x)
    for site in scheme.frame.sites:
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branch(site.index, z), carry, site)
    return scheme.close(stream)


@contextmanager
def without_casts(wide: torch.dtype) -> Any:
    """Their code with its casts to float32 taken out: in float64 all is float64, in bfloat16 all is bfloat16."""
    to_float, to = Tensor.float, Tensor.to

    def kept_to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        asked = kwargs.get("dtype", args[0] if args else None)
        return self if self.dtype == wide and asked == torch.float32 else to(self, *args, **kwargs)

    Tensor.float = lambda self: self if self.dtype == wide else to_float(self)  # type: ignore[method-assign,assignment]
    Tensor.to = kept_to  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Tensor.float, Tensor.to = to_float, to  # type: ignore[method-assign]


def shipped(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Shipped, Tensor, Tensor]:
    """The decoder, an embedding and token ids."""
    torch.manual_seed(seed)
    decoder = DECODERS[name]().eval()
    randomise_(decoder, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    tokens = torch.randint(0, VOCAB, (2, 7), generator=draw)
    x = torch.randn(2, 7, DIM, generator=draw, dtype=torch.float64).to(dtype)
    return recognise(decoder.to(dtype)), x, tokens
