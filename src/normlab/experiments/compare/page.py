"""The page of a comparison: the answer and one table, then the same picture of every scheme, theory laid over it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from normlab.experiments.compare.result import (
    MARKS,
    Comparison,
    LayerMeans,
    LossCurve,
    SchemeRow,
    SettingResult,
)
from normlab.experiments.compare.sentences import own_starts
from normlab.experiments.runs.records import Gaps
from normlab.report import Page
from normlab.report.colours import THEORY, scheme_colours
from normlab.report.figures import Trace, figure, heatmaps, intervals, line, small_multiples, ticks
from normlab.report.figures import theory as predicted
from normlab.results import Plain, as_row, flat, page_of
from normlab.stats import Paired

BYTES = 2**20
Line = dict[str, Plain]
Draw = Callable[[SchemeRow], list[Trace]]
Of = Callable[[LayerMeans], Gaps | None]


@page_of.register
def build(result: Comparison) -> Page:
    settings = result.settings
    names = sorted({found.scheme for s in settings for found in s.schemes})
    page = Page("Which scheme should I use?", subtitle=f"normlab compare: {', '.join(names)}")
    for note in result.notes:
        page.text(note, style="warn")
    for setting, name in zip(settings, names_of(settings), strict=True):
        _setting(page, setting, name)
    page.heading("Every run")
    rows = [flat(run) for run in result.cells]
    page.csv(rows, name="cells", caption=f"all {len(rows)} runs, with their learning rates, seeds and costs")
    return page


def summary_rows(setting: SettingResult) -> list[Line]:
    """The one table: quality with its interval, and cost beside it."""
    base, controls = setting.reference, any(row.against_control for row in setting.schemes)
    rows: list[Line] = []
    for row in setting.schemes:
        test, is_base = row.difference, row is base
        reach = None if row.low is None or row.high is None else (row.high - row.low) / 2
        rows.append({
            "scheme": row.scheme, "loss": row.mean, "± 95 %": reach,
            f"vs {setting.baseline}": None if is_base else test.mean,
            "95 % interval": "" if is_base else reach_words(test),
            **({"p (Holm)": None if is_base else test.adjusted} if setting.is_ordered else {}),
            **(_beside_control(row, p=setting.is_ordered) if controls else {}),
            "diverged": row.diverged, "best lr": row.lr,
            "step time": None if row.cost is None else round(row.cost.time, 3),
            "saved MB": None if row.activation_bytes is None else round(row.activation_bytes / BYTES, 1),
            "params (M)": round(row.parameters / 1e6, 3), "MFLOP a token": _millions(row.flops_per_token),
        })  # fmt: skip
    for key in ("diverged", "step time"):
        if not any(line[key] for line in rows):
            rows = [{k: v for k, v in line.items() if k != key} for line in rows]
    return rows


def _millions(value: float | None) -> float | None:
    return None if value is None else round(value / 1e6, 2)


def reach_words(test: Paired | None) -> str:
    return "" if test is None or test.low is None or test.high is None else f"{test.low:+.4f} to {test.high:+.4f}"


def _beside_control(row: SchemeRow, *, p: bool) -> Line:
    """Against Pre-Norm with the same start."""
    test = row.against_control
    found: Line = {"vs its control": test.mean if test else None, "interval, control": reach_words(test)}
    return {**found, "p, control": test.adjusted if test else None} if p else found


def start_rows(setting: SettingResult) -> list[Line]:
    """How each model begins."""
    return [
        {
            "scheme": row.scheme, "embedding rms": row.embedding_rms, "q, k": row.query_and_key,
            "v, up": row.value_and_up, "out, down": row.out_and_down, "first loss": row.first_loss, "q-k norm": row.qk_norm,
            "weight decay": f"{row.weight_decay:g}{'' if row.decays_embeddings else ', not on embeddings'}",
            **({"from": row.source} if row.source else {}),
        }
        for row in setting.starts
    ]  # fmt: skip


STARTS_CAPTION = (
    "How each begins, measured before the first step. Matrices: standard deviation times the square root of the inputs, "
    "median over the layers."
)
RECIPES_SAID = {
    (
        "fair",
        "fair",
    ): "All schemes begin alike: the same embedding, and each matrix a multiple of inputs^-1/2. They share "
    "the weight decay.",
    (
        "authors",
        "fair",
    ): "Each scheme is trained as its authors run it, where that is known (embedding, initialisation, norm "
    "on q and k, weight decay); the others begin with the start that all share. A control is pre_norm with the start of "
    "another scheme's authors: the difference to it is the scheme's own.",
    (
        "authors",
        "old",
    ): "Each scheme is trained as its authors run it, where that is known (embedding scale, norm on q and "
    "k, weight decay), and each matrix begins as the scheme's authors draw it, or with standard deviation 0.02 at any width. "
    "So schemes differ in their start, and no control shows what that alone does.",
    (
        "shared",
        "old",
    ): "All schemes share embedding scale and weight decay, but not the initialisation: each matrix begins "
    "as the scheme's authors draw it (Xavier, GPT-2's), or with standard deviation 0.02 at any width.",
}
BACKBONE_SAID = "All models begin as the architecture does; a scheme's own parameters begin as its definition says."


def more_rows(setting: SettingResult) -> list[Line]:
    """What the one table has no room for."""
    rows: list[Line] = []
    for row in setting.schemes:
        speed, cost, reached = row.tokens_per_second, row.cost, row.reached_baseline
        bits = setting.setting.bits_per_byte(row.mean)
        rows.append({
            "scheme": row.scheme, "seeds": len(row.losses), "lost at lr x2": row.lost_at_twice_lr,
            "rate": "" if row.at_edge is None else f"{row.at_edge} tried",
            "steps to baseline": row.steps_to_baseline, "seeds that got there": f"{reached[0]} of {reached[1]}",
            "vs baseline, fresh seeds": row.without_tuning_seed,
            "train loss": row.train,
            **({} if bits is None else {"bits per byte": bits}),
            "loss at the baseline's time": row.loss_at_equal_time,
            "step time, quartiles": "" if cost is None else f"{cost.low:.2f} to {cost.high:.2f}",
            "tokens/s": None if speed is None else round(speed),
            "peak MB": None if row.peak_bytes is None else round(row.peak_bytes / BYTES),
            "scheme's parameters": row.scheme_parameters,
        })  # fmt: skip
    return rows


def names_of(settings: Sequence[SettingResult]) -> list[str]:
    """What tells settings apart: nothing, the depth, the width too; a number where that is not enough."""
    shapes = [s.setting for s in settings]
    depths = [f"{s.depth} layers" for s in shapes]
    widths = [f"{s.depth} layers of width {s.dim}" for s in shapes]
    numbered = [f"{name}, {i}" for i, name in enumerate(widths, 1)]
    return next((found for found in ([""] * len(shapes), depths, widths) if len(set(found)) == len(shapes)), numbered)


def _setting(page: Page, setting: SettingResult, name: str) -> None:
    shape, rows = setting.setting, setting.schemes
    tag = "" if not name else f" ({name})"
    slug = "".join(f"-{word}" for word in re.findall(r"[a-z0-9]+", name))
    page.heading(f"The answer{tag}")
    for sentence in setting.answer:
        page.text(sentence, style="lead")
    if setting.own_starts:
        page.text(own_starts(setting.own_starts))
    if setting.starts and shape.recipe == "authors":
        page.table(start_rows(setting), name=f"starts{slug}", caption=STARTS_CAPTION)
    _forest(page, setting)
    _training(page, setting, tag)
    alive = [row for row in rows if any(row.layers[mark].magnitude for mark in MARKS)]
    _layers(page, alive, shape.depth, tag)
    _numbers(page, setting, tag, slug)
    _downloads(page, alive, slug)


def _forest(page: Page, setting: SettingResult) -> None:
    """The answer as a picture: the difference to the baseline with its interval, in the order of the table."""
    base, rows = setting.baseline, setting.schemes
    found = {row.scheme: (row.difference.mean, row.difference.low, row.difference.high)
             for row in rows if row.scheme != base and row.difference.mean is not None}  # fmt: skip
    if found:
        drawn, height = intervals(found, x=f"loss minus {base}'s (nats)")
        few = all(low is None for _, low, _ in found.values())
        said = "Open circles: one seed, no interval." if few else "Bars: 95 % intervals over seeds, paired by seed."
        page.figure(
            drawn,
            height=height + 20,
            caption=f"Held-out loss minus {base}'s at each scheme's best rate: lower is left. {said}",
        )
    gone = [row.scheme for row in rows if row.mean is None]
    if gone:
        page.text(f"Diverged, and not in the picture: {', '.join(gone)}.", style="bad")
    shape = setting.setting
    known = shape.context_free_loss
    floor = (
        "" if known is None else f" No model that ignores the context gets below {known:.3f} on these held-out data."
    )
    epochs = "" if shape.epochs is None else f" ({shape.epochs:.2g} epochs)"
    begun = RECIPES_SAID.get((shape.recipe, shape.start), BACKBONE_SAID)
    if shape.architecture is not None:
        begun = BACKBONE_SAID
    page.details(
        "How to read this, and how it was measured",
        f"{begun} {shape.steps} steps of {shape.batch} x {shape.length} tokens from "
        f"{shape.data}{epochs}; {shape.optimizer}, {shape.schedule} schedule, {shape.warmup} steps of warm-up.{floor}",
        "Differences are paired by seed (same data, same order). Unless said otherwise above, rates are chosen on seed 0, "
        "which is one of the seeds; the second table has the difference without it.",
        "The loss at the baseline's time is read off a scheme's own curve at the step where it has trained for as long as "
        "the baseline's whole run takes: its rate has not decayed there. Shapes are the same for all schemes; what a scheme "
        "adds in parameters and arithmetic counts as its cost.",
        "Step times are of steps in turn with pre_norm's, on one thread, each scheme beside it; saved MB are the activations "
        "that autograd keeps for one step; peak MB is a worker's whole process.",
    )


def _numbers(page: Page, setting: SettingResult, tag: str, slug: str) -> None:
    page.heading(f"The numbers{tag}")
    for name, text in setting.statements.items():
        row = next(r for r in setting.schemes if r.scheme == name)
        test = row.difference
        style = "good" if test.lower else "warn" if test.higher else "note"
        page.text(text, style="bad" if row.mean is None else style if name != setting.baseline else "note")
    page.table(
        summary_rows(setting),
        name=f"summary{slug}",
        caption="Held-out loss (nats per token) at the best learning rate of each scheme, and its cost. Step time: of a "
        "training step, over the baseline's.",
    )
    page.table(more_rows(setting), name=f"more{slug}", caption="Tuning, and more of the cost.")
    if setting.starts and setting.setting.recipe != "authors":
        page.table(start_rows(setting), name=f"starts{slug}", caption=STARTS_CAPTION)


def _training(page: Page, setting: SettingResult, tag: str) -> None:
    rows, base = setting.schemes, setting.baseline
    page.heading(f"Training{tag}")
    colours = scheme_colours(row.scheme for row in rows)
    rates = [
        line(
            [r.lr for r in row.rates],
            [r.mean for r in row.rates],
            row.scheme,
            colours[row.scheme],
            mode="lines+markers",
        )
        for row in rows
    ]
    named = ticks(sorted({r.lr for row in rows for r in row.rates}))
    drawn = figure(rates, x="learning rate", y="held-out loss (nats)", log_x=True, across=named)
    page.figure(drawn, caption="Held-out loss against the learning rate, of the runs that chose it. A gap: the run "
                "diverged. The flatter the bottom, the less the rate matters.")  # fmt: skip
    curves = {row.scheme: _curves(row.curve, "this scheme", colours[row.scheme]) for row in rows}
    for name, traces in curves.items():
        if name != base:
            traces[:0] = _curves(setting.reference.curve, base, THEORY)
    drawn, height = small_multiples(curves, x="step", y="held-out loss", layout={"showlegend": False})
    page.figure(drawn, height=height, caption=f"Held-out loss while training, a line per seed; grey: {base}.")
    gaps = {
        row.scheme: [line([p[0] for p in gap], [p[1] for p in gap], f"seed {s}", int(s))
                        for s, gap in row.decay_gap.seeds.items()]
        for row in rows if row.scheme != base
    }  # fmt: skip
    if gaps:
        drawn, height = small_multiples(gaps, x="step", y=f"loss - {base}'s")
        page.figure(
            drawn, height=height, caption=f"The gap to {base} through the decay of the learning rate, a line per seed."
        )


def _curves(curves: Mapping[int, LossCurve], name: str, colour: str) -> list[Trace]:
    return [line(c.step, c.loss, name, colour, width=1.5) for c in curves.values()]


def _layers(page: Page, rows: Sequence[SchemeRow], depth: int, tag: str) -> None:
    page.heading(f"What the layers do{tag}")
    page.text(
        "Means over seeds, at the start, in the middle and at the end of training. Solid: attention, or the whole layer; "
        "dashed: the FFN; dotted: theory.",
        style="note",
    )

    def draw(of: Of, y: str, caption: str, *, x: str = "layer", log: bool = False, theory: Draw | None = None) -> None:
        panels = {}
        for row in rows:
            lines = [
                each
                for i, mark in enumerate(MARKS)
                if (v := of(row.layers[mark]))
                for each in _split(v, depth, mark, i)
            ]
            lines += theory(row) if theory else []
            if lines:
                panels[row.scheme] = lines
        if panels:
            drawn, height = small_multiples(panels, x=x, y=y, log_y=log)
            page.figure(drawn, height=height, caption=caption)

    draw(
        lambda found: found.magnitude, "rms of the stream", "Magnitude of what each branch reads, before its norm; the last "
        "point is what the head reads. Dotted: the scheme's law for independent variance-preserving branches, shape only "
        "(scaled to the start). Dashed: what the measured outputs would sum to if they were orthogonal, at the end.",
        log=True, theory=_growth_theory,
    )  # fmt: skip
    draw(lambda found: found.output, "rms of the output", "Magnitude of what each branch adds.", log=True)
    draw(
        lambda found: found.contribution, "output / stream", "What a branch adds, relative to what it reads.", log=True,
        theory=_contribution_theory,
    )  # fmt: skip
    draw(
        lambda found: found.effect, "relative change", "Effect of a branch: how much what the head reads changes when the "
        "branch is taken out, mean over tokens. Equal where two schemes compute the same function; what a branch adds "
        "is not.", log=True,
    )  # fmt: skip
    older = [row.scheme for row in rows if not any(row.layers[mark].effect for mark in MARKS)]
    if older:
        page.text(f"Effect of a branch: n/a for {', '.join(older)} (trained before it was measured).", style="note")
    draw(
        lambda found: found.gradient_share, "share of the gradient norm", "Where the gradient is. Dotted: Xiong et al.'s law "
        "at the start: (2/3)^((L-l)/2) for Post-Norm, flat for Pre-Norm.", x="layer",
        theory=lambda row: _gradient_theory(row, depth),
    )  # fmt: skip
    draw(
        lambda found: found.block_influence, "1 - cos(in, out)", "Block influence: how far a layer turns the stream.",
        x="layer",
    )  # fmt: skip
    draw(
        lambda found: found.token_cosine, "mean cosine of two tokens",
        "Cosine collapse: near 1, the tokens of a sequence are all alike.",
    )  # fmt: skip
    draw(lambda found: found.skip, "loss added", "Loss added by skipping one layer.", x="layer")
    draw(lambda found: found.prune, "loss", "Loss after removing the k least useful layers.", x="layers removed")
    mixings = {row.scheme: m for row in rows if (m := row.layers["end"].mixing)}
    if mixings:
        drawn, height = heatmaps(
            {k: [[v if v is None else abs(v) for v in r] for r in m] for k, m in mixings.items()}, x="source", y="read"
        )
        page.figure(drawn, height=height, caption="Depth mixing at the end of training: |M[l, i]|, how much of source i "
                    "(0: the embedding) read l holds. Schemes that norm the stream itself have no such matrix.")  # fmt: skip


def _split(values: Gaps, depth: int, mark: str, colour: int) -> list[Trace]:
    """Attention and FFN as two lines over layers, where there are both; what the head reads ends the first."""
    if len(values) < 2 * depth:
        return [line(range(1, len(values) + 1), values, mark, colour)]
    attention, ffn = values[0::2], values[1::2]
    return [
        line(range(1, len(attention) + 1), attention, mark, colour),
        line(range(1, len(ffn) + 1), ffn, f"{mark}, FFN", colour, dash="dash", width=1.4),
    ]


def _halves(count: int) -> list[float]:
    """Places of branches on an axis of layers: the FFN of layer 1 stands at 1.5."""
    return [1 + index / 2 for index in range(count)]


def _growth_theory(row: SchemeRow) -> list[Trace]:
    lines: list[Trace] = []
    law, measured = row.law, row.layers["start"].magnitude
    # A stream without a norm may overflow on its first pass: there are gaps then, and no law to scale.
    known = [value for value in measured or () if value is not None and value > 0]
    shape = [math.sqrt(value) for value in law if isinstance(value, float) and value > 0]
    if measured and len(known) == len(measured) and len(shape) == len(law):
        scale = math.exp(sum(math.log(m / s) for m, s in zip(known, shape, strict=True)) / len(shape))
        lines.append(predicted(_halves(len(shape)), [scale * s for s in shape], "law at the start"))
    independent = row.layers["end"].independent
    if independent:
        lines.append(predicted(_halves(len(independent)), independent, "end, if orthogonal", dash="dash"))
    return lines


def _contribution_theory(row: SchemeRow) -> list[Trace]:
    """For schemes that add to one stream: sqrt of what the law adds, over sqrt of what is there."""
    law = [value for value in row.law if isinstance(value, float)]
    if len(law) < len(row.law) or any(b <= a for a, b in pairwise(law)):
        return []
    shares = [math.sqrt((b - a) / a) for a, b in pairwise(law)]
    return [predicted(_halves(len(shares)), shares, "law at the start")]


def _gradient_theory(row: SchemeRow, depth: int) -> list[Trace]:
    power = {"post_norm": 2 / 3, "pre_norm": 1.0}.get(row.name)
    if power is None:
        return []
    sizes = [power ** ((depth - l) / 2) for l in range(1, depth + 1)]
    return [predicted(range(1, depth + 1), [s / sum(sizes) for s in sizes], "law at the start")]


def _downloads(page: Page, rows: Sequence[SchemeRow], slug: str) -> None:
    table: list[Line] = []
    for row in rows:
        for mark in MARKS:
            measured = as_row(row.layers[mark])
            lists = {k: v for k, v in measured.items() if isinstance(v, list) and v and k != "mixing"}
            for index in range(max((len(v) for v in lists.values()), default=0)):
                values = {k: v[index] if index < len(v) else None for k, v in lists.items()}
                table.append({"scheme": row.scheme, "when": mark, "index": index, **values})
    page.csv(table, name=f"layers{slug}", caption="every value of the pictures of layers")
    curves = [
        {"scheme": row.scheme, "lr": row.lr, "seed": seed, "step": step, "loss": loss}
        for row in rows
        for seed, curve in row.curve.items()
        for step, loss in zip(curve.step, curve.loss, strict=True)
    ]
    page.csv(curves, name=f"training{slug}", caption="the held-out loss while training, every seed")
    mixing = [
        {"scheme": row.scheme, "read": read, "source": source, "weight": weight}
        for row in rows
        for read, weights in enumerate(row.layers["end"].mixing or ())
        for source, weight in enumerate(weights[: read + 1])
    ]
    if mixing:
        page.csv(mixing, name=f"mixing{slug}", caption="the depth-mixing matrices at the end of training")
