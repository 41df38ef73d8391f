"""`normlab config`: check a model configuration, print it resolved, run it once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Imports, Json, Seed

if TYPE_CHECKING:
    from normlab.model import TransformerConfig


def register(app: typer.Typer) -> None:
    @app.command()
    def config(
        what: Annotated[
            list[str] | None, typer.Argument(metavar="[FILE] [KEY=VALUE]...", help="YAML or JSON, then overrides.")
        ] = None,
        schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a model instead.")] = False,
        tokens: Annotated[str | None, typer.Option(help="Token ids with commas: run the model on them once.")] = None,
        seed: Seed = 0,
        imports: Imports = None,
        json: Json = False,
    ) -> None:
        """Check a model configuration and print it whole.

        With its parameters and FLOPs."""
        from normlab.model import TransformerConfig
        from normlab.report import print_json

        if schema:
            print_json(TransformerConfig.json_schema())
            return
        resolved = _resolve(what or [])
        facts = _facts(resolved, tokens, seed)
        if json:
            print_json({"config": resolved.to_dict(), **facts})
            return
        typer.echo(resolved.to_yaml() + "".join(f"# {key}: {value}\n" for key, value in facts.items()), nl=False)


def _resolve(what: list[str]) -> TransformerConfig:
    from normlab.model import TransformerConfig

    files = [part for part in what[:1] if "=" not in part]
    small = TransformerConfig(vocab_size=256, dim=128, depth=6, heads=4)
    start = TransformerConfig.from_file(Path(files[0])) if files else small
    return start.override(what[len(files) :])


def _facts(config: TransformerConfig, tokens: str | None, seed: int) -> dict[str, object]:
    import torch

    from normlab.model import Transformer
    from normlab.numbers import whole_numbers

    with torch.device("meta"):
        model = Transformer(config)
    length = min(config.max_length, 1024)
    facts: dict[str, object] = {
        "parameters": model.num_parameters(),
        "of the residual path": sum(p.numel() for p in model.scheme.parameters()),
        f"training FLOPs per token at length {length}": model.flops_per_token(length, training=True),
    }
    if tokens is not None:
        ids = [min(max(i, -(2**62)), 2**62) for i in whole_numbers(tokens, option="--tokens")]  # more fits no int64
        torch.manual_seed(seed)
        with torch.no_grad():
            logits = Transformer(config)(torch.tensor([ids]))[0, -1]
        facts["most likely next token, untrained"] = int(logits.argmax())
    return facts
