"""Layers that run twice, in threads, out of order: the stream is a value."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from normlab.errors import UnsupportedError
from tests.surgery.models import (
    BACKBONES,
    asked,
    build,
    compare,
    gradients,
    inputs,
    preserved_schemes,
    swapped,
    without_dropout,
)

pytest.importorskip("transformers")

SCHEMES = ("block_attn_res", "hyper_connections")


def checkpointed(model, batch, *, reentrant):
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant and "input_ids" in batch:
        model.enable_input_require_grads()
    found = gradients(model, batch)
    model.gradient_checkpointing_disable()
    return found


@pytest.mark.parametrize("name", BACKBONES)
def test_both_kinds_of_checkpointing_give_every_gradient(name):
    for scheme in SCHEMES if name in ("llama", "gemma2") else SCHEMES[:1]:
        model, batch = without_dropout(swapped(name, scheme)).train(), inputs(name)
        wanted = gradients(model, batch)
        assert all(wanted[key] is not None for key in wanted if "scheme" in key)
        for reentrant in (False, True):
            found = checkpointed(model, batch, reentrant=reentrant)
            assert compare(found, wanted) <= limit(wanted), (scheme, reentrant)


def limit(wanted):
    """1e-6 of the largest gradient where it is above 1 (opt_350m has one of 5.8): a checkpoint adds up in another order."""
    return 1e-6 * max(1.0, *(float(g.abs().max()) for g in wanted.values() if g is not None))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("scheme", preserved_schemes())
def test_checkpointing_with_every_scheme(name, scheme):
    model, batch = swapped(name, scheme).train(), inputs(name)
    wanted = gradients(model, batch)
    for reentrant in (False, True):
        assert compare(checkpointed(model, batch, reentrant=reentrant), wanted) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_checkpointing_with_other_kinds_of_streams(name):
    for scheme in ("attn_res", "delta_attn_res", "mhc", "dense_former", "lambda_skip"):
        model, batch = without_dropout(swapped(name, scheme)).train(), inputs(name)
        wanted = gradients(model, batch)
        for reentrant in (False, True):
            found = checkpointed(model, batch, reentrant=reentrant)
            assert compare(found, wanted) <= limit(wanted), (scheme, reentrant)


def test_checkpointing_that_was_on_before_the_swap():
    import normlab as nl

    model, batch = build("llama").train(), inputs("llama")
    model.gradient_checkpointing_enable({"use_reentrant": True})
    nl.swap(model, "block_attn_res", batches=[batch])
    model.enable_input_require_grads()
    found = gradients(model, batch)
    model.gradient_checkpointing_disable()
    assert compare(found, gradients(model, batch)) <= 1e-6


def test_threads_do_not_get_each_others_stream():
    model = swapped("llama", "attn_res")
    batches = [inputs("llama", seed=seed) for seed in range(8)]
    wanted = [asked(model, batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda batch: asked(model, batch), batches * 3))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted * 3, strict=True))


def test_a_layer_that_is_skipped_is_an_error():
    model, batch = swapped("llama", "hyper_connections"), inputs("llama")
    model.model.layers = torch.nn.ModuleList([model.model.layers[0], model.model.layers[2]])
    model.config.num_hidden_layers = 2
    with pytest.raises(UnsupportedError, match="layer 2 was given the stream in front of branch 2"):
        model(**batch)
    with pytest.raises(UnsupportedError, match="only layer 0 opens"):
        model.model.layers[1](torch.zeros(1, 2, 32))


@torch.no_grad()
def test_hidden_states_are_those_of_the_model_at_the_start():
    """In front of every layer, in units of the plain stream: a swap that keeps the function keeps them too."""
    import normlab as nl

    for name in ("llama", "gpt2", "bert", "falcon", "opt"):
        model, batch = build(name), inputs(name)
        before = model(**batch, output_hidden_states=True).hidden_states
        nl.swap(model, "block_attn_res", batches=[batch])
        after = model(**batch, output_hidden_states=True)
        assert len(after.hidden_states) == len(before)
        gaps = [float((a - b).abs().max()) for a, b in zip(before, after.hidden_states, strict=True)]
        assert max(gaps) <= 2e-5, (name, gaps)
        shown = model(**batch, output_hidden_states=True, return_dict=False)
        assert torch.equal(shown[0], after[0])
