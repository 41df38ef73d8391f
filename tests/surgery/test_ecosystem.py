"""What people do with a Hugging Face model, done with a swapped one: compile, DDP, FSDP2, LoRA, offloading, the Trainer."""

import copy
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.surgery.models import answer, asked, compare, gradients, inputs, preserved_schemes, swapped

transformers = pytest.importorskip("transformers")
importlib.import_module("normlab.hf")  # registers the types

NAMES = ("llama", "gemma2")
SCHEMES = ("block_attn_res", "hyper_connections")


@pytest.fixture(autouse=True)
def _quiet():
    from normlab.probes.inputs.hub import quiet

    with quiet():
        yield


def compiled(model, backend):
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend=backend)


def check_compiled(name, scheme, backend):
    """In float64 the same; in float32 the compiler takes sums in another order than our kernels, so by 2e-6 of the
    largest logit (it was 2e-6, and logits of 4 and 6 differed by 2.4e-6, the compiled ones nearer to float64)."""
    model, batch = swapped(name, scheme), inputs(name)
    wanted, before = gradients(model, batch), asked(model, batch)
    difference = (asked(compiled(copy.deepcopy(model), backend), batch) - before).abs().max()
    assert float(difference) <= 2e-6 * float(before.abs().max())
    twice = copy.deepcopy(model).double()
    difference = (asked(compiled(copy.deepcopy(twice), backend), batch) - asked(twice, batch)).abs().max()
    assert float(difference) <= 1e-12
    whole = copy.deepcopy(model)
    whole.zero_grad()
    answer(compiled(whole, backend), batch).square().mean().backward()
    assert compare({key: p.grad for key, p in whole.named_parameters()}, wanted) <= 1e-6
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_compile_fullgraph(name):
    check_compiled(name, "block_attn_res", "eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("scheme", [*SCHEMES, "attn_res", "layer_scale", "lambda_skip", "dense_former"])
@pytest.mark.parametrize("name", NAMES)
def test_compile_fullgraph_with_other_schemes(name, scheme, backend):
    check_compiled(name, scheme, backend)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_lora_trains_and_merges(name, scheme):
    """Adapters on every linear layer, and the scheme itself trained in full: PEFT's copy of it is the one that is used."""
    peft = pytest.importorskip("peft")
    model, batch = swapped(name, scheme), inputs(name)
    before = asked(model, batch)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=["scheme"]))
    assert torch.equal(asked(adapted, batch), before)
    trained = {key: p for key, p in adapted.named_parameters() if p.requires_grad}
    assert any("scheme.modules_to_save" in key for key in trained)
    old = {key: p.detach().clone() for key, p in trained.items()}
    optimizer = torch.optim.SGD(trained.values(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        answer(adapted, batch).square().mean().backward()
        assert all(p.grad is not None for p in trained.values())
        optimizer.step()
    moved = {key for key, p in trained.items() if not torch.equal(p, old[key])}
    assert moved == set(trained)
    wanted = asked(adapted, batch)
    merged = adapted.merge_and_unload()
    assert float((asked(merged, batch) - wanted).abs().max()) <= 1e-5
    assert type(merged).__name__.startswith("Normlab")


@pytest.mark.filterwarnings("ignore")
def test_norms_that_peft_trains_in_full_are_the_ones_that_are_used():
    peft = pytest.importorskip("peft")
    model, batch = swapped("llama", "block_attn_res"), inputs("llama")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["input_layernorm"])
    adapted = peft.get_peft_model(model, config)
    answer(adapted, batch).square().mean().backward()
    trained = {key: p for key, p in adapted.named_parameters() if p.requires_grad}
    assert all(p.grad is not None for p in trained.values())


@pytest.mark.parametrize("scheme", [*SCHEMES, "dense_former"])
@pytest.mark.parametrize("name", NAMES)
def test_offloading_to_the_cpu(name, scheme):
    accelerate = pytest.importorskip("accelerate")
    model, batch = swapped(name, scheme), inputs(name)
    before = asked(model, batch)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.scheme._parameters == {} or all(p.device.type == "meta" for p in model.scheme.parameters())
    assert torch.equal(asked(model, batch), before)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", preserved_schemes())
def test_offloading_with_every_scheme(scheme, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model, batch = swapped("llama", scheme), inputs("llama")
    before = asked(model, batch)
    model.save_pretrained(tmp_path / "saved")
    accelerate.disk_offload(model, tmp_path / "disk", execution_device=torch.device("cpu"))
    assert torch.equal(asked(model, batch), before)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", device_map="auto")
    assert torch.equal(asked(again, batch), before)


def test_a_device_map_with_disk(tmp_path):
    pytest.importorskip("accelerate")
    model, batch = swapped("llama", "block_attn_res"), inputs("llama")
    model.save_pretrained(tmp_path / "saved")
    places = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu",
              "model.scheme": "disk", "lm_head": "cpu"}  # fmt: skip
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved", device_map=places, offload_folder=tmp_path / "disk"
    )
    assert torch.equal(asked(again, batch), asked(model, batch))


# -- two processes --------------------------------------------------------------------------------------------------------
WORKER = """
import copy, os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from tests.surgery.models import answer, gradients, inputs, swapped
dist.init_process_group("gloo")
rank = dist.get_rank()
for name in ("llama", "gemma2"):
    for scheme in ("block_attn_res", "hyper_connections"):
        model = swapped(name, scheme).train()
        batches = [inputs(name, seed=seed) for seed in range(2)]
        whole = {"input_ids": torch.cat([b["input_ids"] for b in batches])}
        wanted = gradients(copy.deepcopy(model), whole)
        for kind in ("ddp", "fsdp"):
            for checkpoint in (None, False, True) if kind == "ddp" else (None, False):
                m = copy.deepcopy(model)
                if checkpoint is not None:
                    m.gradient_checkpointing_enable({"use_reentrant": checkpoint})
                    m.enable_input_require_grads()
                if kind == "ddp":
                    run = DistributedDataParallel(m, static_graph=bool(checkpoint))
                else:
                    for layer in m.model.layers:
                        fully_shard(layer)
                    run = fully_shard(m)
                answer(run, batches[rank]).square().mean().backward()
                gap = 0.0
                for key, p in m.named_parameters():
                    assert p.grad is not None, (name, scheme, kind, checkpoint, key)
                    grad = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
                    gap = max(gap, float((grad - wanted[key]).abs().max()))
                assert gap <= 1e-6, (name, scheme, kind, checkpoint, gap)
                if rank == 0:
                    print(name, scheme, kind, checkpoint, gap, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ddp_and_fsdp2_on_two_processes(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    paths = [str(Path(__file__).parents[2]), *(p for p in sys.path if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("fsdp") == 8
    assert done.stdout.count("ddp") == 12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_trainer_resumes_exactly(name, tmp_path):
    """Six steps with checkpointing, and four with a stop after them and two more: the same weights."""
    data = [{"input_ids": row, "labels": row} for row in inputs(name, batch=24)["input_ids"]]

    def train(folder, steps, resume=None):
        arguments = transformers.TrainingArguments(
            str(folder), max_steps=steps, per_device_train_batch_size=2, save_steps=4, logging_steps=1, report_to=[],
            gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}, use_cpu=True, seed=1,
            learning_rate=1e-3, lr_scheduler_type="constant", disable_tqdm=True,
        )  # fmt: skip
        model = swapped(name, "block_attn_res")
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model.state_dict()

    whole = train(tmp_path / "whole", 6)
    train(tmp_path / "parts", 4)
    resumed = train(tmp_path / "parts", 6, str(tmp_path / "parts" / "checkpoint-4"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())
    start = swapped(name, "block_attn_res").state_dict()
    assert not torch.equal(start["model.scheme.queries"], whole["model.scheme.queries"])
