"""Sizes at the edge: nothing in a batch, a width of one."""

import pytest
import torch

import normlab as nl


@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("scheme", sorted(nl.SCHEMES))
def test_an_empty_batch_gives_an_empty_answer(scheme, kernels, monkeypatch):
    monkeypatch.setenv("NORMLAB_KERNELS", kernels)
    model = nl.Transformer(nl.TransformerConfig(vocab_size=7, dim=8, depth=4, heads=2, scheme=scheme))
    for shape in ((0, 5), (3, 0)):
        logits = model(torch.zeros(shape, dtype=torch.long))
        assert logits.shape == (*shape, 7)
        logits.sum().backward()
        assert all(p.grad is None or bool((p.grad == 0).all()) for p in model.parameters())


@pytest.mark.parametrize("ffn", ["swiglu", "geglu", "gelu", "relu"])
def test_a_width_of_one_has_an_ffn(ffn):
    config = nl.TransformerConfig(vocab_size=7, dim=1, depth=1, heads=1, positions="nope", ffn=ffn)
    assert config.size_of_ffn >= 1
    model = nl.Transformer(config)
    assert model(torch.zeros(2, 3, dtype=torch.long)).isfinite().all()
    assert nl.TransformerConfig(vocab_size=7, dim=32, depth=1, heads=1).size_of_ffn == 88  # as before
