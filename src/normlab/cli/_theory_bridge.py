"""`normlab theory bridge`: the dynamics' prediction laid over a real network, random or yours."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from normlab.cli._options import Json, Out
from normlab.cli._request import IMPORTS, Given, add_command, asked, parameter
from normlab.experiments.request import Request, option

if TYPE_CHECKING:
    from normlab.dynamics.networks.bridge import Bridge
    from normlab.report import Page

Model = Annotated[str, typer.Argument(help="A normlab run, a Hugging Face folder or name; none: random networks.")]


class BridgeRequest(Request):
    """Networks to lay the theory over: random ones of a shape, or one that is named beside."""

    what: ClassVar[str] = "bridge"
    kind: ClassVar[str] = "theory bridge"

    schemes: tuple[str, ...] = option(
        ("all",), "Names, a family or `all`; for a Hugging Face model, where its norms are."
    )
    dim: int = option(256, "Width of a random network.")
    depth: int = option(8, "Layers of a random network.")
    heads: int = option(4, "Heads of a random network.")
    ffn: str = option("relu", "none, relu, gelu, swiglu or geglu.")
    causal: bool = option(True, "Whether tokens see only earlier ones.")
    tokens: int = option(32, "Sequence length.")
    text: str | None = option(None, "With MODEL: a text to run it on (default: random ids).")
    seed: int = option(0, "Seed of every random draw.", ge=0, lt=2**63)

    def words(self) -> str | None:
        from normlab.probes.inputs.texts import read_text

        return None if self.text is None else read_text(self.text)


def register(app: typer.Typer) -> None:
    help = (
        "Angles between tokens, measured and predicted. Predicted by random layers of infinite width, and by the flow."
    )
    more = [
        parameter("model", Model, ""),
        parameter("out", Out, Path("runs/theory")),
        IMPORTS,
        parameter("json", Json, False),
    ]
    add_command(app, BridgeRequest, _run, name="bridge", help=help, more=more)


def _run(_: typer.Context, given: Given) -> None:
    from normlab.errors import ConfigError, need
    from normlab.experiments.command import command_line
    from normlab.probes.inputs.runs import is_run
    from normlab.report import console, print_json, print_page, table, write_page

    request, model = asked(BridgeRequest, given), given.model
    assert isinstance(request, BridgeRequest)
    if not model and request.text is not None:
        raise ConfigError("--text is what a MODEL is run on, and none was given; name one, or leave it out")
    need("scipy", extra="theory", purpose="`normlab theory bridge`")
    if not model:
        found = _random_networks(request, quiet=given.json)
    elif is_run(model):
        found = [_own(model, request)]
    else:
        found = [_foreign(model, request)]
    drawn = _page(found)
    drawn.heading("How this was made")
    drawn.code(f"{command_line(request, given.out)} {shlex.quote(model)}".removesuffix(" ''"))
    page = write_page(drawn, given.out / "bridge.html")
    if given.json:
        print_json({"bridges": [f.to_dict() for f in found], "page": page})
        return
    console().print(table(rows(found), title="Mean cosine between tokens: measured and predicted"))
    print_page(page)


def rows(found: Sequence[Bridge]) -> list[dict[str, object]]:
    return [
        {
            "scheme": f.scheme,
            "input": f.measured[0],
            "output": f.measured[-1],
            "kernel": f.kernel[-1],
            "kernel's miss": f.kernel_error,
            "flow": f.flow[-1],
            "flow's miss": f.flow_error,
        }
        for f in found
    ]


def sentence(found: Sequence[Bridge]) -> str:
    """Which theory is nearer, and by how much it misses at worst."""
    kernel, flow = max(found, key=lambda f: f.kernel_error), max(found, key=lambda f: f.flow_error)
    many = f"in {found[0].scheme}" if len(found) == 1 else f"in {len(found)} networks"
    return (
        f"Random layers of infinite width predict how alike tokens become {many} to within {kernel.kernel_error:.2g} of mean "
        f"cosine (worst: {kernel.scheme}); the flow of attention alone misses by up to {flow.flow_error:.2g} ({flow.scheme})."
    )


def _random_networks(request: BridgeRequest, *, quiet: bool) -> list[Bridge]:
    import torch

    from normlab.dynamics.names import parse_fields
    from normlab.dynamics.networks.bridge import bridge, random_tokens
    from normlab.model import Transformer, TransformerConfig
    from normlab.report import progress
    from normlab.schemes import scheme

    found = []
    names = [row.name for row in parse_fields(request.schemes)]
    for name in progress(names, what="networks", quiet=quiet):
        torch.manual_seed(request.seed)
        shape: dict[str, Any] = {"dim": request.dim, "depth": request.depth, "heads": request.heads, "ffn": request.ffn}
        config = TransformerConfig(
            vocab_size=512,
            scheme=scheme(name),
            positions="nope",
            start="authors",
            init_std=max(request.dim, 1) ** -0.5,
            causal=request.causal,
            **shape,
        )
        ids = random_tokens(512, batch=2, length=request.tokens, seed=request.seed)
        found.append(bridge(Transformer(config), ids))
    return found


def _own(folder: str, request: BridgeRequest) -> Bridge:
    """A run knows its scheme and its mask. Its tokens are bytes, or whatever its task made: then random ids serve."""
    from normlab.dynamics.networks.bridge import bridge, random_tokens
    from normlab.errors import InputError
    from normlab.model import Transformer
    from normlab.probes.inputs.runs import load_run
    from normlab.probes.inputs.texts import tokenize

    loaded = load_run(folder)
    model = loaded.model
    assert isinstance(model, Transformer)
    name = model.config.scheme.name
    if request.schemes not in (("all",), (name,)):
        raise InputError(
            f"--schemes {','.join(request.schemes)}: this run was trained with {name}; leave the option out"
        )
    ids = random_tokens(model.config.vocab_size, batch=2, length=request.tokens, seed=request.seed)
    words = request.words()
    if words is not None:
        found = tokenize(loaded, words).flatten()
        if len(found) < 2:
            raise InputError(f"--text {request.text}: {len(found)} tokens; two or more are needed to have an angle")
        length = min(request.tokens, len(found))
        ids = found[: len(found) // length * length][: 8 * length].view(-1, length)
    return bridge(model, ids)


def _foreign(model: str, request: BridgeRequest) -> Bridge:
    from normlab.dynamics.fields import field_name
    from normlab.dynamics.networks.bridge import bridge, random_tokens
    from normlab.errors import InputError, NormlabError, require
    from normlab.probes.inputs.packages import check_weights

    if model.startswith((".", "/", "~")) and not Path(model).expanduser().exists():
        raise InputError(f"there is no folder {model!r}; pass a normlab run, a model folder or a Hugging Face name")
    if request.schemes == ("all",) or len(request.schemes) > 1:
        raise InputError(
            "say where the model's norms are with --schemes pre_norm (GPT-2, Llama), peri_norm, res_norm or post_norm"
        )
    name = field_name(request.schemes[0])
    transformers = require("transformers", extra="hf", purpose=f"loading {model!r}")
    words = request.words()
    try:
        network, info = transformers.AutoModel.from_pretrained(
            model, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
        check_weights(network, info, source=model)
        ids = random_tokens(network.config.vocab_size, batch=2, length=request.tokens, seed=request.seed)
        if words is not None:
            encoder = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=False)
            ids = encoder(words, return_tensors="pt")["input_ids"][:, : request.tokens]
    except NormlabError:
        raise
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"cannot load the model {model!r}: {str(error).splitlines()[0]}") from None
    return bridge(network, ids, scheme=name, causal=request.causal)


def _page(found: Sequence[Bridge]) -> Page:
    from normlab.report import Page
    from normlab.report.colours import scheme_colour
    from normlab.report.figures import figure, line, theory

    page = Page("Theory laid over real networks", subtitle="mean cosine between tokens")
    page.text(sentence(found), style="lead")
    for f in found:
        if len(found) > 1:
            page.heading(f.scheme)
        reads = range(len(f.measured))
        traces = [
            line(reads, f.measured, "measured", scheme_colour(f.scheme)),
            theory(reads, f.kernel, "kernel", dash="dash"),
            theory(reads, f.flow, "flow (Q = K = V = I)"),
        ]
        drawn = figure(traces, x="read", y="mean cosine", down={"range": [-0.05, 1.02]})
        page.figure(drawn, caption=f"{f.scheme}: how alike the tokens are that each branch reads.", height=340)
        if f is found[0]:
            page.details(
                "How to read this",
                "Kernel: random layers of infinite width, from the network's own tokens, branch sizes and spread of logits.",
                "Flow: Q = K = V = I and attention only, the setting of arXiv 2510.22026, with the same sizes.",
            )
    page.heading("The numbers")
    page.table(rows(found), name="bridge", caption="Mean cosine of the tokens; a miss is the largest over all reads.")
    return page
