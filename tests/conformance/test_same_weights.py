"""Same weights in, same outputs and gradients out, as torch.nn and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance import copying, twins

TOLERANCE = 1e-5
PAIRS: dict[str, Callable[..., twins.Twins]] = {
    **{
        f"torch {'pre' if pre else 'post'}_norm {activation}": partial(
            twins.torch_encoder, pre=pre, activation=activation
        )
        for pre in (False, True)
        for activation in ("relu", "gelu")
    },
    "torch pre_norm causal": partial(twins.torch_encoder, pre=True, activation="gelu", causal=True),
    "bert": twins.bert,
    "gpt2": twins.gpt2,
    "llama": twins.llama,
    "gemma2": twins.gemma2,
    "olmo2": twins.olmo2,
}


def tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    return torch.randint(0, twins.VOCAB, (batch, time), generator=torch.Generator().manual_seed(seed))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype == torch.float32
    size = theirs.std().item()
    assert 0.2 < size < 5, f"the outputs are not of order 1 ({size}), so an absolute tolerance says nothing"
    assert (ours - theirs).abs().max().item() <= TOLERANCE


@pytest.mark.parametrize("name", PAIRS)
def test_outputs(name: str) -> None:
    for seed, (batch, time) in enumerate([(3, 17), (1, 1), (2, twins.POSITIONS)]):
        both = PAIRS[name](seed=seed)
        given = tokens(batch, time, seed)
        for training in (True, False):  # torch.nn computes the two by different code
            both.theirs.train(training)
            both.ours.train(training)
            with torch.no_grad():
                assert_same(both.run_ours(given, None), both.run_theirs(given, None))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding(name: str, side: str) -> None:
    """Compared where there are tokens: what stands at padding has no meaning, and differs among libraries."""
    both = PAIRS[name]()
    given, real = tokens(3, 13), torch.ones(3, 13, dtype=torch.bool)
    real[1, 9:], real[2, 4:] = False, False
    if side == "left":
        real = real.flip(1)
    with torch.no_grad():
        ours, theirs = both.run_ours(given, real), both.run_theirs(given, real)
        unmasked = both.run_ours(given, None)
    assert_same(ours[real], theirs[real])
    if side == "left" or not both.ours.config.causal:
        assert not torch.allclose(ours[real], unmasked[real], atol=1e-2), "the mask changes nothing"


@pytest.mark.parametrize("name", PAIRS)
def test_gradients(name: str) -> None:
    """Of one loss, to every parameter, relative to the largest entry of each gradient."""
    both = PAIRS[name]()
    given, targets = tokens(3, 17), tokens(3, 17, seed=1)
    for run in (both.run_ours, both.run_theirs):
        F.cross_entropy(run(given, None).flatten(0, 1), targets.flatten() % twins.DIM).backward()
    expected = copying.translated_gradients(both.translate, both.theirs, depth=both.depth)
    found = {parameter: p.grad for parameter, p in both.ours.named_parameters()}
    assert found.keys() == expected.keys()
    for parameter, gradient in found.items():
        if name == "bert" and parameter == "position.weight":  # ours holds the token types as well
            continue
        assert gradient is not None
        largest = expected[parameter].abs().max()
        assert largest > 1e-6, parameter
        torch.testing.assert_close(gradient, expected[parameter], rtol=0, atol=2e-5 * largest.item(), msg=parameter)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "olmo2"])
def test_greedy_generation(name: str) -> None:
    """With the key-value cache of each side."""
    both = PAIRS[name]()
    both.theirs.eval()
    prompt = tokens(2, 5)
    theirs = both.theirs.generate(  # type: ignore[operator]
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    assert both.ours.generate(prompt, max_new_tokens=12, temperature=0.0).tolist() == theirs.tolist()


def test_a_shorter_sliding_window_is_another_model() -> None:
    """The window of Gemma's odd layers is seen by this comparison: ours has none, so the two part behind it."""
    window = 8
    both = twins.gemma2(sliding_window=window)
    given = tokens(2, 21)
    with torch.no_grad():
        ours, theirs = both.run_ours(given, None), both.run_theirs(given, None)
    assert_same(ours[:, :window], theirs[:, :window])
    assert (ours - theirs)[:, window:].abs().max() > 1e-2


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_a_swapped_norm_shows(name: str) -> None:
    """The comparison can fail: two norms exchanged, both with random gains, are far outside the tolerance."""
    both = PAIRS[name]()
    norms = both.ours.scheme.get_submodule("out" if name == "bert" else "res")
    with torch.no_grad():
        first, second = norms.get_submodule("0").weight, norms.get_submodule("1").weight
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)
        given = tokens(2, 9)
        assert (both.run_ours(given, None) - both.run_theirs(given, None)).abs().max() > 1e-2
