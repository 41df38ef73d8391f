"""What it costs to watch a model: streaming hooks beside output_hidden_states and TransformerLens' run_with_cache.

    python -m benchmarks diagnose [--rounds 9]

GPT-2 architecture, random weights, 24 layers, d = 256, 8 x 256 tokens. Each candidate computes the same statistics:
the stream's norm, Block Influence and token cosine of every layer and, where the candidate can see branches (normlab
and TransformerLens), their size and their cosine with the stream. Times are interleaved in one process; extra peak
memory is measured in a process of its own per candidate, as the growth of the peak over that of a plain forward pass.
Also: the monitor at every 50 steps, against the same training loop without it.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import arguments, ratios, show
from normlab.observe.timing import interleave
from normlab.probes.measure import metrics
from normlab.probes.measure.stream import StreamStatistics
from normlab.probes.monitor import Monitor
from normlab.probes.trace.hooks import Tracer
from normlab.probes.trace.locate import locate

BRANCHES = ("hook_attn_out", "hook_mlp_out")


def build(layers: int = 24, width: int = 256) -> tuple[Any, torch.Tensor]:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=512, n_embd=width, n_layer=layers, n_head=8, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    config.use_cache = False
    model = transformers.GPT2LMHeadModel(config).eval()
    return model, torch.randint(0, 512, (8, 256))


def of_stream(before: torch.Tensor, after: torch.Tensor) -> list[float]:
    return [
        float(metrics.token_norms(after).mean()),
        float(metrics.block_influence(before, after)),
        float(metrics.token_cosine(after).mean()),
    ]


def of_branch(base: torch.Tensor, added: torch.Tensor) -> list[float]:
    ratio = metrics.token_norms(added) / metrics.token_norms(base)
    return [float(ratio.mean()), float(metrics.cosine(added, base).mean())]


def plain(model: Any, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: model(input_ids=ids)


def normlab(model: Any, ids: torch.Tensor) -> Callable[[], Any]:
    layout = locate(model, lambda: None)

    def run() -> Any:
        statistics = StreamStatistics(rank_tokens=0)
        with Tracer(layout, statistics):
            model(input_ids=ids)
        return statistics.rows()

    return run


def hidden_states(model: Any, ids: torch.Tensor) -> Callable[[], Any]:
    def run() -> Any:
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        return [of_stream(before, after) for before, after in itertools.pairwise(states)]

    return run


def transformer_lens(model: Any, ids: torch.Tensor) -> Callable[[], Any]:
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=model)
    kept = ("hook_resid_pre", *BRANCHES, "hook_resid_post")
    depth = model.config.n_layer

    def run() -> Any:
        _, cache = bridge.run_with_cache(ids, names_filter=lambda name: name.endswith(kept))
        rows = []
        for layer in range(depth):
            before, attention, ffn, after = (cache[f"blocks.{layer}.{name}"] for name in kept)
            rows.append([*of_stream(before, after), *of_branch(before, attention), *of_branch(before + attention, ffn)])
        return rows

    return run


def _tokenizer() -> Any:
    import transformers
    from tokenizers import Tokenizer, models

    raw = Tokenizer(models.WordLevel({f"w{i}": i for i in range(512)}, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="w0", pad_token="w0", bos_token="w0", eos_token="w0"
    )


CANDIDATES = {
    "plain forward": plain,
    "normlab": normlab,
    "output_hidden_states": hidden_states,
    "TransformerLens": transformer_lens,
}


def available() -> list[str]:
    try:
        import transformer_lens  # noqa: F401
    except ImportError:
        return [name for name in CANDIDATES if name != "TransformerLens"]
    return list(CANDIDATES)


def peak_megabytes(name: str) -> float:
    """Peak resident memory of a process that runs one candidate twice."""
    code = f"import benchmarks.diagnose as b; b.report_peak({name!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def report_peak(name: str) -> None:
    model, ids = build()
    with torch.no_grad():
        plain(model, ids)()
        start = high_water()
        run = CANDIDATES[name](model, ids)
        run()
        run()
    print(json.dumps(high_water() - start))


def high_water() -> float:
    """Peak resident megabytes of this process. (ru_maxrss will not do: a child inherits its parent's.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return math.nan  # not Linux


def monitor_share(every: int = 50, steps: int = 60, *, compiled: bool = False) -> float:
    """Cost of a monitor at every 50 steps, over the time of training: (measured step / other step - 1) / 50.

    Every second step is measured, so that both kinds are interleaved; hooks and the transfer are in it, and on a
    compiled model that a measured step runs eagerly.
    """
    model, ids = build(layers=12, width=256)
    model.train()
    driven = torch.compile(model) if compiled else model
    monitor = Monitor(driven, every=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        if step == 4:
            monitor._steps[True].clear(), monitor._steps[False].clear()
        monitor.before_step()
        driven(input_ids=ids[:2], labels=ids[:2]).loss.backward()
        monitor.gradients()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
    monitor.close()
    measured, others = (statistics.median(monitor._steps[kind]) for kind in (True, False))
    print(f"a measured step takes {measured / others:.3f} of another", file=sys.stderr)
    return (measured / others - 1) / every


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__ or "")
    given = parser.parse_args(argv)
    names = available()
    model, ids = build()
    with torch.no_grad():
        # TransformerLens rebuilds the model that it is given, so it gets one of its own.
        runs = {name: CANDIDATES[name](*(build() if name == "TransformerLens" else (model, ids))) for name in names}
        seconds = interleave(runs, rounds=given.rounds or 7, warmup=1, what="" if given.quiet else "diagnose")
    found: dict[str, Any] = ratios(seconds, "normlab")
    for name in names:
        found[name]["extra peak MB"] = round(peak_megabytes(name), 1)
    share = monitor_share()
    if not given.quiet:
        show("24 layers, d = 256, 8 x 256 tokens", found, "normlab")
        print(f"monitor at every 50 steps, 12 layers, d = 256, 2 x 256 tokens: {100 * share:.2f} % of a training run")
    return {**found, "monitor_share": share}


if __name__ == "__main__":
    main()
