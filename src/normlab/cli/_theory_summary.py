"""`normlab theory summary`: Pre-Norm and Post-Norm in nine rows, each with the numbers that were measured."""

from __future__ import annotations

import typer

from normlab.cli._options import Json


def register(app: typer.Typer) -> None:
    @app.command("summary")
    def summary(json: Json = False) -> None:
        """Pre-Norm and Post-Norm in nine rows. With a measured number on each side of every row."""
        from normlab.experiments.claims.book import read_all
        from normlab.experiments.claims.summary import summary as nine
        from normlab.report import console, print_json, table

        rows = nine(read_all())
        if json:
            print_json([row.to_dict() for row in rows])
            return
        shown = [
            {
                "what": f"{row.what}: {row.number}",
                "Pre-Norm": row.pre,
                "said": row.pre_said,
                "Post-Norm": row.post,
                "said ": row.post_said,
                "holds": row.holds,
                "claim": row.claim,
            }
            for row in rows
        ]
        console().print(table(shown, title="Pre-Norm and Post-Norm, said and measured"))
        held = [row for row in rows if row.holds]
        known = [row for row in rows if row.holds is not None]
        said = (
            f"In {len(held)} of {len(known)} rows both means lie on the stated sides; the claims have their intervals"
        )
        more = "." if len(known) == len(rows) else f"; {len(rows) - len(known)} are not measured yet."
        console().print(said + more, markup=False)
