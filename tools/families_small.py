"""Small configurations of any model family: every size that a configuration has is set by what its name says."""

from __future__ import annotations

import re
from typing import Any

# The first pattern that fits the name of a setting gives its value; settings that a family does not have are left out.
SIZES: tuple[tuple[str, object], ...] = (
    (r"^vocab_size_per_layer_input$", 97),
    (r"vocab_size$|^n_vocab$|num_embeddings$", 97),
    (r"^(num_hidden_layers|n_layers?|num_layers|num_encoder_layers|num_decoder_layers|encoder_layers|decoder_layers)$", 4),
    (r"^num_h_layers$|^num_l_layers$|^H_layers$|^L_layers$|^prelude_layers|^num_blocks$", 2),
    (r"^num_nextn|mtp_num|num_mtp|num_next", 0),
    (r"^(hidden_size|d_model|n_embd|dim|emb_dim|decoder_hidden_size|encoder_hidden_size|word_embed_proj_dim)$", 32),
    (r"^embedding_size$|^embedding_dim$", 32),
    (r"^(num_attention_heads|n_heads?|num_heads|encoder_attention_heads|decoder_attention_heads|num_encoder_attention_heads"
     r"|num_decoder_attention_heads)$", 4),
    (r"key_value_heads$|^num_kv_heads$|^n_head_kv$|^multi_query_group_num$", 2),
    (r"^(head_dim|d_kv|kv_channels|attention_head_dim|swa_head_dim|global_head_dim|attention_head_size)$", 8),
    (r"^linear_num_value_heads$|^linear_num_key_heads$", 2),
    (r"^linear_(key|value)_head_dim$|^(index|qk_nope|v)_head_dim$", 8),
    (r"^qk_rope_head_dim$", 4),
    (r"^qk_head_dim$", 12),
    (r"_lora_rank$|^index_n_heads$", 8),
    (r"^index_topk$", 8),
    (r"expert.*(ffn|intermediate|hidden)_(size|dim)$|moe_(intermediate|ffn).*size$|shared_expert_intermediate_size$", 16),
    (r"^(num_experts_per_(tok|topk|token)|moe_k|moe_top_?k|top_k_experts|moe_topk|num_selected_experts)$", 2),
    (r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$", 4),
    (r"^(n_shared_experts|num_shared_experts|moe_num_shared_experts)$", 1),
    (r"^(n_group|topk_group|num_expert_group|moe_n_group|expert_group)$", 1),
    (r"^first_k_dense_replace$|^moe_layer_start_index$|^num_dense_layers$|^first_dense_layers$", 1),
    (r"^(intermediate_size|ffn_dim|d_ff|d_inner|n_inner|ffn_hidden_size|encoder_ffn_dim|decoder_ffn_dim|hidden_dim"
     r"|dense_intermediate_size|feed_forward_hidden_size|mlp_hidden_size|inner_dim|intermediate_size_mlp|lru_width)$", 48),
    (r"^max_position_embeddings$|^n_positions$|^n_ctx$|^max_seq_len$|^max_sequence_length$", 128),
    (r"^max_(source|target)_positions$", 128),
    (r"^(sliding_window|window_size|attention_window|attention_chunk_size|attention_window_size|local_attn_chunk_length"
     r"|lsh_attn_chunk_length|block_size|local_radius)$", 8),
    (r"^mamba_(n_heads|num_heads)$|^mamba_num_heads$", 4),
    (r"^(mamba_d_head|mamba_head_dim|mamba_headdim)$", 16),
    (r"^(mamba_d_state|state_size|ssm_state_size)$", 8),
    (r"^(mamba_d_conv|conv_kernel|conv_L_cache|conv_kernel_size)$", 4),
    (r"^mamba_dt_rank$|^time_step_rank$", 4),
    (r"^mamba_n_groups$|^n_groups$|^mamba_ngroups$", 1),
    (r"^(mamba_chunk_size|chunk_size)$", 16),
    (r"^(pad_token_id|bos_token_id|eos_token_id|sep_token_id|cls_token_id|decoder_start_token_id|mask_token_id"
     r"|forced_eos_token_id|forced_bos_token_id)$", 2),
    (r"^pad_token_id$", 1),
    (r"^hidden_size_per_layer_input$|^per_layer_input_size$", 8),
    (r"^laurel_rank$|^num_kv_shared_layers$", 2),
    (r"^(bottleneck_size|intra_bottleneck_size|true_hidden_size)$", 32),
)  # fmt: skip

LATENT = {"num_key_value_heads": 4, "qk_rope_head_dim": 8, "head_dim": 8, "qk_nope_head_dim": 8, "qk_head_dim": 16}

# What the names do not say.
SPECIAL: dict[str, dict[str, object]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "codegen": {"rotary_dim": 4},
    "convbert": {"conv_kernel_size": 3, "head_ratio": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2},
    "gptj": {"rotary_dim": 4},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 4},
}


def small_config(name: str) -> Any:
    """A configuration of the family with small sizes; sub-configurations are made small the same way."""
    from transformers import CONFIG_MAPPING

    return shrunk(CONFIG_MAPPING[name], SPECIAL.get(name, {}))


def shrunk(kind: Any, special: dict[str, object]) -> Any:
    default = kind()
    values = default.to_dict()
    given: dict[str, Any] = {}
    layers = 4
    for key, value in values.items():
        if key in special:
            continue
        size = next((size for pattern, size in SIZES if re.search(pattern, key)), None)
        if size is not None and isinstance(value, (int, type(None))) and not isinstance(value, bool):
            if value is None and not re.search(r"intermediate|d_inner|n_inner|head_dim|layers", key):
                continue
            if value is None and re.search(r"n_inner|head_dim", key):
                continue
            given[key] = size
        elif size is not None and isinstance(value, list) and value and isinstance(value[0], int):
            given[key] = [size] * min(len(value), layers)
        elif isinstance(value, list) and len(value) > layers and key not in ("architectures",):
            given[key] = some_of(value, layers)
    if "kv_lora_rank" in values or "qk_rope_head_dim" in values:  # latent attention: no groups, one rotation width
        given |= {key: size for key, size in LATENT.items() if key in values and key not in special}
    subs = getattr(default, "sub_configs", {})
    for key in subs:
        sub = getattr(default, key, None)
        if sub is not None and key not in special:
            given[key] = shrunk(type(sub), {})
    given |= special
    return kind(**given)


def some_of(items: list[Any], count: int) -> list[Any]:
    """So many of the items in their order, with every kind among them."""
    kinds = list(dict.fromkeys(map(str, items)))
    first = [next(i for i, item in enumerate(items) if str(item) == kind) for kind in kinds[:count]]
    rest = [i for i in range(len(items)) if i not in first]
    return [items[i] for i in sorted([*first, *rest[: count - len(first)]])]
