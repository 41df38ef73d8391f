"""`normlab theory bridge`: the dynamics' prediction laid over a real network, random or yours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Json, Seed


def register(app: typer.Typer) -> None:
    @app.command()
    def bridge(
        model: Annotated[
            str | None, typer.Argument(help="A normlab run, a Hugging Face folder or name; none: random networks.")
        ] = None,
        schemes: Annotated[
            str, typer.Option(help="Names or `all`; for a Hugging Face model, where its norms are.")
        ] = "all",
        dim: Annotated[int, typer.Option(help="Width of a random network.")] = 256,
        depth: Annotated[int, typer.Option(help="Layers of a random network.")] = 8,
        heads: Annotated[int, typer.Option(help="Heads of a random network.")] = 4,
        ffn: Annotated[str, typer.Option(help="none, relu, gelu, swiglu or geglu.")] = "relu",
        causal: Annotated[bool, typer.Option(help="Whether tokens see only earlier ones.")] = True,
        tokens: Annotated[int, typer.Option(help="Sequence length.")] = 32,
        text: Annotated[
            Path | None, typer.Option(help="With MODEL: a text to run it on (default: random ids).")
        ] = None,
        json: Json = False,
        out: Annotated[Path, typer.Option("--out", help="Folder for the page.", file_okay=False)] = Path("runs/theory"),
        seed: Seed = 0,
    ) -> None:
        """Angles between tokens by layer: measured, predicted by random layers of infinite width, and by the flow."""
        from normlab.probes.inputs.runs import is_run
        from normlab.report import console, print_json, table

        if model is None:
            found = _random_networks(schemes, dim, depth, heads, ffn, causal, tokens, seed, quiet=json)
        elif is_run(model):
            found = [_own(model, schemes, tokens, text, seed)]
        else:
            found = [_foreign(model, schemes, causal, tokens, text, seed)]
        page = _page(found).write(out / "bridge.html")
        if json:
            print_json({"bridges": [f.to_dict() for f in found], "page": str(page)})
            return
        console().print(table(rows(found), title="Mean cosine between tokens: measured and predicted"))
        console().print(f"page: {page}", markup=False)


def rows(found: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "scheme": f.scheme,
            "input": f.measured[0],
            "output": f.measured[-1],
            "kernel": f.kernel[-1],
            "largest miss": f.kernel_error,
            "flow": f.flow[-1],
            "largest miss ": f.flow_error,
        }
        for f in found
    ]


def _random_networks(
    schemes: str, dim: int, depth: int, heads: int, ffn: str, causal: bool, tokens: int, seed: int, *, quiet: bool
) -> list[Any]:
    import torch

    from normlab.dynamics.bridge import bridge, random_tokens
    from normlab.dynamics.fields import FIELDS, field_name
    from normlab.model import Transformer, TransformerConfig
    from normlab.report import progress
    from normlab.schemes import scheme

    names = list(FIELDS) if schemes == "all" else [field_name(s) for s in schemes.split(",") if s.strip()]
    found = []
    for name in progress(names, what="networks", quiet=quiet):
        torch.manual_seed(seed)
        shape: dict[str, Any] = {"dim": dim, "depth": depth, "heads": heads, "ffn": ffn, "causal": causal}
        config = TransformerConfig(
            vocab_size=512, scheme=scheme(name), positions="nope", init_std=max(dim, 1) ** -0.5, **shape
        )
        found.append(bridge(Transformer(config), random_tokens(512, batch=2, length=tokens, seed=seed)))
    return found


def _own(folder: str, schemes: str, tokens: int, text: Path | None, seed: int) -> Any:
    """A run knows its scheme and its mask. Its tokens are bytes, or whatever its task made: then random ids serve."""
    from normlab.dynamics.bridge import bridge, random_tokens
    from normlab.errors import InputError
    from normlab.probes.inputs.runs import load_run
    from normlab.probes.inputs.texts import tokenize

    loaded = load_run(folder)
    model: Any = loaded.model
    name = model.config.scheme.name
    if schemes not in ("all", name):
        raise InputError(f"--schemes {schemes}: this run was trained with {name}; leave the option out")
    ids = random_tokens(model.config.vocab_size, batch=2, length=tokens, seed=seed)
    if text is not None:
        found = tokenize(loaded, text.read_text(encoding="utf-8")).flatten()
        if len(found) < 2:
            raise InputError(f"--text {text}: {len(found)} tokens; two or more are needed to have an angle")
        length = min(tokens, len(found))
        ids = found[: len(found) // length * length][: 8 * length].view(-1, length)
    return bridge(model, ids)


def _foreign(model: str, schemes: str, causal: bool, tokens: int, text: Path | None, seed: int) -> Any:
    from normlab.dynamics.bridge import bridge, random_tokens
    from normlab.dynamics.fields import field_name
    from normlab.errors import InputError, require

    if model.startswith((".", "/", "~")) and not Path(model).expanduser().exists():
        raise InputError(f"there is no folder {model!r}; pass a normlab run, a model folder or a Hugging Face name")
    if schemes == "all" or "," in schemes:
        raise InputError(
            "say where the model's norms are with --schemes pre_norm (GPT-2, Llama), peri_norm, res_norm or post_norm"
        )
    name = field_name(schemes)
    transformers = require("transformers", extra="hf", purpose="a Hugging Face model")
    try:
        network = transformers.AutoModel.from_pretrained(model, trust_remote_code=False, use_safetensors=True)
        ids = random_tokens(network.config.vocab_size, batch=2, length=tokens, seed=seed)
        if text is not None:
            encoder = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=False)
            ids = encoder(text.read_text(encoding="utf-8"), return_tensors="pt")["input_ids"][:, :tokens]
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"cannot load the model {model!r}: {str(error).splitlines()[0]}") from None
    return bridge(network, ids, scheme=name, causal=causal)


def _page(found: list[Any]) -> Any:
    from normlab.report import Page

    page = Page("Theory laid over real networks", subtitle="mean cosine between tokens")
    page.text(
        "kernel: random layers of infinite width, from the network's own tokens, branch sizes and spread of logits. "
        "flow: Q = K = V = I and attention only, the setting of arXiv 2510.22026, with the same sizes."
    )
    page.table(rows(found), name="bridge")
    for f in found:
        page.heading(f.scheme)
        curves = {"measured": f.measured, "kernel": f.kernel, "flow (Q = K = V = I)": f.flow}
        dashes = {"measured": "solid", "kernel": "dash"}
        data = [
            {"x": list(range(len(y))), "y": y, "name": n, "type": "scatter", "line": {"dash": dashes.get(n, "dot")}}
            for n, y in curves.items()
        ]
        axes = {
            "xaxis": {"title": {"text": "read"}},
            "yaxis": {"title": {"text": "mean cosine"}, "range": [-0.05, 1.02]},
        }
        page.figure({"data": data, "layout": axes}, caption=f"{f.scheme}: angles by branch", height=300)
    return page
