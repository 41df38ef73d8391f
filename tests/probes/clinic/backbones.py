"""Six small language models that really learnt something: the bodies in which faults are planted, and their healthy twins.

Each is a Hugging Face model with another placement of norms, trained on the bytes of the plays that ship with normlab,
and kept at several ages. A run takes about a minute of one core; weights are cached outside the repository, under a digest
of the settings and of this code. `python -m tests.probes.clinic train` makes them all.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normlab.files import write_json
from normlab.tasks.text import Text

KINDS = ("pre", "post", "peri", "res", "moe", "encoder")
AGES = (0, 30, 100, 300, 600)
MASK, PAD, VOCABULARY = 256, 257, 260  # bytes, then the ids that no text contains
WINDOW = 128


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int


SIZES = {"small": Size(layers=6, width=64, heads=4), "large": Size(layers=8, width=96, heads=6)}


@dataclass(frozen=True)
class Run:
    """One training run; its checkpoints are backbones."""

    kind: str
    size: str = "small"
    seed: int = 0
    steps: int = AGES[-1]
    rows: int = 8
    rate: float = 3e-3
    warmup: int = 40
    short: int = 0  # for so many steps the windows are cut into pieces of 16 bytes: neighbours are found sooner

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}-seed{self.seed}"


@dataclass(frozen=True)
class Backbone:
    """A run at one age (in steps)."""

    run: Run
    age: int = AGES[-1]

    @property
    def kind(self) -> str:
        return self.run.kind

    @property
    def name(self) -> str:
        return f"{self.run.name}@{self.age}"


def run_of(kind: str, *, size: str = "small", seed: int = 0) -> Run:
    # Post-norm stacks need a lower rate; a masked model sees one target in seven, so it gets more text per step.
    rate = {"post": 1.5e-3, "encoder": 2e-3}.get(kind, 3e-3) / (1.0 if size == "small" else 1.5)
    rows, short = (16, 150) if kind == "encoder" else (8, 0)
    return Run(kind, size, seed, rate=rate, rows=rows, short=short)


RUNS = tuple(
    run_of(kind, size=size, seed=seed) for size, seed in (("small", 0), ("small", 1), ("large", 0)) for kind in KINDS
)


def build(run: Run) -> nn.Module:
    """The model at step 0, the same for the same seed."""
    torch.manual_seed(run.seed)
    return _BUILDERS[run.kind](SIZES[run.size])


def _common(size: Size) -> dict[str, int | float]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": WINDOW,
        "initializer_range": 0.04,
        "pad_token_id": PAD,
    }


def _grouped(size: Size) -> dict[str, int | float]:
    """Two queries share a key, as in most decoders of today."""
    inner = {"intermediate_size": size.width * 5 // 2, "num_key_value_heads": size.heads // 2}
    return {**_common(size), **inner, "bos_token_id": PAD + 1, "eos_token_id": PAD + 2}


def _pre(size: Size) -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_grouped(size)))


def _post(size: Size) -> nn.Module:
    """The layout of OPT-350M, whose norms stand behind the addition; no final norm."""
    options = {**_common(size), "ffn_dim": 4 * size.width, "word_embed_proj_dim": size.width, "dropout": 0.0}
    del options["initializer_range"]
    ids = {"bos_token_id": PAD + 1, "eos_token_id": PAD + 2}
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(**options, **ids, do_layer_norm_before=False, init_std=0.04)
    )


def _peri(size: Size) -> nn.Module:
    head = size.width // size.heads
    config = transformers.Gemma3TextConfig(
        **_grouped(size), head_dim=head, query_pre_attn_scalar=head, sliding_window=WINDOW // 2
    )
    return transformers.Gemma3ForCausalLM(config)


def _res(size: Size) -> nn.Module:
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**_grouped(size)))


def _moe(size: Size) -> nn.Module:
    options = {**_grouped(size), "intermediate_size": size.width * 3 // 2}
    config = transformers.MixtralConfig(**options, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config)


def _encoder(size: Size) -> nn.Module:
    """BERT's layers with rotary positions: with learned ones a few hundred steps do not leave single-byte frequencies."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    options = {**_common(size), **none, "intermediate_size": 4 * size.width, "initializer_range": 0.1}
    return transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**options, embedding_size=size.width))


_BUILDERS: dict[str, Callable[[Size], nn.Module]] = {
    "pre": _pre,
    "post": _post,
    "peri": _peri,
    "res": _res,
    "moe": _moe,
    "encoder": _encoder,
}


def masked(tokens: Tensor, generator: torch.Generator, *, share: float = 0.15) -> tuple[Tensor, Tensor]:
    """(tokens with some hidden behind MASK, where they are)."""
    hidden = torch.rand(tokens.shape, generator=generator) < share
    return tokens.masked_fill(hidden, MASK), hidden


def loss_of(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """The next byte, or the masked ones, of windows [rows, WINDOW + 1]; in nats."""
    if kind == "encoder":
        inputs, hidden = masked(tokens[:, :-1], generator)
        return cross_entropy(model(inputs).logits[hidden].float(), tokens[:, :-1][hidden])
    if kind == "moe" and model.training:
        found = model(tokens[:, :-1], output_router_logits=True)
        return cross_entropy(found.logits.flatten(0, 1), tokens[:, 1:].flatten()) + 0.02 * found.aux_loss
    return cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def windows(rows: int, seed: int, *, held_out: bool = False) -> Tensor:
    """Windows [rows, WINDOW + 1] of the plays."""
    text = Text().held_out() if held_out else Text()
    batch = text.sample(rows, WINDOW, torch.Generator().manual_seed(seed))
    return torch.cat([batch.tokens, batch.targets[:, -1:]], 1)


@torch.no_grad()
def held_out_loss(model: nn.Module, kind: str, *, rows: int = 32) -> float:
    """The same text and the same masks for every model."""
    was = model.training
    model.eval()
    loss = float(loss_of(model, windows(rows, 1, held_out=True), kind, torch.Generator().manual_seed(1)))
    model.train(was)
    return loss


def single_byte_loss() -> float:
    """What a model scores that knows how frequent each byte is and nothing else."""
    counts = torch.bincount(Text().stream, minlength=256).double() + 1
    return float(-(counts / counts.sum()).log()[Text().held_out().stream].mean())


def rate_at(run: Run, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth."""
    if step < run.warmup:
        return run.rate * (step + 1) / run.warmup
    done = (step - run.warmup) / max(run.steps - run.warmup, 1)
    return run.rate * (0.55 + 0.45 * math.cos(math.pi * min(done, 1.0)))


def optimizer_of(model: nn.Module, rate: float, *, decay: float = 0.1) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]
    vectors = [p for p in model.parameters() if p.dim() <= 1 and p.requires_grad]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def train(run: Run, keep: Callable[[int, nn.Module], None], *, ages: tuple[int, ...] = AGES) -> None:
    """Train a run, and hand each age to `keep`."""
    model = build(run).train()
    optimizer = optimizer_of(model, run.rate)
    generator = torch.Generator().manual_seed(run.seed)
    for step in range(run.steps + 1):
        if step in ages:
            keep(step, model)
        if step == run.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate_at(run, step)
        text = windows(run.rows, 1000 * (run.seed + 1) + step)
        if step < run.short:  # the last column is only a target, and a masked model has none
            pieces = text[:, :-1].reshape(-1, 16)
            text = torch.cat([pieces, pieces[:, :1]], 1)
        loss = loss_of(model, text, run.kind, generator)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def cache() -> Path:
    """NORMLAB_CACHE, or the user's cache folder."""
    given = os.environ.get("NORMLAB_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normlab"
    return (Path(given) if given else base) / "clinic"


def digest(run: Run) -> str:
    """Of the settings and of the code that makes the weights."""
    code = [build, _common, _grouped, _BUILDERS[run.kind], loss_of, masked, windows, rate_at, optimizer_of, train]
    parts = [json.dumps(asdict(run)), str(SIZES[run.size]), torch.__version__, transformers.__version__]
    return hashlib.sha256("".join([*parts, *map(inspect.getsource, code)]).encode()).hexdigest()[:12]


def folder(run: Run) -> Path:
    return cache() / "backbones" / f"{run.name}-{digest(run)}"


def ready(run: Run) -> bool:
    return (folder(run) / "losses.json").exists()


def ensure(run: Run) -> dict[int, float]:
    """Train the run unless it is cached; the held-out loss at each age."""
    place = folder(run)
    if not ready(run):
        place.mkdir(parents=True, exist_ok=True)
        losses: dict[int, float] = {}

        def keep(step: int, model: nn.Module) -> None:
            save_model(model, str(place / f"{step}.safetensors"))
            losses[step] = held_out_loss(model, run.kind)

        train(run, keep, ages=(*(age for age in AGES if age < run.steps), run.steps))
        write_json(place / "losses.json", {str(step): loss for step, loss in losses.items()})
    return {int(step): loss for step, loss in json.loads((place / "losses.json").read_text()).items()}


def load(backbone: Backbone) -> nn.Module:
    """The model at that age, in eval mode; trained first if need be."""
    ensure(backbone.run)
    model = build(backbone.run)
    load_model(model, str(folder(backbone.run) / f"{backbone.age}.safetensors"))
    return model.eval()
