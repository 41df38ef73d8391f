"""Real processes over gloo: a pipelined model computes what the whole model does, and sends what the plan says."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

import normlab as nl
from normlab.errors import ConfigError, NormlabError
from normlab.model.cost import cached_formula, naive_formula
from normlab.model.pipeline import NaivePipeline, Pipeline
from normlab.model.stages import make_plan

SHAPE = (4, 5)
EPSILON = torch.finfo(torch.float64).eps
SHAKE = 2.0**-36  # far above rounding, far below where the loss bends
ROUNDINGS = 16  # of the last bit, in each weight: sums in another order, over micro-batches and ranks
BLOCK = {"name": "block_attn_res", "blocks": 4}

# name -> scheme, model settings, pipeline settings. 6 layers are 12 branches.
TWO = {
    "gpipe": (BLOCK, {}, {"schedule": "gpipe"}),
    "1f1b": (BLOCK, {}, {"schedule": "1f1b"}),
    "inside a layer": (BLOCK, {}, {"cuts": [5]}),
    "virtual": (BLOCK, {}, {"virtual_stages": 2}),
    "virtual, naive": (BLOCK, {}, {"virtual_stages": 2, "cached": False}),
    "virtual, inside blocks": (BLOCK, {}, {"virtual_stages": 2, "cuts": [1, 5, 10]}),
    "breadth first": (BLOCK, {}, {"virtual_stages": 3, "schedule": "looped_bfs", "cuts": [1, 2, 6, 7, 11]}),
    "untied, learned": (BLOCK, {"tie_embeddings": False, "positions": "learned", "ffn": "gelu"}, {"virtual_stages": 2}),
    "input queries": ({"name": "attn_res", "query": "input"}, {}, {"virtual_stages": 2}),
    "window": ({"name": "attn_res", "window": 2}, {}, {"virtual_stages": 2}),
    "pre_norm": ({"name": "pre_norm"}, {}, {"virtual_stages": 2, "cuts": [1, 4, 9]}),
    "mhc": ({"name": "mhc"}, {}, {"virtual_stages": 2}),
    "resi_dual": ({"name": "resi_dual"}, {}, {"cuts": [3]}),
    "dense_former": ({"name": "dense_former"}, {}, {"virtual_stages": 3, "cuts": [2, 3, 6, 7, 9]}),
    "ngpt": ({"name": "ngpt"}, {}, {}),
}
FOUR = {
    "four": (BLOCK, {}, {}),
    "four, virtual": (BLOCK, {}, {"virtual_stages": 2, "cuts": [1, 3, 4, 6, 7, 9, 11]}),
    "four, aligned": ({"name": "block_attn_res", "block_size": 1}, {"depth": 4}, {"virtual_stages": 2}),
    "four, aligned, naive": (
        {"name": "block_attn_res", "block_size": 1},
        {"depth": 4},
        {"virtual_stages": 2, "cached": False},
    ),
    "four, pre_norm": ({"name": "pre_norm"}, {}, {"schedule": "gpipe"}),
}


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_model(scheme, settings):
    options = {
        "vocab_size": 17,
        "dim": 16,
        "depth": 6,
        "heads": 2,
        "max_length": 8,
        "start": "authors",
        "init_std": 0.2,
    } | settings
    torch.manual_seed(0)
    model = nl.Transformer(nl.TransformerConfig(scheme=nl.scheme(**scheme), **options)).double()
    with torch.no_grad():
        for parameter in model.scheme.parameters():  # away from the neutral start, where queries are zero
            # A matrix of queries counts its inputs: without that the softmax over depth is a switch, and one step of
            # training turns a difference of the last bit into one a billion times as large.
            fan = parameter.shape[-1] if parameter.dim() > 1 and min(parameter.shape[-2:]) > 1 else 1
            parameter.add_(0.3 / fan**0.5 * torch.randn_like(parameter))
    tokens, targets = torch.randint(17, (2, *SHAPE))
    return model, tokens, targets


def gap(found, expected):
    """Largest difference over the tensors of `found`, each relative to its own size."""
    pairs = [(tensor, expected[name]) for name, tensor in found.items()]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) for a, b in pairs)


def gradients(model):
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def values(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def train(model, step, logits):
    """Two steps of training: what was seen on the way, each a dict of tensors."""
    optimizer = torch.optim.SGD(list(model.parameters()), lr=0.002, momentum=0.9)
    seen = {}
    for number in range(2):
        loss = step()
        seen[f"loss {number}"] = {} if loss is None else {"loss": loss.detach()}
        seen[f"gradients {number}"] = gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    seen["parameters"] = values(model)
    seen["logits"] = {} if (found := logits()) is None else {"logits": found.detach()}
    return seen


def train_whole(model, tokens, targets):
    def step():
        loss = loss_of(model(tokens), targets)
        loss.backward()
        return loss

    return train(model, step, lambda: model.eval()(tokens))


@torch.no_grad()
def shaken(model):
    """The same model with every parameter off by about SHAKE of itself."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.mul_(1 + SHAKE * torch.randn_like(parameter))
    return twin


def compare(scheme, settings, options):
    """Two steps of training, whole and in stages: what differs on this rank, and what rounding may make of it.

    Training amplifies: a whole model whose weights are shaken by SHAKE tells by how much, for each quantity.
    """
    model, tokens, targets = make_model(scheme, settings)
    twins = [shaken(model) for _ in range(3)]
    expected = train_whole(copy.deepcopy(model), tokens, targets)
    others = [train_whole(twin, tokens, targets) for twin in twins]
    kind = Pipeline if options.get("cached", True) else NaivePipeline
    given = {key: value for key, value in options.items() if key != "cached"}
    pipe = kind(model, shape=SHAPE, microbatches=dist.get_world_size(), loss=loss_of, **given)
    for index, branch in enumerate(model.branches):  # what others run need not be here
        if not pipe._is_local(f"branches.{index}."):
            branch.to("meta")
    traffic = []

    def step():
        loss = pipe.step(tokens, targets)
        traffic.append(pipe.traffic())
        return loss

    def logits():
        model.eval()
        return pipe.logits(tokens)

    seen = train(pipe, step, logits)
    seen = {key: tensors for key, tensors in seen.items() if tensors}  # the loss is the last rank's
    return {
        "rank": pipe.rank,
        "gaps": {key: gap(tensors, expected[key]) for key, tensors in seen.items()},
        "amplified": {key: max(gap(twin[key], expected[key]) for twin in others) / SHAKE for key in seen},
        "size": min(float(tensor.abs().max()) for tensor in seen["gradients 1"].values()),
        "traffic": traffic[0],
        "shelves": len(pipe.stages[0].submod.depot.shelves),
    }


def with_extras():
    """A padding mask, activation checkpointing, and gradients that add up over two steps."""
    model, tokens, targets = make_model(BLOCK, {})
    whole = copy.deepcopy(model)
    model.enable_checkpointing()
    mask = torch.ones(SHAPE, dtype=torch.bool)
    mask[:, -1] = False
    pipe = Pipeline(model, shape=SHAPE, microbatches=2, loss=loss_of, virtual_stages=2)
    for _ in range(2):
        pipe.step(tokens, targets, attention_mask=mask)
        loss_of(whole(tokens, attention_mask=mask), targets).backward()
    return gap(gradients(pipe), gradients(whole))


def side_by_side():
    """Two pipelines of two ranks in a world of four, with tied embeddings (data parallel): each equals its own model."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    which = dist.get_rank() // 2
    model, tokens, targets = make_model(BLOCK, {"tie_embeddings": True})
    tokens = tokens.roll(which, dims=1)
    whole = copy.deepcopy(model)
    pipe = Pipeline(model, shape=SHAPE, microbatches=2, loss=loss_of, group=groups[which])
    pipe.step(tokens, targets)
    loss_of(whole(tokens), targets).backward()
    return gap(gradients(pipe), gradients(whole))


def refusals():
    """Every rank refuses, before anything is sent."""
    model, tokens, _ = make_model(BLOCK, {})
    shared, _, _ = make_model(BLOCK, {"value_residual": True})
    mixed, _, _ = make_model(BLOCK, {})
    for branch in mixed.branches[::2]:
        branch.to("meta")
    usual = {"shape": SHAPE, "microbatches": 2, "loss": loss_of}
    cases = {
        "empty stage": lambda: Pipeline(model, **usual, cuts=[12]),
        "empty chunk": lambda: Pipeline(model, **usual, virtual_stages=2, cuts=[4, 4, 8]),
        "too many chunks": lambda: Pipeline(model, **usual, virtual_stages=7),
        "mixed devices": lambda: Pipeline(mixed, **usual),
        "zero-bubble": lambda: Pipeline(model, **usual, schedule="zbv"),
        "1f1b, virtual": lambda: Pipeline(model, **usual, virtual_stages=2, schedule="1f1b"),
        "micro-batches": lambda: Pipeline(model, **(usual | {"microbatches": 3})),
        "no micro-batch": lambda: Pipeline(model, **(usual | {"microbatches": 0})),
        "value residual": lambda: Pipeline(shared, **usual),
        "batch": lambda: Pipeline(model, **usual).step(tokens[:, :3], tokens[:, :3]),
    }
    return {name: refusal(case) for name, case in cases.items()}


def refusal(case):
    try:
        case()
    except NormlabError as error:
        return str(error)
    return "not refused"


def work(rank, world, folder, cases):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        found = {name: compare(*case) for name, case in cases.items()}
        if world == 2:
            found |= {"extras": with_extras(), "refusals": refusals()}
        else:
            found["side by side"] = side_by_side()
        Path(folder, f"{rank}.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def launch(world, folder, cases):
    multiprocessing.spawn(work, args=(world, str(folder), cases), nprocs=world)
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch(2, tmp_path_factory.mktemp("two"), TWO)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return launch(4, tmp_path_factory.mktemp("four"), FOUR)


def check(results, name, scheme, settings, options):
    found = [rank[name] for rank in results]
    for rank in found:
        assert rank["gaps"].keys() >= {"gradients 0", "gradients 1", "parameters"}
        for key, difference in rank["gaps"].items():
            amplified = rank["amplified"][key]
            assert difference < ROUNDINGS * EPSILON * max(1.0, amplified), (rank["rank"], key, amplified)
            assert amplified < 1e6  # else the bound says nothing
        assert rank["size"] > 1e-6  # something is compared
        assert rank["shelves"] == 0  # the cache is empty between steps
    assert found[-1]["gaps"].keys() >= {"loss 0", "loss 1", "logits"}
    model, _, _ = make_model(scheme, settings)
    microbatches = len(results)
    small = (SHAPE[0] // microbatches, SHAPE[1])
    plan_options = {key: value for key, value in options.items() if key != "schedule"}
    hops = make_plan(model.config, ranks=len(results), shape=small, **plan_options).hops()
    predicted = 8 * microbatches * sum(hops)
    assert sum(rank["traffic"]["forward"] for rank in found) == predicted
    assert sum(rank["traffic"]["backward"] for rank in found) == predicted


@pytest.mark.parametrize("name", TWO)
def test_two_processes(two, name):
    check(two, name, *TWO[name])


@pytest.mark.parametrize("name", FOUR)
def test_four_processes(four, name):
    check(four, name, *FOUR[name])


def test_masks_checkpointing_and_accumulation(two):
    assert all(rank["extras"] < 1e-10 for rank in two)


def test_two_pipelines_side_by_side(four):
    assert all(rank["side by side"] < 1e-10 for rank in four)


def test_measured_bytes_are_the_formulas(four):
    """P = 4, V = 2, one block a chunk: the paper's counts, plus the embedding, less what a rank made itself."""
    unit = 8 * 16 * SHAPE[0] * SHAPE[1]  # d float64 for every token
    naive, cached = (
        sum(rank[name]["traffic"]["forward"] for rank in four) / unit
        for name in ("four, aligned, naive", "four, aligned")
    )
    assert naive == naive_formula(4, 2, 1) + 7 == 35
    assert cached == cached_formula(4, 2, 1) - 4 + 3 == 21


def test_caching_needs_a_second_visit(two):
    sent = {name: sum(rank[name]["traffic"]["forward"] for rank in two) for name in ("virtual", "virtual, naive")}
    assert sent["virtual"] < sent["virtual, naive"]
    config = make_model(BLOCK, {})[0].config
    for ranks in (2, 3, 4):  # one chunk a rank
        plans = [make_plan(config, ranks=ranks, cached=cached) for cached in (False, True)]
        assert plans[0].hops() == plans[1].hops()


def test_bad_input_is_refused_on_every_rank(two):
    expected = {
        "empty stage": "a stage would be empty",
        "empty chunk": "leave chunk 1 empty",
        "too many chunks": "only 12 branches",
        "mixed devices": "lie on cpu and meta",
        "zero-bubble": "unknown schedule 'zbv'",
        "1f1b, virtual": "virtual stages need interleaved_1f1b",
        "micro-batches": "3 micro-batches do not divide a batch of 4",
        "no micro-batch": "0 micro-batches",
        "value residual": "value_residual",
        "batch": "made for a batch of [4, 5]",
    }
    for rank in two:
        assert rank["refusals"].keys() == expected.keys()
        for name, text in expected.items():
            assert text in rank["refusals"][name]
            assert "\n" not in rank["refusals"][name]


def test_a_pipeline_needs_processes():
    model, _, _ = make_model(BLOCK, {})
    with pytest.raises(ConfigError, match="torchrun"):
        Pipeline(model, shape=SHAPE, microbatches=2, loss=loss_of)


@pytest.mark.slow
def test_the_example_under_torchrun():
    example = Path(__file__).parents[2] / "examples" / "pipeline.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    done = subprocess.run([*command, "--layers", "4", "--blocks", "4"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "gradients equal the whole model's" in done.stdout
