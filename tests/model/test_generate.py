"""Decoding with a cache and a prompt in chunks: the same tokens, and a depth history that does not grow."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import normlab as nl
from normlab.errors import InputError
from normlab.schemes.base import tensors_of


def model(scheme="block_attn_res", **changes):
    options = {"vocab_size": 23, "dim": 32, "depth": 6, "heads": 4, "max_length": 64} | changes
    built = nl.Transformer(nl.TransformerConfig(scheme=scheme, **options)).double().eval()
    with torch.no_grad():
        for parameter in built.scheme.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


SCHEMES = ["block_attn_res", "attn_res", "dense_former", "mhc", "siamese_norm", "pre_norm", "ngpt"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_chunked_prefill_equals_one_pass(scheme, chunk):
    built, tokens = model(scheme), torch.randint(23, (2, 17))
    with torch.no_grad():
        whole = built.features(tokens)
    cache = built.new_cache(2, 20)
    last = built.prefill(tokens[:, :16], cache, chunk=chunk)
    torch.testing.assert_close(last, whole[:, 15:16], rtol=0, atol=1e-12)
    last = built.prefill(tokens[:, 16:], cache, chunk=chunk)
    torch.testing.assert_close(last, whole[:, 16:], rtol=0, atol=1e-12)
    assert cache.length == 17


CHANGES = [
    {"kv_heads": 2},
    {"softmax": "ssmax"},
    {"softmax": "adaptive"},
    {"positions": "learned"},
    {"positions": "sinusoidal", "ffn": "none"},
    {"value_residual": True},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_chunked_prefill_of_every_attention(changes):
    built, tokens = model(**changes), torch.randint(23, (2, 11))
    with torch.no_grad():
        whole = built.features(tokens)[:, -1:]
    last = built.prefill(tokens, built.new_cache(2, 11), chunk=4)
    torch.testing.assert_close(last, whole, rtol=0, atol=1e-12)


def test_chunked_prefill_of_padded_prompts():
    built, tokens = model(), torch.randint(23, (2, 11))
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, :4] = False
    with torch.no_grad():
        whole = built.features(tokens, attention_mask=mask)[:, -1:]
    last = built.prefill(tokens, built.new_cache(2, 11), chunk=3, attention_mask=mask)
    torch.testing.assert_close(last, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_generation_is_the_same_with_cache_and_chunks(scheme):
    built, prompt = model(scheme), torch.randint(23, (2, 9))
    plain = built.generate(prompt, max_new_tokens=6, temperature=0, use_cache=False)
    assert torch.equal(plain, built.generate(prompt, max_new_tokens=6, temperature=0))
    assert torch.equal(plain, built.generate(prompt, max_new_tokens=6, temperature=0, prefill_chunk=4))


# -- what the depth history costs --------------------------------------------------------------------------------------
class Reads:
    """Sizes of the sources that a scheme's reads see."""

    def __init__(self, scheme, monkeypatch):
        self.tokens, self.elements = [], []
        read = scheme.read

        def noted(stream, site):
            tensors = [t for part in scheme.to_parts(stream) for t in part]
            self.tokens.append(max(t.shape[1] for t in tensors))
            self.elements.append(sum(t.numel() for t in tensors))
            return read(stream, site)

        monkeypatch.setattr(scheme, "read", noted)


@pytest.mark.parametrize("scheme", ["block_attn_res", "attn_res", "dense_former"])
def test_the_stream_holds_one_chunk_of_the_prompt(scheme, monkeypatch):
    built = model(scheme)
    reads = Reads(built.scheme, monkeypatch)
    built.prefill(torch.randint(23, (1, 60)), built.new_cache(1, 60), chunk=8)
    assert set(reads.tokens) == {8, 4}
    widest = max(reads.elements)
    reads.elements.clear()
    built.prefill(torch.randint(23, (1, 60)), built.new_cache(1, 60))
    assert max(reads.elements) == widest * 60 / 8


class Work(TorchDispatchMode):
    """Operations and the elements that they produce, while it is on."""

    def __init__(self):
        super().__init__()
        self.operations = self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations += 1
        self.elements += sum(t.numel() for t in tensors_of(result) if isinstance(t, torch.Tensor))
        return result


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_read_of_one_token_does_not_grow_with_the_prompt(scheme, monkeypatch):
    """Everything that the scheme computes for one new token, after a short and after a long prompt."""
    built = model(scheme)
    for verb in ("open", "read", "write", "close"):
        counted = _counted(built.scheme, verb)
        monkeypatch.setattr(built.scheme, verb, counted)
    done = []
    for length in (2, 50):
        cache = built.new_cache(1, 64)
        built.prefill(torch.randint(23, (1, length)), cache)
        built.scheme.work = Work()
        built.prefill(torch.randint(23, (1, 1)), cache)
        done.append((built.scheme.work.operations, built.scheme.work.elements))
    assert done[0] == done[1]
    assert done[0][0] > 0


def _counted(scheme, verb):
    plain = getattr(scheme, verb)

    def run(*arguments):
        with getattr(scheme, "work", Work()):
            return plain(*arguments)

    return run


def test_nothing_but_keys_and_values_persists():
    """The cache's tensors are all that a decoding step can see of the prompt."""
    built = model()
    cache = built.new_cache(1, 8)
    held = [value for value in vars(cache).values() if isinstance(value, (list, torch.Tensor))]
    assert [len(tensors) for tensors in held] == [6, 6]
    assert all(t.shape == (1, 4, 8, 8) for tensors in held for t in tensors)


class Live(TorchDispatchMode):
    """Peak bytes of the tensors made while it is on."""

    def __init__(self, older):
        super().__init__()
        self.seen, self.now, self.peak = {t.untyped_storage()._cdata for t in older}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.drop, storage._cdata, storage.nbytes())
        return result

    def drop(self, key, size):
        self.seen.discard(key)
        self.now -= size


def test_chunks_bound_the_memory_of_a_long_prompt():
    """512 tokens in chunks of 32: beside the cache, less than a fifth of the peak of one pass."""
    built, tokens = model("attn_res", max_length=512), torch.randint(23, (1, 512))
    peaks = []
    for chunk in (None, 32):
        cache = built.new_cache(1, 512)
        with Live([*cache.keys, *cache.values, *built.parameters()]) as live:
            built.prefill(tokens, cache, chunk=chunk)
        peaks.append(live.peak)
    assert peaks[1] < peaks[0] / 5


# -- bad input ---------------------------------------------------------------------------------------------------------
def test_bad_chunks_and_caches_are_refused():
    built, tokens = model(), torch.randint(23, (2, 9))
    cases = [
        (lambda: built.prefill(tokens, built.new_cache(2, 9), chunk=0), "at least 1 token, not 0"),
        (lambda: built.prefill(tokens, built.new_cache(2, 8), chunk=4), "9 tokens do not fit into a cache made for 8"),
        (lambda: built.prefill(tokens, built.new_cache(3, 9)), "batch of 3 does not serve a batch of 2"),
        (lambda: built.prefill(tokens[:, :0], built.new_cache(2, 9)), "time >= 1"),
        (lambda: built.generate(tokens, max_new_tokens=1, prefill_chunk=0), "prefill_chunk is 0"),
        (lambda: built.generate(tokens, max_new_tokens=1, prefill_chunk=4, use_cache=False), "needs the cache"),
        (lambda: built(tokens.to("meta")), "the tokens are on meta and the model on cpu"),
        (lambda: model(causal=False).prefill(tokens, built.new_cache(2, 9), chunk=4), "cannot be read in chunks"),
    ]
    for case, message in cases:
        with pytest.raises(InputError, match=message):
            case()


def test_a_prompt_that_does_not_fit_leaves_the_cache_alone():
    built = model()
    cache = built.new_cache(1, 8)
    with pytest.raises(InputError):
        built.prefill(torch.randint(23, (1, 9)), cache, chunk=4)
    assert cache.length == 0
