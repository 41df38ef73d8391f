"""A skipped layer must give exactly the loss of a model that is built without it."""

import copy
import functools

import pytest
import torch
from torch import nn

from normlab.probes.inputs.losses import Loss, pick
from normlab.probes.measure.skips import skip_layers
from normlab.probes.trace.locate import locate
from tests.probes.zoo import Homemade, build, inputs

LISTS = {"llama": "model.layers", "gpt2": "transformer.h", "bert": "bert.encoder.layer", "falcon": "transformer.h",
         "t5_encoder": "encoder.block", "gemma2": "model.layers", "bloom": "transformer.h"}  # fmt: skip


def hidden_loss(model, batch):
    output = model(**batch) if isinstance(batch, dict) else model(batch)
    return (output if isinstance(output, torch.Tensor) else output[0])[..., :7].float().pow(2).mean()


def removed(model, path, layers):
    smaller = copy.deepcopy(model)
    parent, _, leaf = path.rpartition(".")
    kept = nn.ModuleList(m for i, m in enumerate(smaller.get_submodule(path)) if i not in layers)
    setattr(smaller.get_submodule(parent), leaf, kept)
    if hasattr(smaller.config, "layer_types") and smaller.config.layer_types:
        smaller.config.layer_types = [t for i, t in enumerate(smaller.config.layer_types) if i not in layers]
    smaller.config.use_cache = False  # its slots are numbered by the old layers
    return smaller


@pytest.mark.parametrize("name", LISTS)
def test_skip_equals_a_model_without_the_layer(name):
    model, batch = build(name), inputs(name)
    layout = locate(model, lambda: model(**batch))
    loss = Loss("hidden", hidden_loss) if name == "t5_encoder" else pick("auto", model, batch, mask_id=3)
    effects = skip_layers(layout, batch, loss, runs=[(0, 2), (1, 2)])
    assert effects.shortcut
    with torch.no_grad():
        assert effects.baseline == pytest.approx(float(loss(model, batch)), rel=1e-6)
        # T5's position bias lives in block 0, and Gemma's window pattern in the index: those cannot be rebuilt.
        singles = range(1, 3) if name == "t5_encoder" else (range(3) if name != "gemma2" else [])
        for layer in singles:
            expected = float(loss(removed(model, LISTS[name], {layer}), batch))
            assert effects.loss[layer] == pytest.approx(expected, rel=1e-5)
        if name not in ("t5_encoder", "gemma2"):
            expected = float(loss(removed(model, LISTS[name], {1, 2}), batch))
            assert {(s, n): value for s, n, value in effects.runs}[1, 2] == pytest.approx(expected, rel=1e-5)
    assert "forward" not in layout.layers[0][1].__dict__


@pytest.mark.parametrize("name", ["t5_encoder", "gemma2", "albert", "opt_350m"])
def test_the_shortcut_agrees_with_the_long_way(name, monkeypatch):
    from normlab.probes.measure import skips

    model, batch = build(name), inputs(name)
    layout = locate(model, lambda: model(**batch))
    loss = Loss("hidden", hidden_loss)
    quick = skip_layers(layout, batch, loss)
    assert quick.shortcut
    monkeypatch.setattr(skips.Skipper, "resumes", lambda *_: False)
    slow = skip_layers(layout, batch, loss)
    assert not slow.shortcut
    assert quick.loss == pytest.approx(slow.loss, rel=1e-5)
    assert quick.loss[0] != pytest.approx(quick.baseline, rel=1e-3)
    for a, b in zip(quick.later, slow.later, strict=True):
        assert [x for x in a if x is not None] == pytest.approx([x for x in b if x is not None], rel=1e-3, abs=1e-5)


def test_later_updates_change_only_behind_the_skipped_layer():
    model, batch = build("llama"), inputs("llama")
    layout = locate(model, lambda: model(**batch))
    effects = skip_layers(layout, batch, pick("causal", model, batch))
    assert [[value is not None for value in row] for row in effects.later] == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]
    assert all(value > 1e-3 for row in effects.later for value in row if value is not None)


def test_a_model_that_remembers_is_run_the_long_way():
    """Layers that talk past the stream make the shortcut wrong, and it must notice."""
    torch.manual_seed(0)
    model = Homemade("pre").eval()
    tokens = torch.randint(0, 97, (2, 12))
    layout = locate(model, lambda: model(tokens))
    memory = {}
    original = model.blocks[2].forward
    model.blocks[0].mixer.register_forward_hook(lambda m, a, out: memory.__setitem__("first", out))
    model.blocks[2].forward = functools.partial(lambda x: original(x + memory.pop("first", 0.0)))
    effects = skip_layers(layout, tokens, Loss("hidden", hidden_loss))
    assert not effects.shortcut


def test_contrastive_runs_the_model_twice_and_still_counts_layers():
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                                     intermediate_size=48, initializer_range=0.2)  # fmt: skip
    model = transformers.BertModel(config).eval()
    batch = inputs("bert", batch=4)
    layout = locate(model, lambda: model(**batch))
    loss = pick("auto", model, batch)
    assert loss.name == "contrastive"
    effects = skip_layers(layout, batch, loss)
    assert len(effects.loss) == 3
    with torch.no_grad():
        expected = float(loss(removed(model, "encoder.layer", {1}), batch))
    assert effects.loss[1] == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_falls_without_layers_judges_nothing():
    from normlab.probes.measure.skips import SkipEffects, reach, skip_report

    def effects(*changes):
        return [SkipEffects(1.0, [1.0 + c + 0.001 * i for c in changes]) for i in range(4)]

    healthy = skip_report(effects(0.3, 0.001, 0.2, 0.4), chance=5.0)
    assert healthy.informative
    assert healthy.better_without == 0
    assert not skip_report(effects(0.3, -0.3, -0.2, 0.4), chance=5.0).informative  # two of four layers
    assert not skip_report(effects(0.3, 0.3), chance=1.01).informative  # at chance
    assert reach(4) == pytest.approx(3.182, abs=0.001)
    assert reach(1) == 0
