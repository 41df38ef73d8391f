"""Networks at initialisation: the mean-field setting, deep streams, blocks of sources."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import torch

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.model import Transformer, TransformerConfig
from normlab.model.attention import Pass
from normlab.observe.portrait import rms, walk
from normlab.schemes import parse_scheme
from normlab.schemes.depth_stream import Sources
from normlab.theory.contributions import ContributionSetting, contributions, network
from normlab.theory.mean_field import MeanField, MeanFieldSetting, mean_field
from normlab.theory.widths import width_sweep

DEPTHS = (2, 4, 8, 16)


@measure("mean-field", seeds=160, seconds=1.5)
def mean_fields(bench: Bench) -> Findings:
    """Stream and gradients under the assumptions of Xiong et al.; a seed is eight draws."""
    arms = ("post_norm", "pre_norm", "pre_norm(final_norm=false)")
    seen = {arm: [mean_field(arm, MeanFieldSetting(seed=seed, depths=DEPTHS)) for seed in bench.seeds] for arm in arms}
    layers = range(1, DEPTHS[-1] + 1)
    found: list[Measurement] = []
    for arm, runs in seen.items():
        by_depth = [[at.down[-1] for at in run.depths] for run in runs]
        found.append(curve("gradient of the last FFN by depth", DEPTHS, by_depth, arm, axis="layers"))
        spread = [max(run.depths[-1].down) / min(run.depths[-1].down) for run in runs]
        found.append(number("largest over smallest gradient of a layer", spread, arm))
    streams = [_behind_layers(run) for run in seen["pre_norm"]]
    before = [run.fits.summed_after_ffn for run in seen["post_norm"]]
    found += [
        curve("mean square of the stream", layers, streams, "pre_norm", axis="layer"),
        number("smallest mean square added by a layer", [min(_steps(row)) for row in streams], "pre_norm"),
        number("largest mean square added by a layer", [max(_steps(row)) for row in streams], "pre_norm"),
        number("mean square before the norm", before, "post_norm"),
    ]
    return Findings(found, {"d": 64, "tokens": 16, "draws a seed": 8, "mode": "paper"})


def _steps(stream: list[float]) -> list[float]:
    """What each layer adds, averaged over itself and its neighbours: one layer of eight draws is noisy."""
    added = [b - a for a, b in pairwise([1.0, *stream])]
    return [fmean(added[max(0, i - 1) : i + 2]) for i in range(len(added))]


def _behind_layers(run: MeanField) -> list[float]:
    """The mean square behind each layer of the deepest network, over that of the input."""
    stream = run.depths[-1].stream
    return [h / stream[0] for h in stream[2::2]]


@measure("mean-field-widths", seeds=4, seconds=12)
def widths(bench: Bench) -> Findings:
    """The gradient of Post-Norm's last FFN over the width, beside the bound."""
    dims = (32, 64, 128, 256)
    sweeps = [width_sweep("post_norm", dims, MeanFieldSetting(seed=seed)) for seed in bench.seeds]
    found = [curve("gradient of the last FFN by width", dims, [s.gradients for s in sweeps], "post_norm", axis="width")]
    found.append(number("exponent of d sqrt(ln d) over the same widths", sweeps[0].bound_exponent, exact=True))
    return Findings(found, {"layers": 8, "tokens": 16, "draws a seed": 8, "mode": "paper"})


LAYERS = (1, 2, 4, 8, 16, 32, 64, 96)


@measure("deep-stream", seeds=10, seconds=8)
def deep_stream(bench: Bench) -> Findings:
    """96 layers: the stream behind each, and each layer's share of it, for both initialisations."""
    found: list[Measurement] = []
    for scheme in ("pre_norm", "post_norm"):
        for init in ("paper", "gpt2"):
            arm = f"{scheme}, {init} init"
            runs = [contributions(scheme, ContributionSetting(init=init, seed=seed)) for seed in bench.seeds]  # type: ignore[arg-type]
            found += [
                curve("rms of the stream", LAYERS, [_at(r.stream) for r in runs], arm, axis="layer"),
                curve("share of a layer in norm", LAYERS, [_at(r.share) for r in runs], arm, axis="layer"),
                curve(
                    "squared share of a layer", LAYERS, [[s * s for s in _at(r.share)] for r in runs], arm, axis="layer"
                ),
                number("exponent of the share over all layers from 8 on", [r.share_exponent for r in runs], arm),
                number("smallest share of a layer in norm", [min(r.share) for r in runs], arm),
                number("share of the last of 96 layers in norm", [r.share[-1] for r in runs], arm),
            ]
    return Findings(found, {"layers": 96, "d": 128, "tokens": 16})


def _at(values: list[float]) -> list[float]:
    return [values[layer - 1] for layer in LAYERS]


@measure("null-share-of-the-last-of-96-layers-in-norm", seeds=24, seconds=1.5)
def null_share(bench: Bench) -> Findings:
    runs = [contributions("pre_norm", ContributionSetting(seed=1000 + seed)) for seed in bench.seeds]
    shares = [run.share[-1] for run in runs]
    return Findings([number("share of the last of 96 layers in norm", shares, "pre_norm, paper init")])


@measure("000-08", seeds=3, seconds=2)
def post_norm_bounds(bench: Bench) -> Findings:
    """Every read behind a norm, with weights as they are and ten times as large."""
    rows = []
    for seed in bench.seeds:
        model = network(parse_scheme("post_norm"), ContributionSetting(depth=24, dim=64, seed=seed)).double()
        for scale in (1.0, 10.0):
            with torch.no_grad():
                for p in model.branches.parameters():
                    p.mul_(scale)
            rows.append(_reads_behind_norms(model, seed))
    places = range(1, len(rows[0]) + 1)
    found = curve("rms of the stream at every read", places, rows, "post_norm", axis="read")
    return Findings([found], {"layers": 24, "d": 64, "weights": "as initialised, and 10 times"})


@torch.no_grad()
def _reads_behind_norms(model: Transformer, seed: int) -> list[float]:
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(seed))
    seen = walk(model, lambda: model.features(tokens))
    return [rms(h) for h in seen.reads[1:]]


@measure("000-18", seeds=6, seconds=4)
def open_blocks(bench: Bench) -> Findings:
    """The running sum of the open block while the stream passes, in a network with unit branches."""
    size, blocks = 6, 4
    resets: list[float] = []
    rows: list[list[float]] = []
    for seed in bench.seeds:
        sums = _open_sums(seed, size=size, blocks=blocks)
        rows.append([fmean(block[place] for block in sums) for place in range(size)])
        resets.append(fmean(after[0] / before[-1] for before, after in pairwise(sums)))
    found = [
        number("open sum behind a boundary over before it", resets, "block_attn_res"),
        curve(
            "rms of the open sum by place in the block",
            range(1, size + 1),
            rows,
            "block_attn_res",
            axis="branch of the block",
        ),
    ]
    return Findings(found, {"blocks": blocks, "branches a block": size, "d": 128, "init": "paper"})


@torch.no_grad()
def _open_sums(seed: int, *, size: int, blocks: int) -> list[list[float]]:
    """rms of the open block's sum behind each of its branches, block by block."""
    depth = size * blocks // 2
    scheme = parse_scheme(f"block_attn_res(blocks={blocks})")
    model = network(scheme, ContributionSetting(depth=depth, seed=seed))
    tokens = torch.randint(256, (4, 32), generator=torch.Generator().manual_seed(seed))
    stream = model.scheme.open(model.embed(tokens, torch.arange(32)))
    shared, found = Pass(), []
    for site, branch in zip(model.sites, model.branches, strict=True):
        x, carry = model.scheme.read(stream, site)
        stream = model.scheme.write(stream, branch(x, shared), carry, site)
        assert isinstance(stream, Sources)
        opened = stream.closed[-1] if stream.partial is None else stream.partial
        found.append(rms(opened))
    return [found[start : start + size] for start in range(0, len(found), size)]


def small(scheme: str, seed: int, **options: object) -> Transformer:
    """A model of two heads, four layers, float64, with seeded weights."""
    torch.manual_seed(seed)
    shape: dict[str, object] = {"vocab_size": 64, "dim": 32, "depth": 4, "heads": 2, "start": "authors", **options}
    return Transformer(TransformerConfig(scheme=parse_scheme(scheme), **shape)).double()  # type: ignore[arg-type]
