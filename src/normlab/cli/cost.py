"""`normlab cost`: what a model costs before it exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from pydantic import field_validator

from normlab.cli._options import Json, OldScheme
from normlab.cli._request import IMPORTS, Given, add_command, asked, parameter
from normlab.experiments.request import Request, option
from normlab.experiments.shapes import known_schemes

if TYPE_CHECKING:
    from normlab.model import TransformerConfig
    from normlab.model.cost import Cost
    from normlab.observe.hardware import Hardware, Prediction

Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any model setting: ffn=gelu, kv_heads=4, scheme.heads=2.")
]


class CostRequest(Request):
    """Models of one shape, and what is done with them."""

    what: ClassVar[str] = "cost"
    kind: ClassVar[str] = "cost"

    schemes: tuple[str, ...] = option(
        ("pre_norm",), "Names with commas, options in brackets: block_attn_res(blocks=4); a family; or all."
    )
    depth: int = option(12, "Layers, each attention + FFN.")
    dim: int = option(768, "Width.")
    heads: int = option(12, "Attention heads.")
    vocab: int = option(32000, "Vocabulary size.")
    length: int = option(2048, "Sequence length.")
    batch: int = option(1, "Sequences at a time.")
    dtype: str = option("float32", "float32, bfloat16, float16 or float64.")
    blocks: int | None = option(None, "Blocks of block_attn_res, where its brackets do not say.")
    stages: int = option(1, "Pipeline ranks, P.")
    virtual_stages: int = option(1, "Chunks on each rank, V.")
    cuts: tuple[int, ...] | None = option(None, "Branches before each cut, like 5,9,14; default: even.")
    prefill_chunk: int | None = option(None, "Tokens of a prompt at a time.")
    hardware: str | None = option(None, "Also predict the overhead over pre_norm on h100, a100 or cpu (measured now).")

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_schemes(names)


def register(app: typer.Typer) -> None:
    help = "What a scheme costs. Parameters, FLOPs, activation memory, traffic of the residual path and of a pipeline."
    more = [
        parameter("settings", Settings, None),
        parameter("old", OldScheme, None),
        IMPORTS,
        parameter("json", Json, False),
    ]
    add_command(app, CostRequest, _run, name="cost", help=help, more=more)


def _run(_: typer.Context, given: Given) -> None:
    from normlab.model.cost import cost
    from normlab.report import print_json
    from normlab.results import as_row

    request = asked(CostRequest, given)
    assert isinstance(request, CostRequest)
    _apply(request, given.settings or [])
    # All are made before one is counted, so that no name is tried before all of them are known to be good.
    configs = [_config(name, request, given.settings or []) for name in request.schemes]
    place = {"stages": request.stages, "virtual_stages": request.virtual_stages, "cuts": request.cuts}
    size = {"length": request.length, "batch": request.batch, "dtype": request.dtype}
    more: dict[str, Any] = {**size, **place, "prefill_chunk": request.prefill_chunk}
    costs = [cost(config, **more) for config in configs]
    machine, predictions = _predictions(request, configs)
    if given.json:
        found = [{**item.to_dict(), "config": config.to_dict()} for item, config in zip(costs, configs, strict=True)]
        for entry, one in zip(found, predictions, strict=False):
            entry |= {"prediction": as_row(one)}
        print_json(found[0] if len(found) == 1 else found)
        return
    _print(costs)
    if machine is not None:
        _print_predictions(machine, predictions, request)


def _predictions(request: CostRequest, configs: list[TransformerConfig]) -> tuple[Hardware | None, list[Prediction]]:
    from normlab.model.cost import DTYPES
    from normlab.observe.hardware import hardware, predict

    if request.hardware is None:
        return None, []
    machine, tokens = hardware(request.hardware.lower()), request.batch * request.length
    size = {"tokens": tokens, "length": request.length}
    return machine, [predict(config, machine, **size, dtype=DTYPES[request.dtype]) for config in configs]


def _print_predictions(machine: Hardware, found: list[Prediction], request: CostRequest) -> None:
    from normlab.observe.hardware import prediction_rows, roofline
    from normlab.report import console, table

    title = f"a training step on {machine.name}, beyond pre_norm: overhead (rows, operations for each sublayer)"
    console().print(table(prediction_rows(found), title=title))
    for line in roofline(machine, found):
        console().print(line, markup=False, highlight=False, soft_wrap=True)
    rates = f"{machine.memory / 1e12:.3g} TB/s and {machine.compute / 1e12:.3g} TFLOP/s"
    console().print(f"{rates}: {machine.source}. Rows and operations are counted on the meta device; no GPU was run.")


def _apply(request: CostRequest, settings: Sequence[str]) -> None:
    """Options that nothing here would heed are refused."""
    from normlab.errors import ConfigError
    from normlab.schemes import parse_scheme

    schemes = [parse_scheme(name) for name in request.schemes]
    if request.blocks is not None and not any(
        "blocks" in type(scheme).model_fields.keys() - scheme.model_fields_set for scheme in schemes
    ):
        raise ConfigError(
            f"--blocks {request.blocks} applies to none of {', '.join(request.schemes)}: it is for block_attn_res, where its "
            "brackets do not say; leave it out"
        )
    if request.stages == 1 and request.virtual_stages == 1 and request.cuts is not None:
        raise ConfigError("--cuts is for a pipeline: give --stages 2 or more, or leave it out")


def _config(name: str, request: CostRequest, settings: Sequence[str]) -> TransformerConfig:
    from normlab.model import TransformerConfig
    from normlab.schemes import parse_scheme

    scheme = parse_scheme(name)
    if request.blocks is not None and "blocks" in type(scheme).model_fields.keys() - scheme.model_fields_set:
        scheme = scheme.replace(blocks=request.blocks)
    return TransformerConfig(
        vocab_size=request.vocab,
        dim=request.dim,
        depth=request.depth,
        heads=request.heads,
        scheme=scheme,
        max_length=max(request.length, 1),
    ).override(settings)


def _print(costs: list[Cost]) -> None:
    from normlab.model.cost import access_rows, pipeline_rows, summary_rows
    from normlab.report import console, table

    first, out = costs[0], console()
    out.print(table(summary_rows(costs), title=f"{first.batch} x {first.length} tokens in {first.dtype}"))
    out.print(table(access_rows(costs), title="residual path, per token and branch (attention or FFN)"))
    p = first.pipeline
    if p is None:
        return
    title = f"pipeline, forward, per token: {p.stages} stages x {p.virtual_stages}, cuts after {list(p.cuts)}"
    out.print(table(pipeline_rows(costs), title=title))
    out.print("formulas: C(C-1)/2 N_p d and P(P-1)/2 N_p d + (V-1) P^2 N_p d, without embedding and open blocks")
    if p.virtual_stages == 1:
        out.print("with one chunk a rank no rank is visited twice: caching changes nothing before --virtual-stages 2")
