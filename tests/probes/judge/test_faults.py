"""Planted faults are found, their healthy twins are not accused: three architectures."""

import functools
import math

import pytest
import torch
import transformers
from scipy import stats
from torch import nn

from normlab.probes.diagnose import diagnose
from normlab.probes.inputs.losses import Loss

DEPTH, WIDTH, VOCABULARY = 6, 48, 97
MIDDLE = 3


def bert():
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=128, initializer_range=0.12,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=DEPTH, n_head=4, n_positions=128, initializer_range=0.12
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=128, initializer_range=0.12,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


BUILD = {"bert": bert, "gpt2": gpt2, "llama": llama}


class Parts:
    """The same names for three architectures."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.kind = type(model).__name__[:4].lower()
        self.layers = {
            "bert": lambda: model.bert.encoder.layer,
            "gpt2": lambda: model.transformer.h,
            "llam": lambda: model.model.layers,
        }[self.kind]()

    def ffn_out(self, i):
        layer = self.layers[i]
        return {
            "bert": lambda: layer.output.dense,
            "gpt2": lambda: layer.mlp.c_proj,
            "llam": lambda: layer.mlp.down_proj,
        }[self.kind]()

    def attention_out(self, i):
        layer = self.layers[i]
        return {
            "bert": lambda: layer.attention.output.dense,
            "gpt2": lambda: layer.attn.c_proj,
            "llam": lambda: layer.self_attn.o_proj,
        }[self.kind]()

    def attention(self, i):
        layer = self.layers[i]
        return {"bert": lambda: layer.attention.self, "gpt2": lambda: layer.attn, "llam": lambda: layer.self_attn}[
            self.kind
        ]()

    def scale_queries(self, factor):
        """Sharper or flatter attention logits in every layer."""
        for i in range(DEPTH):
            attention = self.attention(i)
            with torch.no_grad():
                if self.kind == "gpt2":
                    attention.c_attn.weight[:, :WIDTH] *= factor
                    attention.c_attn.bias[:WIDTH] *= factor
                else:
                    query = attention.query if self.kind == "bert" else attention.q_proj
                    query.weight *= factor


def healthy(name, seed=0):
    torch.manual_seed(seed)
    model = BUILD[name]().eval()
    Parts(model).scale_queries(4.0)  # attention that looks something up, as a trained one does
    if name == "llama":  # a stream that starts at 0.12 is overwritten by the first layers, and they get all gradient
        with torch.no_grad():
            model.model.embed_tokens.weight *= 6
    return model


def tokens(batch=4, length=64):
    return torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def run(model, **options):
    return diagnose(model, [{"input_ids": tokens()}], mask_id=3, lengths=(16, 32, 64), **options)


# -- faults: each takes the parts of a healthy model and breaks them ------------------------------------------------
def zero_ffn(p):
    for parameter in p.ffn_out(MIDDLE).parameters():
        nn.init.zeros_(parameter)


def zero_attention(p):
    for parameter in p.attention_out(MIDDLE).parameters():
        nn.init.zeros_(parameter)


def scale_ffn(p):
    with torch.no_grad():
        for parameter in p.ffn_out(MIDDLE).parameters():
            parameter *= 20


def scale_attention(p):
    with torch.no_grad():
        for parameter in p.attention_out(MIDDLE).parameters():
            parameter *= 40


def duplicate_layers(p):
    p.layers[MIDDLE].load_state_dict(p.layers[MIDDLE - 1].state_dict())


def uniform_attention(p):
    p.scale_queries(0.0)


def collapsed_tokens(p):
    """One vector is added to every token in the middle of the stack."""
    shift = torch.randn(WIDTH, generator=torch.Generator().manual_seed(2)) * 50

    def hook(module, args, output):
        return output + shift

    p.ffn_out(MIDDLE).register_forward_hook(hook)


def exploding(p):
    """Post-norm can only grow through its gains, pre-norm through its branches."""
    with torch.no_grad():
        for i in range(DEPTH):
            if p.kind == "bert":
                p.layers[i].output.LayerNorm.weight *= 2.0**i
            else:
                p.ffn_out(i).weight *= 4.0 * 2.5**i


def vanishing_gradients(p):
    """A backward pass that loses two thirds of the gradient in every layer."""
    for layer in p.layers:
        layer.register_forward_hook(functools.partial(_scale_gradient, factor=1 / 3))


def growing_gradients(p):
    for layer in p.layers:
        layer.register_forward_hook(functools.partial(_scale_gradient, factor=3))


def _scale_gradient(module, args, output, factor):
    # The value is unchanged: x * f + x.detach() * (1 - f).
    return output * factor + output.detach() * (1 - factor)


def massive(p):
    def hook(module, args, output):
        output = output.clone()
        output[:, 0, 7] += 5000.0
        return output

    if p.kind == "bert":  # behind the last norm of a layer, or it would be normalised away
        p.layers[MIDDLE].output.LayerNorm.register_forward_hook(hook)
    else:
        p.ffn_out(MIDDLE).register_forward_hook(hook)


def sink(p):
    """A mask that pulls every query toward the first key."""
    pull = torch.zeros(1, 1, 1, 1024)
    pull[..., 0] = 30.0

    def hook(module, args, kwargs):
        queries = (args[0] if args else kwargs["hidden_states"]).shape[1]
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        base = torch.zeros(1, 1, queries, queries) if mask is None else mask
        if base.dtype == torch.bool:
            base = torch.zeros(base.shape).masked_fill(~base, torch.finfo(torch.float32).min)
        new = base + pull[..., :queries]
        if len(args) > 1:
            return (args[0], new, *args[2:]), kwargs
        return args, {**kwargs, "attention_mask": new}

    for i in range(DEPTH):
        p.attention(i).register_forward_pre_hook(hook, with_kwargs=True)


def not_a_number(p):
    with torch.no_grad():
        p.ffn_out(MIDDLE).weight[0, 0] = math.nan


FAULTS = {
    "zero_ffn": (zero_ffn, "dead_branches", {MIDDLE}),
    "zero_attention": (zero_attention, "dead_branches", {MIDDLE}),
    "scale_ffn": (scale_ffn, "oversized_branch", {MIDDLE}),
    "scale_attention": (scale_attention, "oversized_branch", {MIDDLE}),
    "duplicate_layers": (duplicate_layers, "duplicated_layers", {MIDDLE - 1, MIDDLE}),
    "uniform_attention": (uniform_attention, "attention_dispersion", set(range(DEPTH))),
    "collapsed_tokens": (collapsed_tokens, "representation_collapse", None),
    "exploding": (exploding, "exploding_stream", None),
    "vanishing_gradients": (vanishing_gradients, "gradient_imbalance", None),
    "growing_gradients": (growing_gradients, "gradient_imbalance", None),
    "massive": (massive, "massive_activations", None),
    "sink": (sink, "attention_sinks", set(range(DEPTH))),
    "not_a_number": (not_a_number, "non_finite", None),
}


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_healthy_twin_is_not_accused(name, seed):
    found = run(healthy(name, seed), skips=False)
    said = [
        verdict for verdict in found.verdicts if verdict.subject not in ("loss", "training")
    ]  # random weights know nothing
    assert [verdict.title for verdict in said] == []
    assert found.verdict("at_chance") is not None


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(name, fault):
    plant, expected, layers = FAULTS[fault]
    model = healthy(name)
    plant(Parts(model))
    found = run(model, skips=False)
    verdict = found.verdict(expected)
    assert verdict is not None, [v.title for v in found.verdicts]
    if layers is not None:
        assert set(verdict.layers) == layers
    if fault in ("vanishing_gradients", "growing_gradients"):
        assert ("vanish toward the input" in verdict.title) == (fault == "vanishing_gradients")
    if fault == "massive":
        assert "coordinate 7" in verdict.title
        assert "position 0" in verdict.title
        assert MIDDLE in verdict.layers
        assert 0 not in verdict.layers
    if fault == "sink":
        assert "position 0" in verdict.title
    if fault == "collapsed_tokens":
        assert MIDDLE in verdict.layers
        assert 0 not in verdict.layers
    for text in (verdict.title, verdict.why, verdict.advice, verdict.normal):
        assert text


# -- wasted layers: confirmed by skipping ---------------------------------------------------------------------------
def own_predictions(model):
    """A loss on which every working layer counts: predict what the whole model predicts, with sharp logits."""
    with torch.no_grad():
        whole = tokens()
        targets = model(input_ids=whole).logits.argmax(-1)

    def agreement(model, batch):
        ids = batch["input_ids"]
        places = [next(i for i, row in enumerate(whole) if torch.equal(row, one)) for one in ids]
        logits = 8 * model(input_ids=ids).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[places].flatten())

    return Loss("agreement", agreement, chance=math.log(VOCABULARY))


@pytest.mark.parametrize("name", BUILD)
def test_a_layer_that_does_nothing_is_confirmed_as_wasted(name):
    model = healthy(name)
    with torch.no_grad():
        for part in (Parts(model).ffn_out(MIDDLE), Parts(model).attention_out(MIDDLE)):
            for parameter in part.parameters():
                parameter *= 0.02  # alive (above the limit of a dead branch), and useless
    found = run(model, loss=own_predictions(model), attention=False)
    verdict = found.verdict("wasted_layers")
    assert verdict is not None, found.causal.change
    assert set(verdict.layers) == {MIDDLE}
    assert found.verdict("dead_branches") is None
    assert found.causal.informative


@pytest.mark.parametrize("name", BUILD)
def test_layers_that_work_are_not_called_wasted(name):
    model = healthy(name)
    found = run(model, loss=own_predictions(model), attention=False)
    assert found.verdict("wasted_layers") is None, found.causal.change
    assert found.causal.correlation["block_influence"] == pytest.approx(
        stats.spearmanr([row.block_influence for row in found.layers], found.causal.change).statistic
    )


def test_a_model_at_chance_has_no_wasted_layers():
    model = gpt2().eval()
    found = run(model, attention=False)
    assert not found.causal.informative
    assert found.verdict("wasted_layers") is None
