"""`normlab demo`: a whole comparison in about five minutes on two cores, then a diagnosis of the best model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from normlab.cli._options import Json
from normlab.cli._sweeps import SweepOut, Workers, carry_out, write_report

SETTINGS: dict[str, Any] = {
    "schemes": ("post_norm", "pre_norm", "peri_norm", "ln_scaling", "block_attn_res"),
    "depths": (24,), "dim": 64, "heads": 4, "batch": 8, "length": 64, "tokens": 8 * 64 * 80, "seeds": 2,
    "lrs": (1e-3, 4e-3, 1.6e-2), "extend": 0,
}  # fmt: skip


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        workers: Workers = 0,
        out: SweepOut = Path("runs/demo"),
        json: Json = False,
    ) -> None:
        """Compare five schemes at 24 layers on the text that ships, write the report, diagnose the best model."""
        from normlab.experiments.compare import CompareConfig, compare
        from normlab.report import console, print_json

        result = carry_out(compare, CompareConfig(**SETTINGS), out, workers=workers, quiet=json)
        page = write_report(result, out)
        diagnosis = diagnose_best(result, out)
        if json:
            print_json({**result, "report": str(page), "diagnosis": str(diagnosis)})
            return
        for text in summary(result, page, diagnosis):
            console().print(text, markup=False)


def diagnose_best(result: dict[str, Any], out: Path) -> Path:
    """The page of a diagnosis of the best scheme's first seed, on held-out text."""
    import torch

    from normlab.experiments.cell import load
    from normlab.probes.diagnose import diagnose
    from normlab.probes.inputs.runs import load_run

    best = result["settings"][0]["schemes"][0]
    wanted = (best["scheme"], best["lr"], 0)
    name = next(c["cell"] for c in result["cells"] if (c["scheme"], c["lr"], c["seed"]) == wanted)
    config = load(out / name)
    windows = config.task.held_out().sample(8, 2 * config.train.length, torch.Generator().manual_seed(0))
    found = diagnose(load_run(str(out / name)).model, [windows.tokens], name=name)
    return found.to_html(out / "diagnosis.html")


def summary(result: dict[str, Any], page: Path, diagnosis: Path) -> list[str]:
    """Ten lines."""
    setting = result["settings"][0]
    lines = list(setting["answer"])
    for row in setting["schemes"]:
        loss = "diverged" if row["mean"] is None else f"loss {row['mean']:.3f}"
        speed = f"step time {row['cost']['time']:.2f}" if row["cost"] else ""
        lines.append(f"  {row['scheme']:<16} {loss}  best lr {row['lr']:<7.2g} {speed}")
    counts = {v: sum(c["verdict"] == v for c in setting["claims"]) for v in ("confirmed", "refuted", "undecided")}
    lines.append(
        f"Claims of the field: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())} (see the report)."
    )
    lines.append(f"Report: {page}   Diagnosis of the best model: {diagnosis}")
    return lines
