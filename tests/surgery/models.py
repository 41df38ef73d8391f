"""Small random models for surgery: the zoo of architectures, two mixtures of experts, and what to ask of them."""

import copy

import torch

import normlab as nl
from normlab.schemes import SCHEMES
from normlab.surgery.splice import way_of
from tests.probes.zoo import ARCHITECTURES, GROUPED, INNER
from tests.probes.zoo import build as build_zoo
from tests.probes.zoo import inputs as inputs_of_zoo

REFUSED = ("albert", "bloom_carried")
KIMI = {
    **INNER, "num_hidden_layers": 4, "num_key_value_heads": 4, "moe_intermediate_size": 16, "num_experts": 4,
    "num_experts_per_token": 2, "num_shared_experts": 1, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "linear_head_dim": 8, "linear_num_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip


def _more(name):
    import transformers

    if name == "kimi_linear":
        return transformers.KimiLinearForCausalLM(transformers.KimiLinearConfig(**KIMI))
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.2)
    return transformers.MixtralForCausalLM(config)


MORE = ("kimi_linear", "mixtral")
BACKBONES = (*(name for name in ARCHITECTURES if name not in REFUSED), *MORE)


def build(name, *, seed=0):
    torch.manual_seed(seed)
    return _more(name).eval() if name in MORE else build_zoo(name, seed)


def inputs(name, **how):
    return inputs_of_zoo("llama" if name in MORE else name, **how)


def preserved_schemes():
    """Every scheme that starts as the same function on a Pre-Norm model: neutral, or folded into the norms."""
    kept = [n for n, config in SCHEMES.items() if way_of(config()) == "keep" and not refused(n)]
    assert {"attn_res", "block_attn_res", "delta_attn_res", "hyper_connections", "mhc", "independent_hc"} <= set(kept)
    assert {"dense_former", "layer_scale", "gpas", "lambda_skip", "ln_scaling"} <= set(kept)
    return kept


def refused(name):
    from normlab.schemes import Demands

    return SCHEMES[name]().demands() != Demands()


def answer(model, batch):
    output = model(**batch)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


@torch.no_grad()
def asked(model, batch):
    return answer(model, batch)


def swapped(name, scheme, *, moved=0.05, **options):
    """A swapped model whose new parameters have moved a little, so that the scheme is not a sum any more."""
    model = build(name)
    nl.swap(model, scheme, batches=[inputs(name)], **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, generator=generator))
    return model


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for key in ("attention_dropout", "dropout", "hidden_dropout"):
            if isinstance(vars(module).get(key), float):
                setattr(module, key, 0.0)
    for key in ("attention_dropout", "hidden_dropout", "attention_probs_dropout_prob"):
        if hasattr(model.config, key):
            setattr(model.config, key, 0.0)
    return model


def gradients(model, batch):
    model.zero_grad()
    answer(model, batch).square().mean().backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def compare(found, wanted):
    """The largest difference; a gradient that is missing on one side only is a failure of its own."""
    missing = [name for name, grad in wanted.items() if (grad is None) != (found[name] is None)]
    assert not missing, f"gradients that are missing: {missing}"
    return max(float((found[name] - grad).abs().max()) for name, grad in wanted.items() if grad is not None)


copied = copy.deepcopy
