"""The monitor in a plain loop: right values, before clipping, under accumulation, compile, checkpointing and DDP."""

import copy
import json

import pytest
import torch
import transformers

import normlab as nl
from normlab.errors import ConfigError
from normlab.integrations import trackers
from normlab.probes.monitor import Monitor
from tests.probes.zoo import ARCHITECTURES, Homemade, build, inputs


def small_llama():
    torch.manual_seed(0)
    shape = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**shape, intermediate_size=48, max_position_embeddings=64, initializer_range=0.1)
    return transformers.LlamaForCausalLM(config).train()


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def batches(count, batch=2):
    return [inputs("llama", batch=batch, seed=i)["input_ids"] for i in range(count)]


def train(model, data, monitor, *, micro=1, clip=1e-3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for i in range(0, len(data), micro):
        for ids in data[i : i + micro]:
            monitor.before_step()
            (loss_of(model, ids) / micro).backward()
        monitor.gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(monitor.step())
    return seen


def reference(model, data):
    """The same numbers by hand: hidden states of the library, gradients of the mean loss."""
    model = copy.deepcopy(model)
    model.zero_grad()
    norms = []
    for ids in data:
        output = model.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        norms.append([h.detach().norm(dim=-1).mean() for h in output.hidden_states[1:-1]])  # the last one is normed
        (loss_of(model, ids) / len(data)).backward()
    layer = model.model.layers[1]
    gradient = torch.sqrt(sum(p.grad.square().sum() for p in layer.parameters()))
    total = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    return torch.tensor(norms).mean(0), float(gradient), float(total)


@pytest.mark.parametrize("micro", [1, 3])
def test_values_are_those_before_clipping_and_over_all_micro_batches(micro):
    model, data = small_llama(), batches(6)
    norms, gradient, total = reference(model, data[:micro])
    seen = train(model, data, Monitor(model, every=2), micro=micro)
    first = seen[0]
    assert [first[f"stream/layer_{i}/norm"] for i in range(2)] == pytest.approx(norms.tolist(), rel=1e-5)
    assert first["gradient/layer_1/norm"] == pytest.approx(gradient, rel=1e-4)
    assert first["gradient/total/norm"] == pytest.approx(total, rel=1e-4)
    assert first["gradient/total/norm"] > 0.1  # clipping to 0.001 came later
    assert [bool(values) for values in seen] == [step % 2 == 0 for step in range(len(seen))]


def test_keys_have_one_shape_and_a_stable_mean():
    model = small_llama()
    values = train(model, batches(1), Monitor(model, every=1))[0]
    layers = {f"layer_{i}" for i in range(3)} | {"mean", "total"}
    assert all(len(key.split("/")) == 3 and key.split("/")[1] in layers for key in values)
    ratios = [values[f"ffn/layer_{i}/ratio"] for i in range(3)]
    assert values["ffn/mean/ratio"] == pytest.approx(sum(ratios) / 3)


def test_per_parameter_keys_are_off_unless_asked():
    model = small_llama()
    plain = train(model, batches(1), Monitor(model, every=1))[0]
    more = train(model, batches(1), Monitor(model, every=1, parameters=True))[0]
    assert not any(key.startswith("parameter/") for key in plain)
    assert sum(key.startswith("parameter/") for key in more) == len(list(model.named_parameters()))


def test_no_hooks_between_measured_steps_and_after_close():
    model = small_llama()
    monitor = Monitor(model, every=3)
    train(model, batches(2), monitor)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    monitor.before_step()
    assert "0 of" not in monitor.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_checkpointing_does_not_count_layers_twice():
    model, data = small_llama(), batches(1)
    twin = copy.deepcopy(model)
    plain = train(twin, data, Monitor(twin, every=1))[0]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    values = train(model, data, Monitor(model, every=1))[0]
    assert values.keys() == plain.keys()
    assert values == pytest.approx(plain, rel=1e-5)


def test_compiled_models_are_measured_and_stay_compiled():
    model, data = small_llama(), batches(3)
    twin = copy.deepcopy(model)
    expected = train(twin, data, Monitor(twin, every=2))
    compiled = torch.compile(model, backend="eager")
    values = train(compiled, data, Monitor(compiled, every=2))
    assert values[0] == pytest.approx(expected[0], rel=1e-4)
    assert values[2] == pytest.approx(expected[2], rel=1e-3)
    assert values[1] == {}


def test_normlabs_own_model():
    config = nl.TransformerConfig(vocab_size=61, dim=32, depth=3, heads=4, scheme="peri_norm", max_length=64)
    model = nl.Transformer(config).train()
    monitor = nl.Monitor(model, every=1)
    ids = torch.randint(0, 61, (2, 12))
    monitor.before_step()
    model(ids).float().logsumexp(-1).mean().backward()
    monitor.gradients()
    values = monitor.step()
    assert {f"attention/layer_{i}/ratio" for i in range(3)} <= set(values)
    assert values["gradient/layer_2/norm"] > 0


def step_of(monitor, tokens):
    monitor.before_step()
    monitor.model(tokens).sum().backward()
    monitor.gradients()
    return monitor.step()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_watched_without_an_example(name):
    model, batch = build(name).train(), inputs(name)
    monitor = Monitor(model, every=1)
    monitor.before_step()
    next(each for each in model(**batch).values() if each.requires_grad).square().mean().backward()
    monitor.gradients()
    values = monitor.step()
    for layer in range(3):
        assert values[f"stream/layer_{layer}/norm"] > 0
        assert values[f"attention/layer_{layer}/ratio"] > 0
        assert values[f"ffn/layer_{layer}/ratio"] > 0
    assert values["gradient/total/norm"] > 0


def test_an_unknown_model_is_read_from_its_first_batch_or_from_an_example():
    tokens = torch.randint(0, 97, (2, 12))
    torch.manual_seed(0)
    first = Monitor(Homemade("pre").train(), every=1)
    with pytest.raises(ConfigError, match="first batch"):
        _ = first.layout
    torch.manual_seed(0)
    second = Monitor(Homemade("pre").train(), every=1, example=tokens)
    state = torch.get_rng_state()
    values = step_of(first, tokens)
    assert torch.equal(torch.get_rng_state(), state)  # reading the layers takes no random number of the run
    assert "attention/layer_2/ratio" in values
    assert values == step_of(second, tokens)
    assert set(step_of(first, tokens)) == set(values)
    assert all(module.training for module in first.model.modules())
    first.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in first.model.modules())


def test_a_model_inside_of_another_is_read_where_it_is_called():
    """As a LightningModule does it: the outer module itself is never called."""

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Homemade("pre")

        def training_step(self, tokens):
            return self.net(tokens).sum()

    outer, tokens = Outer().train(), torch.randint(0, 97, (2, 12))
    monitor = Monitor(outer, every=1)
    for _ in range(2):
        monitor.before_step()
        outer.training_step(tokens).backward()
        monitor.gradients()
        values = monitor.step()
        assert values["gradient/layer_2/norm"] > 0
        assert "ffn/layer_2/ratio" in values


def test_both_halves_of_an_encoder_decoder():
    torch.manual_seed(0)
    shape = {"vocab_size": 97, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, decoder_start_token_id=0)).train()
    monitor, ids = Monitor(model, every=1), torch.randint(5, 97, (2, 12))
    monitor.before_step()
    model(input_ids=ids, labels=ids[:, :7].contiguous()).loss.backward()
    monitor.gradients()
    values = monitor.step()
    for half in ("encoder", "decoder"):
        assert values[f"stream/{half}_layer_1/norm"] > 0
        assert values[f"gradient/{half}_layer_1/norm"] > 0
        assert f"stream/{half}_mean/norm" in values
    assert values["cross_attention/decoder_layer_0/ratio"] > 0


def test_every_must_be_positive():
    with pytest.raises(ConfigError, match="at least 1"):
        Monitor(build("llama"), every=0)


def test_sinks(tmp_path):
    model = small_llama()
    train(model, batches(3), Monitor(model, every=2, sink=trackers.jsonl(tmp_path / "run" / "log.jsonl")))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2]
    assert lines[0]["gradient/total/norm"] > 0


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    sink = trackers.tensorboard(tmp_path)
    sink(3, {"stream/mean/norm": 1.5})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("stream/mean/norm")] == [(3, 1.5)]


def _ddp_worker(rank, world, folder):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(small_llama())
    data = batches(2)[rank : rank + 1]  # each rank its own batch
    values = train(model, data, Monitor(model, every=1))[0]
    (folder / f"{rank}.json").write_text(json.dumps(values))
    dist.destroy_process_group()


@pytest.mark.slow
def test_ddp_reports_the_reduced_gradient_on_every_rank(tmp_path):
    torch.multiprocessing.spawn(_ddp_worker, (2, tmp_path), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    _, gradient, total = reference(small_llama(), batches(2))
    for values in (first, second):
        assert values["gradient/layer_1/norm"] == pytest.approx(gradient, rel=1e-4)
        assert values["gradient/total/norm"] == pytest.approx(total, rel=1e-4)


def test_overhead_is_how_much_longer_a_measured_step_takes(monkeypatch):
    """Hooks and all: the time of whole steps, not of the lines inside the monitor. The first step is left out."""
    from normlab.probes import monitor as module

    clock = iter(range(10**6))
    model = small_llama()
    watch = Monitor(model, every=2)
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    train(model, batches(6), watch)
    ticks = {kind: list(times) for kind, times in watch._steps.items()}
    assert (len(ticks[True]), len(ticks[False])) == (2, 3)  # steps 2 and 4, steps 1, 3 and 5
    assert watch.overhead == (ticks[True][0] - ticks[False][0]) * 3
    assert watch.overhead > 0
