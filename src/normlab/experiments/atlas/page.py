"""The atlas as one HTML page, and as a picture in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from normlab.experiments.atlas.measure import Atlas, AtlasEntry
from normlab.report import Page, console, sparkline
from normlab.report.colours import scheme_colours
from normlab.report.figures import Figure, Trace, figure, line, matrix, theory
from normlab.report.overview import DotColumn, dot_columns
from normlab.report.panels import Panel, panels
from normlab.report.terminal import columns as terminal_columns
from normlab.results import page_of
from normlab.schemes.names import parse_scheme

Values = Sequence[float | None]
FLAT = 1.5  # a stream that grows by less than this over the whole depth is said to stay
EVEN = 0.01  # weights that differ by less are one colour
FAMILIES = {
    "placement": "One stream, norms and gains around a branch",
    "sphere": "Everything on the unit sphere",
    "two-stream": "A normed and a raw stream",
    "multi-stream": "Several streams with learned mixing",
    "skips": "The embedding or the stream joins again",
    "depth-sources": "A layer reads all layers before it",
}
NAMED = ("pre_norm", "post_norm", "block_attn_res")  # in the sentence, where they are looked at
START_SAID = {
    "fair": "All schemes start alike: every matrix in proportion to its inputs, the embedding at mean square 1. What a "
    "scheme defines itself (gains, gates, the sphere) stays.",
    "gpt2": "All schemes start as GPT-2 does: matrices and embedding with a standard deviation of 0.02 at every width, "
    "output projections divided by the root of the number of branches. What a scheme defines itself stays.",
    "unit": "All branches have unit size at the start, as in the mean-field theory of Xiong et al.",
}
COUNT = {2: "both", 3: "all three"}
ALONE = 6  # so many schemes share one picture; more are drawn family by family


def rows(entries: Sequence[AtlasEntry]) -> list[dict[str, object]]:
    """The table: one line per scheme. Growth is taken from behind layer 1 to the last layer's last branch."""
    return [
        {
            "scheme": e.scheme,
            "growth": growth(e),
            "law": _over(e.law[-2], e.law[2]),
            "last adds": last_adds(e),
            "last effect": e.effect[-1],
            "grad 1/L": imbalance(e),
            "parameters": e.residual_parameters,
            "step": e.step_ratio,
        }
        for e in entries
    ]


def growth(e: AtlasEntry) -> float:
    return e.stream[-2] / e.stream[2]


def last_adds(e: AtlasEntry) -> float | None:
    return e.contribution[-1] if e.contribution else None


def imbalance(e: AtlasEntry) -> float | None:
    return _over(e.gradient_share[0], e.gradient_share[-1])


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def sentences(atlas: Atlas) -> list[str]:
    """The finding first: in whom the stream grows, and what the last branch changes."""
    entries = atlas.entries
    growing = [e for e in entries if not growth(e) <= FLAT]
    found = [
        f"In {len(growing)} of {len(entries)} schemes the stream grows by more than {FLAT:g} times over "
        f"{atlas.request.depth} layers, before any training."
    ]
    functions: dict[str, list[AtlasEntry]] = {}
    for e in sorted((e for e in entries if e.scheme in NAMED), key=lambda e: NAMED.index(e.scheme)):
        functions.setdefault(e.same_as or e.scheme, []).append(e)
    parts = [
        f"{100 * members[0].effect[-1]:.2g} % in {_together([e.scheme for e in members])}"
        + (f" ({COUNT[len(members)]} compute the same function here)" if len(members) > 1 else "")
        for members in functions.values()
    ]
    if parts:
        found.append(f"Taking out the last branch changes what the head reads by {', '.join(parts)}.")
    return found


def _together(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@page_of.register
def build(atlas: Atlas, *, command: str = "") -> Page:
    entries = atlas.entries
    page = Page("Schemes at initialisation", subtitle=atlas.request.shape)
    page.heading("Answer")
    for sentence in sentences(atlas):
        page.text(sentence, style="lead")
    drawn, height = overview(entries)
    page.figure(drawn, height=height, caption=OVERVIEW)
    page.details(
        "How to read this",
        f"{START_SAID[atlas.request.init]} Shape, text and random seed are the same for all, and nothing is trained. "
        "A dot right of the dotted line in the first column is a stream that grows: each later layer "
        "is a smaller part of it. A dot far left in the second column is a last branch that hardly counts. In the third, "
        "right of the line the first layer gets more gradient than the last.",
        "The effect of a branch is the mean over tokens of |h' - h| / |h|: h is what the head reads, h' the same when the "
        "branch writes zero and everything behind it is computed again. Schemes that compute the same function have the same "
        "effects. What a branch adds, over what it reads, has no such property: a branch that reads a mean of "
        "sources adds as much as one that reads their sum, and looks larger by their number.",
    )
    _portraits(page, entries)
    _mixing(page, entries)
    page.heading("The table")
    page.table(
        rows(entries),
        name="atlas",
        caption="growth: rms that the last branch reads over the rms behind layer 1; law: the same if branches of the "
        "sizes that this initialisation gives them were independent. last adds: size of the last "
        "branch's contribution over what it read. last effect: by how much what the head reads changes without the last "
        "branch. grad 1/L: gradient norm of the first layer over the last's. parameters: "
        "of the residual path. step: time of a training step over the first scheme's, interleaved, median.",
    )
    if command:
        page.heading("How it was measured")
        page.code(command)
    return page


OVERVIEW = (
    "Left: how many times the stream grows from behind layer 1 to the last branch (rms). Middle: by how much what the head "
    "reads changes without the last branch (relative). Right: the first layer's gradient over the last's. Dotted lines are "
    "at 1."
)


def overview(entries: Sequence[AtlasEntry]) -> tuple[Figure, int]:
    return dot_columns(
        [e.scheme for e in entries],
        [
            DotColumn("stream grows", {e.scheme: growth(e) for e in entries}),
            DotColumn("last effect", {e.scheme: e.effect[-1] for e in entries}, neutral=None),
            DotColumn("gradient", {e.scheme: imbalance(e) for e in entries}),
        ],
    )


def families(entries: Sequence[AtlasEntry]) -> dict[str, list[AtlasEntry]]:
    """One group where they are few."""
    if len(entries) <= ALONE:
        return {"": list(entries)}
    found: dict[str, list[AtlasEntry]] = {}
    for entry in entries:
        found.setdefault(parse_scheme(entry.scheme).card.family, []).append(entry)
    return found


def _portraits(page: Page, entries: Sequence[AtlasEntry]) -> None:
    page.heading("Through the depth")
    page.text(
        "Solid lines are measured. Dotted lines are the scheme's law: what independent branches of the same sizes would give."
    )
    for family, members in families(entries).items():
        if family:
            page.heading(FAMILIES.get(family, family), level=3)
        drawn, height = panels([
            Panel("Stream: rms of what a branch reads", _curves(members, lambda e: e.stream, law=True), "branch"),
            Panel("Gradient: share of each layer", _curves(members, lambda e: e.gradient_share), "layer"),
            Panel("What attention adds, over what it reads", _curves(members, lambda e: e.contribution[0::2]), "layer"),
            Panel("What the FFN adds, over what it reads", _curves(members, lambda e: e.contribution[1::2]), "layer"),
            Panel("Effect of attention on what the head reads", _curves(members, lambda e: e.effect[0::2]), "layer"),
            Panel("Effect of the FFN on what the head reads", _curves(members, lambda e: e.effect[1::2]), "layer"),
            Panel("How far attention turns the stream: 1 - cos", _curves(members, lambda e: e.influence[0::2]), "layer"),
            Panel("How far the FFN turns the stream: 1 - cos", _curves(members, lambda e: e.influence[1::2]), "layer"),
        ])  # fmt: skip
        names = ", ".join(e.scheme for e in members)
        page.figure(drawn, height=height, label=f"Stream, contributions, gradients and turns of {names}")


def show(atlas: Atlas) -> None:
    """To a person in a terminal: a line a scheme, all on one scale."""
    for text in picture(atlas, width=terminal_columns()):
        console().print(text)


def picture(atlas: Atlas, *, width: int) -> list[str]:
    """Lines of at most `width` characters."""
    entries = atlas.entries
    room = max(8, min(24, (width - 18 - 18) // 4))
    streams = [[v / e.stream[2] for v in _some(e.stream[2:-1], room)] for e in entries]
    adds = [_some(by_layer(e.contribution), room) for e in entries]
    effects = [_some(by_layer(e.effect), room) for e in entries]
    grads = [_some(e.gradient_share, room) for e in entries]
    scales = [_scale(part) for part in (streams, adds, effects, grads)]
    lines = [f"At initialisation: {atlas.request.shape}"]
    heads = ("stream", "adds", "effect", "gradient")
    lines.append(" " * 18 + "   ".join(f"{head:<{room}}" for head in heads) + "   grows")
    for entry, *parts in zip(entries, streams, adds, effects, grads, strict=True):
        drawn = [
            f"{sparkline(values, log=True, scale=scale) if scale else '':<{room}}"
            for values, scale in zip(parts, scales, strict=True)
        ]
        lines.append(f"{entry.scheme[:17]:<18}{'   '.join(drawn)}   {_times(growth(entry))}")
    lines += [
        "left to right: first to last layer, means of its branches; one logarithmic scale a column",
        "adds: size of what a branch adds, over what it reads",
        "effect: relative change of what the head reads when the branch is taken out",
    ]
    return [*lines, *sentences(atlas)]


def _times(value: float) -> str:
    return f"{value:.2g}x" if math.isfinite(value) else "inf"


def by_layer(values: Values) -> list[float | None]:
    """The mean of a layer's attention and FFN."""
    pairs = zip(values[::2], values[1::2], strict=True)
    return [None if a is None or b is None else (a + b) / 2 for a, b in pairs]


def _some(values: Values, room: int) -> list[float]:
    """So many, evenly, the first and the last among them."""
    known = [math.nan if v is None else v for v in values]
    if len(known) <= room:
        return known
    return [known[round(i * (len(known) - 1) / (room - 1))] for i in range(room)]


def _scale(parts: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """From the 6th to the 94th percentile, so that one scheme that explodes does not flatten the others."""
    known = sorted(v for values in parts for v in values if math.isfinite(v) and v > 0)
    return (known[len(known) // 16], known[-1 - len(known) // 16]) if known else None


def _mixing(page: Page, entries: Sequence[AtlasEntry]) -> None:
    mixed = [(e, e.mixing) for e in entries if e.mixing is not None and _uneven(e.mixing)]
    if not mixed:
        return
    page.heading("How depth is mixed")
    page.text(
        "A row is what one branch reads, the last row what the head reads. Its colours are the weights of the sources: the "
        "embedding (0) and the branches before it, over the row's largest. A scheme that starts as a plain sum or mean of "
        "its branches would be one colour, and is not drawn."
    )
    for entry, mixing in mixed:
        page.figure(_heat(mixing), height=360, caption=f"{entry.scheme}: {entry.equation}")


def _uneven(mixing: list[list[float]]) -> bool:
    return any(max(row[: i + 1]) - min(row[: i + 1]) > EVEN * max(row) for i, row in enumerate(mixing))


def _curves(entries: Sequence[AtlasEntry], of: Callable[[AtlasEntry], Values], *, law: bool = False) -> list[Trace]:
    colours = scheme_colours(entry.scheme for entry in entries)
    data = []
    for entry in entries:
        values, colour, group = of(entry), colours[entry.scheme], {"legendgroup": entry.scheme}
        xs = range(1, len(values) + 1)
        data.append(line(xs, values, entry.scheme, colour, **group))
        if law and entry.law[0]:
            scale = entry.stream[0] / entry.law[0]
            shown = [None if v is None else v * scale for v in entry.law]
            data.append(theory(xs, shown, f"{entry.scheme}, law", colour, showlegend=False, **group))
    return data


def _heat(mixing: list[list[float]]) -> Figure:
    scaled = [
        [v / (max(map(abs, row)) or 1.0) if source <= read else None for source, v in enumerate(row)]
        for read, row in enumerate(mixing)
    ]
    heat = matrix(scaled, zmin=0, zmax=1, hoverongaps=False)
    return figure([heat], x="source", y="read", down={"autorange": "reversed"}, layout={"showlegend": False})
