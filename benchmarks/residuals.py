"""What a residual scheme costs beside pre_norm of the same shape: a training step, a forward pass, bytes kept.

Ours and the packages of others drive the same branches (see `_residual_peers`), and take turns in one process. Bytes
kept for the backward pass count every storage once and leave parameters out. `--growth` measures the cost per sublayer
against depth, and writes a page with the plot. `NORMLAB_KERNELS=off` leaves out the C kernels of Attention Residuals.

`--base FOLDER` is a checkout of another commit: its schemes take turns with ours ("NAME, before"), and its pre_norm is what
all are compared with. `--write FILE` puts the table, with the machine that it was made on, into a Markdown file.
`--device cuda` times the same on a GPU; nobody has run it yet.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normlab as nl
from benchmarks._residual_peers import find
from benchmarks._trees import Tree, load_tree
from benchmarks.timing import arguments, machine
from normlab.model.memory import saved_bytes
from normlab.observe.timing import interleave, ratio
from normlab.report import Page, console, print_json, table
from normlab.report.tables import markdown_table

Clock = Literal["wall", "processor"]
BASE = "pre_norm"
VOCAB, LENGTH, BATCH = 256, 256, 4
SHAPES = {"24x256": (24, 256), "48x128": (48, 128), "24x64": (24, 64)}
BEFORE = ", before"  # of a scheme in the tree that --base names
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: ("pre_norm", {}),
    "block_attn_res": ("block_attn_res", {"blocks": 8}),
    "block_attn_res, recompute": ("block_attn_res", {"blocks": 8, "recompute": True}),
    "attn_res": ("attn_res", {}),
    "block_attn_res, reference": ("block_attn_res", {"blocks": 8, "read": "reference"}),
    "hyper_connections": ("hyper_connections", {}),
    "hyper_connections, static": ("hyper_connections", {"dynamic": False}),
    "mhc": ("mhc", {}),
    "dense_former": ("dense_former", {}),
}
FAMILIES = {  # measured together: each round holds few candidates, so that its ratios are taken close in time
    "block": ["block_attn_res", "block_attn_res, recompute", "block_attn_res, reference", "attn-res, block"],
    "full": ["attn_res", "attn-res, full", "x-transformers, attention residual (full, low-rank query)"],
    "streams": ["hyper_connections", "hyper_connections, static", "hyper-connections"],
    "manifold": ["mhc", "dense_former", "hyper-connections, mHC"],
}
COMPILED = ("block_attn_res", "attn_res")
TARGETS = {  # training eager, training compiled, forward, bytes
    "block_attn_res": (1.10, 1.06, 1.08, 1.30),
    "block_attn_res, recompute": (None, None, None, 1.15),
    "attn_res": (1.30, None, 1.25, 1.5),
}


def build(name: str, depth: int, dim: int, *, other: Tree | None = None) -> nn.Module:
    """A candidate with its first step behind it: what is imported when it is first called is imported now."""
    torch.manual_seed(0)
    if other is not None and name.endswith(BEFORE):
        with other.taking_turns() as package:
            model = _model(package, name.removesuffix(BEFORE), depth, dim)
            trainer(model, tokens())()
        return model
    model = _model(nl, name, depth, dim)
    return model if name in OURS else find()[0][name](model)


def _model(package: Any, name: str, depth: int, dim: int) -> nn.Module:
    scheme, options = OURS.get(name, OURS[BASE])
    config = package.TransformerConfig(
        vocab_size=VOCAB, dim=dim, depth=depth, heads=4, scheme=package.scheme(scheme, **options), max_length=LENGTH
    )
    return package.Transformer(config)


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(0))


def trainer(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        _wait(x)

    return step


def evaluator(model: nn.Module, x: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def forward() -> None:
        model(x)
        _wait(x)

    return forward


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def kept_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that the forward pass holds for the backward pass."""
    return saved_bytes(lambda: F.cross_entropy(model(x).flatten(0, 1), x.flatten()), model.parameters())


def timed(candidates: dict[str, Callable[[], None]], *, rounds: int, what: str, clock: Clock) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, by the wall's clock or the processor's."""
    seconds = interleave(candidates, rounds=rounds, warmup=1, what=what)
    return {name: list(getattr(times, clock)) for name, times in seconds.items()}


def relative(seconds: dict[str, list[float]], base: str = BASE) -> dict[str, dict[str, float]]:
    """Of each candidate: the median over rounds of its time over the base's in that round, with quartiles."""
    found = {}
    for name, times in seconds.items():
        over = ratio(times, seconds[base])
        found[name] = {"ratio": over.middle, "low": over.low, "high": over.high, "ms": 1e3 * statistics.median(times)}
    return found


@dataclass(frozen=True)
class How:
    """How candidates are compared: rounds, whose clock, which tree before, on which device."""

    rounds: int
    clock: Clock
    compiled: bool = False
    other: Tree | None = None
    device: str = "cpu"


def measure(names: list[str], shape: tuple[int, int], how: How, *, what: str) -> list[dict[str, Any]]:
    x, (depth, dim) = tokens().to(how.device), shape
    rounds, clock, compiled, base = how.rounds, how.clock, how.compiled, BASE
    candidates = [BASE, *names]
    if how.other is not None:
        base = BASE + BEFORE
        candidates = [base, *candidates, *(name + BEFORE for name in names if name in OURS)]
    plain = {name: build(name, depth, dim, other=how.other).to(how.device) for name in candidates}
    sizes = {} if compiled else {name: kept_bytes(model, x) for name, model in plain.items()}
    models: dict[str, Any] = {n: torch.compile(m, fullgraph=True) if compiled else m for n, m in plain.items()}
    seconds = {
        kind: timed(
            {name: make(model, x) for name, model in models.items()},
            rounds=rounds,
            what=what and f"{what}, {kind}",
            clock=clock,
        )
        for kind, make in (("training", trainer), ("forward", evaluator))
    }
    training, inference = (relative(seconds[kind], base) for kind in ("training", "forward"))
    return [
        {
            "candidate": name,
            "whose": "ours" if name in OURS else "before" if name.endswith(BEFORE) else "peer",
            "training": training[name]["ratio"],
            "training_quartiles": [training[name]["low"], training[name]["high"]],
            "forward": inference[name]["ratio"],
            "forward_quartiles": [inference[name]["low"], inference[name]["high"]],
            "bytes": sizes[name] / sizes[base] if sizes else None,
            "training_ms": training[name]["ms"],
            "forward_ms": inference[name]["ms"],
        }
        for name in models
    ]


def growth(depths: list[int], *, rounds: int, clock: Clock, quiet: bool, dim: int = 128) -> list[dict[str, Any]]:
    """Milliseconds that a scheme adds to pre_norm, per sublayer of a training step, against depth."""
    rows = []
    for depth in depths:
        x = tokens()
        names = [BASE, "block_attn_res", "attn_res"]
        models = {name: build(name, depth, dim) for name in names}
        steps = {name: trainer(model, x) for name, model in models.items()}
        what = "" if quiet else f"depth {depth}"
        seconds = timed(steps, rounds=rounds, what=what, clock=clock)
        for name in names:
            added = statistics.median(t - b for t, b in zip(seconds[name], seconds[BASE], strict=True))
            per = 1e3 * statistics.median(seconds[name]) / (2 * depth)
            rows.append(
                {
                    "depth": depth,
                    "candidate": name,
                    "ms per sublayer": per,
                    "added ms per sublayer": 1e3 * added / (2 * depth),
                    "ratio": relative(seconds)[name]["ratio"],
                }
            )
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> Path:
    names = [name for name in dict.fromkeys(row["candidate"] for row in rows) if name != BASE]
    lines = []
    for name in names:
        chosen = [row for row in rows if row["candidate"] == name]
        line = {"x": [row["depth"] for row in chosen], "y": [row["added ms per sublayer"] for row in chosen]}
        lines.append({"type": "scatter", "mode": "lines+markers", "name": name, **line})
    axes = {"xaxis": {"title": {"text": "layers"}}, "yaxis": {"title": {"text": "added ms per sublayer"}}}
    page = Page("Attention Residuals: cost against depth", subtitle=f"d = 128, {LENGTH} tokens, batch {BATCH}")
    page.text("A training step's time beyond pre_norm of the same shape, per sublayer: Block is flat, Full is linear.")
    page.figure({"data": lines, "layout": axes}, caption="added milliseconds per sublayer")
    page.table(rows, name="growth")
    return page.write(path)


COLUMNS = ("candidate", "training", "forward", "bytes", "training_ms", "forward_ms")


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: round(v, 3) if isinstance(v := row[key], float) else v for key in COLUMNS} for row in rows]


def show(rows: list[dict[str, Any]], title: str) -> None:
    console().print(table(rounded(rows), title=f"{title}: ratios to {rows[0]['candidate']}"))


def conditions(how: How) -> dict[str, Any]:
    return {**machine(), "clock": how.clock, "rounds": how.rounds, "device": how.device}


def write(path: Path, results: dict[str, Any], title: str) -> None:
    """One Markdown file: the conditions, then a table for each shape."""
    lines = [f"# {title}", "", ", ".join(f"{key}: {value}" for key, value in results["conditions"].items()), ""]
    for key, rows in results.items():
        if isinstance(rows, list) and rows and "candidate" in rows[0] and key != "growth":
            lines += [f"## {key}: ratios to {rows[0]['candidate']}", "", markdown_table(rounded(rows), COLUMNS), ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = arguments("residual schemes beside pre_norm")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="default: all")
    parser.add_argument(
        "--compiled", action=argparse.BooleanOptionalAction, default=True, help="also under torch.compile (minutes)"
    )
    parser.add_argument(
        "--growth", action=argparse.BooleanOptionalAction, default=True, help="cost per sublayer against depth"
    )
    parser.add_argument("--only", nargs="+", metavar="CANDIDATE", help="of a family, these candidates only")
    parser.add_argument("--depths", type=int, nargs="+", default=[12, 24, 48, 96])
    parser.add_argument("--out", type=Path, default=Path("docs/images/residual_cost.html"), help="page with the plot")
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds, for a machine that others keep busy")
    parser.add_argument("--base", type=Path, help="a checkout of another commit, whose schemes take turns with ours")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (never run by us)")
    parser.add_argument("--write", type=Path, help="a Markdown file for the tables")
    given = parser.parse_args(argv)
    if given.quick:
        given.compiled = given.growth = False
        given.shape = given.shape or ["24x64"]
    how = How(
        rounds=given.rounds or (3 if given.quick else 7),
        clock="processor" if given.cpu_time and given.device == "cpu" else "wall",
        other=None if given.base is None else load_tree(given.base),
        device=given.device,
    )
    available, missing = find()
    results: dict[str, Any] = {"missing": missing, "conditions": conditions(how)}
    speaks = not (given.json or given.quiet)
    if speaks:
        console().print(results["conditions"])
    for label in given.shape or SHAPES:
        for mode in ("eager", "compiled") if given.compiled and given.base is None else ("eager",):
            rows: list[dict[str, Any]] = []
            for family in given.family or FAMILIES:
                known = COMPILED if mode == "compiled" else (*OURS, *available)
                names = [name for name in FAMILIES[family] if name in known and name in (given.only or known)]
                if names:
                    what = "" if given.quiet else f"{label} {mode} {family}"
                    found = measure(names, SHAPES[label], replace(how, compiled=mode == "compiled"), what=what)
                    rows += (
                        found if not rows else [one for one in found if one["candidate"].removesuffix(BEFORE) != BASE]
                    )
            results[f"{label} {mode}"] = rows
            if speaks and rows:
                show(rows, f"{label}, {mode}")
    if given.growth:
        results["growth"] = growth(given.depths, rounds=how.rounds, clock=how.clock, quiet=given.quiet)
        results["plot"] = str(draw(results["growth"], given.out))
        if speaks:
            console().print(table(results["growth"], title="cost per sublayer against depth (d = 128)"))
    if speaks:
        for name, reason in missing.items():
            console().print(f"{name}: {reason}")
    if given.write is not None:
        write(given.write, results, "Residual schemes: cost over pre_norm")
    if given.json:
        print_json({**results, "targets": TARGETS})
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
