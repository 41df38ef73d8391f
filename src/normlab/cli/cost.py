"""`normlab cost`: what a model costs before it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlab.cli._options import Json

if TYPE_CHECKING:
    from normlab.model.cost import Cost


def register(app: typer.Typer) -> None:
    @app.command("cost")
    def cost(
        scheme: Annotated[str, typer.Option(help="Scheme, or several with commas between.")] = "pre_norm",
        depth: Annotated[int, typer.Option(help="Layers, each attention + FFN.")] = 12,
        dim: Annotated[int, typer.Option(help="Width.")] = 768,
        heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
        vocab: Annotated[int, typer.Option(help="Vocabulary size.")] = 32000,
        length: Annotated[int, typer.Option(help="Sequence length.")] = 2048,
        batch: Annotated[int, typer.Option(help="Sequences at a time.")] = 1,
        dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
        blocks: Annotated[int | None, typer.Option(help="Blocks of block_attn_res.")] = None,
        stages: Annotated[int, typer.Option(help="Pipeline ranks, P.")] = 1,
        virtual_stages: Annotated[int, typer.Option(help="Chunks on each rank, V.")] = 1,
        cuts: Annotated[str | None, typer.Option(help="Branches before each cut, like 5,9,14; default: even.")] = None,
        prefill_chunk: Annotated[int | None, typer.Option(help="Tokens of a prompt at a time.")] = None,
        settings: Annotated[
            list[str] | None, typer.Option("--set", help="Any model setting: ffn=gelu, kv_heads=4, scheme.heads=2.")
        ] = None,
        json: Json = False,
    ) -> None:
        """Parameters, FLOPs, activation memory, residual-path traffic and pipeline traffic of a model."""
        from normlab.model.cost import cost as count
        from normlab.report import print_json

        # Parsed here, once, so that no name is tried before all of them are known to be good.
        shape = {"depth": depth, "dim": dim, "heads": heads, "vocab_size": vocab, "max_length": max(length, 1)}
        configs = [_config(name, shape, blocks, settings or []) for name in scheme.split(",")]
        costs = [
            count(
                config,
                length=length,
                batch=batch,
                dtype=dtype,
                stages=stages,
                virtual_stages=virtual_stages,
                cuts=_numbers(cuts),
                prefill_chunk=prefill_chunk,
            )
            for config in configs
        ]
        if json:
            found = [
                {**item.to_dict(), "config": config.to_dict()} for item, config in zip(costs, configs, strict=True)
            ]
            print_json(found[0] if len(found) == 1 else found)
            return
        _print(costs)


def _config(name: str, shape: dict[str, int], blocks: int | None, settings: list[str]) -> Any:
    from normlab.model import TransformerConfig
    from normlab.schemes import lookup, scheme

    options = {"blocks": blocks} if blocks is not None and "blocks" in lookup(name).model_fields else {}
    chosen = scheme(name, **options)
    return TransformerConfig(**shape, scheme=chosen).override(settings)  # type: ignore[arg-type]


def _numbers(text: str | None) -> list[int] | None:
    from normlab.errors import ConfigError

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--cuts takes whole numbers with commas between, like 5,9,14; {text!r} is not") from None


def _print(costs: list[Cost]) -> None:
    from normlab.report import console, table

    first = costs[0]
    out = console()
    columns = [(item.scheme, _summary(item)) for item in costs]
    rows = [{"": key} | {name: cells[key] for name, cells in columns} for key in columns[0][1]]
    out.print(table(rows, title=f"{first.batch} x {first.length} tokens in {first.dtype}"))
    accesses = [
        {"scheme": item.scheme, "operation": a.operation, "read": f"{a.read:g}d", "write": f"{a.write:g}d"}
        for item in costs
        for a in item.accesses
    ]
    out.print(table(accesses, title="residual path, per token and branch (attention or FFN)"))
    lines = [_pipeline(item) for item in costs if item.pipeline is not None]
    if lines and first.pipeline is not None:
        p = first.pipeline
        title = f"pipeline, forward, per token: {p.stages} stages x {p.virtual_stages}, cuts after {list(p.cuts)}"
        out.print(table(lines, title=title))
        out.print("formulas: C(C-1)/2 N_p d and P(P-1)/2 N_p d + (V-1) P^2 N_p d, without embedding and open blocks")
        if p.virtual_stages == 1:
            out.print(
                "with one chunk a rank no rank is visited twice: caching changes nothing before --virtual-stages 2"
            )


def _summary(item: Cost) -> dict[str, str]:
    parameters, memory = item.parameters, item.memory
    return {
        "parameters": _short(parameters["total"]),
        "  of the scheme": _short(parameters["scheme"]),
        "FLOPs per token, forward": _short(item.flops["forward"]),
        "  training": _short(item.flops["training"]),
        "  of the scheme, forward": _short(item.flops["mixing"]),
        "saved for the backward pass": _size(memory["activations"]),
        "  of the residual path": _size(memory["residual_path"]),
        "  with a checkpoint a layer": _size(memory["checkpointed"]),
        "key-value cache": _size(memory["kv_cache"]),
        "stream while a prompt is read": _size(memory["prefill_stream"]),
        "  of its sources": _size(memory["prefill_sources"]),
        "residual path, per branch": f"{item.traffic:g}d",
        "  read + written": f"{item.reads:g}d + {item.writes:g}d",
    }


def _pipeline(item: Cost) -> dict[str, str]:
    p = item.pipeline
    assert p is not None

    def formula(value: float | None) -> str:
        return "-" if value is None else f"{value:g}d"

    return {
        "scheme": item.scheme,
        "naive": f"{p.naive:g}d",
        "cached": f"{p.cached:g}d",
        "formula, naive": formula(p.formula_naive),
        "formula, cached": formula(p.formula_cached),
        "widest hop": f"{max(p.hops_naive):g}d -> {max(p.hops_cached):g}d",
    }


def _short(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _size(count: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
