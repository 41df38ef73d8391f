"""`normlab theory set-complement`: the theorem as numbers, and a trained minimal model beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli._options import Imports, Json


def register(app: typer.Typer) -> None:
    @app.command("set-complement")
    def set_complement(
        vocab: Annotated[int, typer.Option(help="Size of the vocabulary, v.")] = 32,
        tv: Annotated[float, typer.Option(help="Total variation to which both laws are brought at v/4.")] = 0.01,
        run: Annotated[
            Path | None, typer.Option(help="A finished run of `normlab lengthgen` to compare.", file_okay=False)
        ] = None,
        weights: Annotated[str, typer.Option(help="Of that run: raw, ema or bema.")] = "raw",
        imports: Imports = None,
        json: Json = False,
    ) -> None:
        """The task whose solution is exact. The construction, the rank bound, TV(s) with and without a norm."""
        from normlab.experiments.lengthgen.theorem import examine, verify
        from normlab.report import console, print_json, table
        from normlab.results import as_row, plain
        from normlab.theory import complement_theorem as theory
        from normlab.theory.precision import scale_needed

        claims = verify(vocab)
        laws: list[dict[str, object]] = [
            {**as_row(row), **dict(zip(("c needed", "g needed"), scale_needed(tv, row.length, vocab), strict=True))}
            for row in theory.calibrated(vocab, tv)
        ]
        trained = examine(run, weights) if run is not None else None
        if json:
            print_json({"vocab": vocab, "claims": plain(claims), "laws": laws, "trained": plain(trained)})
            return
        console().print(
            table([as_row(claim) for claim in claims], title=f"Set complement over {vocab} tokens, checked in float64")
        )
        shown: list[dict[str, object]] = [r for r in laws if r["length"] in _shown(vocab)]
        console().print(
            table(shown, title=f"Both laws at TV {tv} for length {max(vocab // 4, 1)}; the scales that give it at each")
        )
        if trained is not None:
            console().print(
                table(
                    [as_row(r) for r in trained.lengths],
                    title=f"The trained model ({trained.scheme}, {weights} weights)",
                )
            )
            for line in trained.findings:
                console().print(line, markup=False)


def _shown(v: int) -> set[int]:
    return {1, 2, max(v // 8, 1), max(v // 4, 1), v // 2, 3 * v // 4, v - 1}
