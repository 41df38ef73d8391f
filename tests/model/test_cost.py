"""The calculator against what it predicts: built models, autograd's saved tensors, torch's FLOP counter, the paper."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import normlab as nl
from normlab.errors import ConfigError
from normlab.model.cost import cached_formula, naive_formula, pipeline_traffic
from normlab.model.memory import measured_bytes
from normlab.schemes import Frame


def model(scheme="pre_norm", **changes):
    options = {"vocab_size": 100, "dim": 48, "depth": 6, "heads": 4} | changes
    return nl.TransformerConfig(scheme=scheme, **options)


PAPER = [  # Attention Residuals, Table 1: L = 128, N = 8, m = 4
    ("pre_norm", {}, 2, 1, 3),
    ("mhc", {}, 21, 13, 34),
    ("attn_res", {}, 22, 2, 24),
    ("block_attn_res", {"blocks": 8}, 3.5, 2, 5.5),
]


@pytest.mark.parametrize(("name", "options", "reads", "writes", "total"), PAPER)
def test_the_papers_table(name, options, reads, writes, total):
    found = nl.cost(model(nl.scheme(name, **options), depth=64, dim=8, heads=2), length=4)
    assert (found.reads, found.writes, found.traffic) == (reads, writes, total)


def test_mhc_also_moves_scalars():
    n = 4
    accesses = nl.scheme("mhc").traffic(model().sites())
    assert sum(access.scalars for access in accesses) == 2 * n * n + 4 * n


@pytest.mark.parametrize("branches", [12, 30, 128])
def test_full_attention_is_the_sum_of_its_two_phases(branches):
    """Counted by hand, branch by branch, for the schedule of 8 blocks."""
    sites = model(depth=branches // 2).sites()
    blocks = nl.scheme("attn_res").traffic(sites)
    sizes = [branches // 8 + (b < branches % 8) for b in range(8)]
    first = [sum(sizes[:b]) for b in range(8)]
    read = sum(2 * start + sum(2 * t for t in range(size)) for start, size in zip(first, sizes, strict=True))
    assert sum(access.read for access in blocks) == pytest.approx(read / branches)
    assert sum(access.write for access in blocks) == 2


@pytest.mark.parametrize("name", sorted(nl.SCHEMES))
def test_memory_and_parameters_of_every_scheme(name):
    config = model(name)
    found, built = nl.cost(config, length=64, batch=2), nl.Transformer(config)
    assert found.parameters.total == sum(p.numel() for p in built.parameters())
    parts = ("embeddings", "branches", "scheme")
    scale = 0 if built.logit_scale is None else built.logit_scale.numel()
    assert found.parameters.total == sum(getattr(found.parameters, part) for part in parts) + scale
    measured = measured_bytes(built, torch.randint(100, (2, 64)))
    assert found.memory.activations == pytest.approx(measured, rel=0.05)
    assert found.traffic >= 3


CHANGES = [
    {"positions": "nope"},
    {"positions": "learned"},
    {"ffn": "gelu"},
    {"ffn": "relu"},
    {"ffn": "none"},
    {"kv_heads": 2},
    {"qk_norm": "head"},
    {"qk_norm": "full", "positions": "nope"},
    {"norm": "layernorm"},
    {"norm": "dyt"},
    {"softmax": "ssmax"},
    {"softmax": "adaptive"},
    {"head_norm": True},
    {"value_residual": True},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.05), ("bfloat16", 0.1)])
def test_memory_of_every_branch(changes, dtype, tolerance):
    config = model("block_attn_res", **changes)
    found = nl.cost(config, length=64, batch=2, dtype=dtype)
    built = nl.Transformer(config).to(getattr(torch, dtype))
    measured = measured_bytes(built, torch.randint(100, (2, 64)))
    assert found.memory.activations == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize("changes", [{}, {"ffn": "gelu"}, {"kv_heads": 2, "tie_embeddings": False}], ids=str)
def test_flops_agree_with_torchs_counter(changes):
    config = model(causal=False, **changes)
    with torch.device("meta"):
        built, tokens = nl.Transformer(config), torch.zeros(2, 64, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        built(tokens)
    found = nl.cost(config, length=64)
    assert (found.flops.forward - found.flops.mixing) * 128 == counter.get_total_flops()


def test_flops_of_mixing_are_those_of_the_products():
    """mHC's mixing written as matrix products, which torch's counter sees: for 16 tokens and one branch."""
    n, d, tokens = 4, 48, 16
    x, y = torch.zeros(tokens, n, d), torch.zeros(tokens, 1, d)
    with FlopCounterMode(display=False) as counter:
        _ = x.flatten(1) @ torch.zeros(n * d, 2 * n + n * n)  # the coefficients
        _ = torch.zeros(tokens, 1, n) @ x  # H_pre X
        _ = torch.zeros(tokens, n, n) @ x  # H_res X
        _ = torch.zeros(tokens, n, 1) @ y  # H_post F
    config = model("mhc", ffn="none", depth=3)
    frame = Frame(d, config.sites())
    assert config.scheme.mixing_flops(frame) / 3 == counter.get_total_flops() / tokens


def test_checkpointing_keeps_the_streams_at_the_layers_ends():
    plain, block = (nl.cost(model(name), length=64).memory for name in ("pre_norm", "block_attn_res"))
    layer = (plain.branches + plain.residual_path) // 6
    assert plain.checkpointed == 64 * 48 * 4 * 7 + layer + plain.head
    assert block.checkpointed < block.activations / 2
    single = nl.cost(model(depth=1), length=64).memory
    assert single.checkpointed == single.activations + 64 * 48 * 4 * 2


def test_a_prompts_stream_is_bounded_by_its_chunk():
    """The paper's example: 8 blocks, 128 K tokens, 15 GB (without the embedding); 16 K chunks divide it by 8."""
    config = model(nl.scheme("block_attn_res", blocks=8), dim=7168, heads=56, depth=16, vocab_size=8)
    whole, chunked, short = (
        nl.cost(config, length=length, dtype="bfloat16", prefill_chunk=chunk).memory
        for length, chunk in ((2**17, None), (2**17, 2**14), (100, 4096))
    )
    assert whole.prefill_sources == 9 * 2**17 * 7168 * 2
    for key in ("prefill_sources", "prefill_stream"):
        all_at_once = getattr(whole, key)
        assert getattr(chunked, key) == pytest.approx(all_at_once / 8)
        assert getattr(short, key) == pytest.approx(all_at_once * 100 / 2**17)
    assert whole.prefill_stream >= whole.prefill_sources  # with what is computed ahead


# -- pipeline ---------------------------------------------------------------------------------------------------------
def test_the_papers_formulas():
    assert naive_formula(4, 2, 1) == 28
    assert cached_formula(4, 2, 1) == 6 + 16
    for stages in (2, 3, 8):
        assert naive_formula(stages, 1, 2) == cached_formula(stages, 1, 2)


@pytest.mark.parametrize(("stages", "virtual", "per_chunk"), [(2, 1, 1), (2, 2, 1), (4, 2, 1), (4, 3, 1), (2, 4, 2)])
def test_counted_traffic_is_the_formula_and_the_embedding(stages, virtual, per_chunk):
    """Where cuts fall on block ends. Ours does not send a rank what it made: P - 1 instead of P chunks' blocks."""
    chunks = stages * virtual
    config = model(nl.scheme("block_attn_res", blocks=chunks * per_chunk), depth=chunks * per_chunk, dim=8, heads=2)
    found = pipeline_traffic(config, stages=stages, virtual_stages=virtual)
    assert found.naive == naive_formula(stages, virtual, per_chunk) + chunks - 1
    own = (virtual - 1) * stages * per_chunk
    assert found.cached == cached_formula(stages, virtual, per_chunk) - own + stages - 1
    assert (found.formula_naive, found.formula_cached) == (
        naive_formula(stages, virtual, per_chunk),
        cached_formula(stages, virtual, per_chunk),
    )
    assert (found.cached < found.naive) == (virtual > 1)


def test_a_single_stream_has_nothing_to_cache():
    found = pipeline_traffic(model(), stages=3, virtual_stages=2)
    assert found.naive == found.cached == 5
    assert found.formula_naive is None


# -- bad input --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"stages": 0}, "stages is 0"),
        ({"stages": 13}, "only 12 branches"),
        ({"stages": 3, "cuts": [4, 4]}, "leave chunk 1 empty"),
        ({"stages": 3, "cuts": [4, 12]}, "a stage would be empty"),
        ({"stages": 3, "cuts": [4]}, "give 2 cuts"),
    ],
)
def test_bad_input_is_one_sentence(options, message):
    with pytest.raises(ConfigError, match=message) as raised:
        nl.cost(model(), **options)
    assert "\n" not in str(raised.value)
