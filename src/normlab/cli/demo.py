"""`normlab demo`: a whole comparison in about five minutes on two cores, then a diagnosis of the best model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from normlab.cli._options import Json
from normlab.cli._request import SweepOut, Workers
from normlab.experiments.compare.request import CompareRequest

if TYPE_CHECKING:
    from normlab.experiments.compare.result import Comparison


def request() -> CompareRequest:
    return CompareRequest(
        schemes=("post_norm", "pre_norm", "peri_norm", "ln_scaling", "block_attn_res"), depths=(24,), dim=64, heads=4,
        batch=8, length=64, tokens=8 * 64 * 80, seeds=2, lrs=(1e-3, 4e-3, 1.6e-2), extend=0,
    )  # fmt: skip


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        workers: Workers = 0,
        out: SweepOut = Path("runs/demo"),
        json: Json = False,
    ) -> None:
        """Compare five schemes at 24 layers on the text that ships, write the report, diagnose the best model."""
        from normlab.experiments.compare.experiment import EXPERIMENT
        from normlab.experiments.compare.result import Comparison
        from normlab.experiments.protocol import Place, run
        from normlab.report import console, print_json

        result = run(request(), Place(out, workers=workers, quiet=json))
        assert isinstance(result, Comparison)
        page = EXPERIMENT.write(result, out)
        diagnosis = diagnose_best(result, out)
        if json:
            print_json({**result.to_dict(), "report": str(page), "diagnosis": str(diagnosis)})
            return
        for text in summary(result, page, diagnosis):
            console().print(text, markup=False)


def diagnose_best(result: Comparison, out: Path) -> Path:
    """The page of a diagnosis of the best scheme's first seed, on held-out text."""
    import torch

    from normlab.experiments.runs.folder import load
    from normlab.probes.diagnose import diagnose
    from normlab.probes.inputs.runs import load_run

    best = result.settings[0].schemes[0]
    wanted = (best.scheme, best.lr, 0)
    name = next(row.cell for row in result.cells if (row.scheme, row.lr, row.seed) == wanted)
    config = load(out / name)
    windows = config.task.held_out().sample(8, 2 * config.train.length, torch.Generator().manual_seed(0))
    found = diagnose(load_run(str(out / name)).model, [windows.tokens], name=name)
    return found.to_html(out / "diagnosis.html")


def summary(result: Comparison, page: Path, diagnosis: Path) -> list[str]:
    """Ten lines."""
    setting = result.settings[0]
    lines = list(setting.answer)
    for row in setting.schemes:
        loss = "diverged" if row.mean is None else f"loss {row.mean:.3f}"
        speed = f"step time {row.cost.time:.2f}" if row.cost else ""
        lines.append(f"  {row.scheme:<16} {loss}  best lr {row.lr:<7.2g} {speed}")
    counts = {v: sum(claim.verdict == v for claim in setting.claims) for v in ("confirmed", "refuted", "undecided")}
    lines.append(
        f"Claims of the field: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())} (see the report)."
    )
    lines.append(f"Report: {page}   Diagnosis of the best model: {diagnosis}")
    return lines
