"""Every scheme of the single-stream family, a row each:  x <- out( a x + b res( F( c pre(x) ) ) ).

Add a scheme: add a row. `normlab schemes`, the contract suite and the documentation pick it up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, cast

from pydantic import Field, create_model

from normlab.schemes.base import GPT2, XAVIER, Card, Demands, Init, Site
from normlab.schemes.placement import Learned, Options, PlacementConfig, PlacementRow


# ---------------------------------------------------------------------------------------------------------------------
# Options that some rows add
# ---------------------------------------------------------------------------------------------------------------------
class MixOptions(PlacementConfig):
    post_fraction: float = Field(
        0.25, ge=0, le=1, description="share of the layers, from the first on, that are Post-LN"
    )

    def is_post(self, site: Site) -> bool:
        return site.layer <= math.floor(self.post_fraction * site.layers + 1e-9)  # 0.29 of 100 is 29


class DeepNormOptions(PlacementConfig):
    alpha: float | None = Field(None, gt=0, description="skip gain; null: (2L)^(1/4)")
    beta: float | None = Field(None, gt=0, description="initial gain of v, out, fc1, fc2; null: (8L)^(-1/4)")


class KeelOptions(PlacementConfig):
    alpha: float | None = Field(None, gt=0, description="skip gain; null: M, the number of branches")
    plain_first_layer: bool = Field(
        True, description="layer 1 has alpha = 1, and its attention no norm after the addition"
    )

    def first(self, site: Site) -> bool:
        return self.plain_first_layer and site.layer == 1


class ReZeroOptions(PlacementConfig):
    initial: float = Field(0.0, description="initial value of the scalar of each layer")


class LayerScaleOptions(PlacementConfig):
    initial: float | None = Field(
        None, description="initial gain; null: CaiT's 0.1 / 1e-5 / 1e-6 for <= 18 / <= 24 / more layers"
    )

    def value(self, site: Site) -> float:
        if self.initial is not None:
            return self.initial
        return 0.1 if site.layers <= 18 else 1e-5 if site.layers <= 24 else 1e-6


class ScalingOptions(PlacementConfig):
    power: float = Field(0.5, description="scale of layer l is l^-power")


class AdminOptions(PlacementConfig):
    omega: Literal["closed_form", "one"] = Field(
        "closed_form", description="sqrt(i) for branch i (unit branch variances), or 1; Scheme.profile_ measures it"
    )


class HybridOptions(PlacementConfig):
    pre_first_layer: bool = Field(False, description="HybridNorm*: layer 1 is Pre-Norm (q, k, v norms stay)")

    def first(self, site: Site) -> bool:
        return self.pre_first_layer and site.layer == 1


# ---------------------------------------------------------------------------------------------------------------------
# Growth laws: (site, mean square before, options) -> mean square after
# ---------------------------------------------------------------------------------------------------------------------
def _one(site: Any, before: float, options: Options) -> float:
    return 1.0


def _plus_one(site: Any, before: float, options: Options) -> float:
    return before + 1.0


_POST = PlacementRow(
    Card(
        family="placement",
        equation="x <- N(x + F(x))",
        citation="Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762",
        growth="constant: every read has mean square 1 (Xiong et al.: 3d/2 before the norm)",
        init="Xavier normal",
        extra_parameters="M*N",
        traffic="2d read, 1d written, one norm on the stream",
        traps=(
            "needs learning-rate warm-up at depth",
            "Xiong et al. give its gradient a factor (2/3)^((L-l)/2) toward the input; that is the skip path alone, and "
            "with the branches' share it is nearly flat under their assumptions (normlab theory mean-field)",
            "BERT adds a norm after the embedding: embedding_norm: true",
        ),
    ),
    out=True,
    init=XAVIER,
    growth=_one,
)
_PRE = PlacementRow(
    Card(
        family="placement",
        equation="x <- x + F(N(x))",
        citation="Baevski and Auli 2018, arXiv 1809.10853; analysed by Xiong et al. 2020, arXiv 2002.04745",
        growth="mean square 1 + i after i branches: the norm grows like sqrt(depth)",
        init="GPT-2: N(0, 0.02^2), residual projections divided by sqrt(2L)",
        extra_parameters="(M+1)*N",
        traps=("each branch's share of the stream falls like 1/sqrt(l)", "the final norm is part of the scheme"),
    ),
    pre=True,
    final=True,
    init=GPT2,
    growth=_plus_one,
)

ROWS: dict[str, tuple[PlacementRow, type[PlacementConfig]]] = {
    "post_norm": (_POST, PlacementConfig),
    "pre_norm": (_PRE, PlacementConfig),
    "peri_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + N(F(N(x)))",
                citation="Kim et al. 2025, Peri-LN, arXiv 2502.02732; Gemma 2, Grok ('double' or sandwich norm)",
                growth="mean square 1 + i: each branch adds exactly its gain squared",
                extra_parameters="(2*M+1)*N",
                traps=("what joins the stream is N(F(.)), not the module's output: probes must look behind the norm",),
            ),
            pre=True,
            res=True,
            final=True,
            growth=_plus_one,
        ),
        PlacementConfig,
    ),
    "peri_init_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- N(embedding); x <- x + N(F(N(x)))",
                citation="Kim et al. 2025, Peri-LN with its optional embedding norm, arXiv 2502.02732",
                growth="mean square 1 + i",
                extra_parameters="(2*M+2)*N",
            ),
            pre=True,
            res=True,
            embedding=True,
            final=True,
            growth=_plus_one,
        ),
        PlacementConfig,
    ),
    "res_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + N(F(x))",
                citation="OLMo Team 2024, 2 OLMo 2 Furious, arXiv 2501.00656 ('reordered' norm)",
                growth="mean square 1 + i",
                extra_parameters="(M+1)*N",
                traps=("branches see the raw, growing stream: OLMo 2 also norms q and k, full width (qk_norm: full)",),
            ),
            res=True,
            final=True,
            growth=_plus_one,
        ),
        PlacementConfig,
    ),
    "mix_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- N(x + F(x)) in the first floor(L/4) layers, then x <- x + F(N(x))",
                citation="Li et al. 2024, Mix-LN, arXiv 2412.13795",
                growth="constant in the Post part, then + 1 a branch",
                extra_parameters="(M+1)*N",
                traps=("the share counts layers and is floored: 4 layers are the least that has a Post layer",),
                parent="pre_norm",
            ),
            pre=lambda s, o: not o.is_post(s),
            out=lambda s, o: o.is_post(s),
            final=True,
            growth=lambda s, before, o: 1.0 if o.is_post(s) else before + 1.0,
            neutral={"post_fraction": 0.0},
        ),
        MixOptions,
    ),
    "ln_scaling": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + F(N(x) / sqrt(l))",
                citation="Sun et al. 2025, The Curse of Depth, arXiv 2502.05795",
                growth="mean square 1 + sum of 1/l over the branches: logarithmic",
                own_start="what layer l reads is multiplied by l^(-1/2)",
                extra_parameters="(M+1)*N",
                traps=(
                    "l is the 1-based layer, the same for both of its branches; the scale is fixed, not learned",
                    "use the plain initialisation, not GPT-2's",
                    "the authors' code compares a lower-cased name with 'LNS', so the branch is never reached",
                    "it is not the sqrt-scaling of the dynamics paper",
                ),
                parent="pre_norm",
            ),
            pre=True,
            final=True,
            c=lambda s, o: s.layer**-o.power,
            growth=lambda s, before, o: before + s.layer ** (-2 * o.power),
            neutral={"power": 0.0},
        ),
        ScalingOptions,
    ),
    "sqrt_scaling": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- N(x + F(x) / sqrt(l + 1))",
                citation="Normalization in Attention Dynamics 2025, arXiv 2510.22026",
                growth="constant",
                init="Xavier normal (ours: the paper trains no network)",
                own_start="branches of layer l are multiplied by (l + 1)^(-1/2)",
                extra_parameters="M*N",
                traps=("not LayerNorm Scaling (ln_scaling), which scales the branch's input",),
                parent="post_norm",
            ),
            out=True,
            b=lambda s, o: (s.layer + 1) ** -o.power,
            init=XAVIER,
            growth=_one,
            neutral={"power": 0.0},
        ),
        ScalingOptions,
    ),
    "deep_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- N(alpha x + F(x)), alpha = (2L)^(1/4)",
                citation="Wang et al. 2022, DeepNet, arXiv 2203.00555 (encoder-only and decoder-only constants)",
                growth="constant",
                init="Xavier normal; gain beta = (8L)^(-1/4) on value, out, fc1, fc2; query and key keep gain 1",
                own_start="value, output and FFN matrices are multiplied by (8L)^(-1/4), the skip path by (2L)^(1/4)",
                extra_parameters="M*N",
                traps=(
                    "the exponent of beta is negative: two public repositories have (8L)^(+1/4)",
                    "alpha depends on depth: elsewhere it is fixed at 2.83",
                ),
                parent="post_norm",
            ),
            out=True,
            a=lambda s, o: o.alpha or s.count**0.25,
            init=Init("xavier", gain=lambda s, o: o.beta or (4 * s.count) ** -0.25),
            growth=_one,
            neutral={"alpha": 1.0, "beta": 1.0},
        ),
        DeepNormOptions,
    ),
    "keel": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- N(M x + F(N(x))); layer 1: x <- x + Attention(N(x)), then x <- N(x + FFN(N(x)))",
                citation="Chen and Wei 2026, Post-LayerNorm Is Back, arXiv 2601.19895",
                growth="constant after layer 1",
                own_start="after layer 1 the skip path is multiplied by 2L",
                extra_parameters="(2*M-1)*N",
                traps=(
                    "the treatment of layer 1 differs between versions of the paper (v1: both branches plain Pre-LN); "
                    "this is the later one, and plain_first_layer: false applies the rule everywhere",
                ),
            ),
            pre=True,
            out=lambda s, o: not (o.first(s) and s.kind == "attention"),
            a=lambda s, o: 1.0 if o.first(s) else o.alpha or float(s.count),
            growth=lambda s, before, o: before + 1.0 if o.first(s) and s.kind == "attention" else 1.0,
        ),
        KeelOptions,
    ),
    "rezero": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + lambda_l F(x), lambda_l = 0 at the start, one scalar for a layer's branches",
                citation="Bachlechner et al. 2020, ReZero is All You Need, arXiv 2003.04887",
                growth="constant at the start (every branch is switched off)",
                init="Xavier normal",
                own_start="each branch is multiplied by 0",
                extra_parameters="L",
                traps=("at the first step only the scalars get a gradient",),
                parent="no_norm",
            ),
            b=Learned("scalar", lambda s, o: o.initial, shared=True),
            init=XAVIER,
            growth=lambda s, before, o: before * (1.0 + o.initial**2),
            neutral={"initial": 1.0},
        ),
        ReZeroOptions,
    ),
    "layer_scale": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + lambda * F(N(x)), lambda a vector, 1e-5 at 24 layers, 1e-6 from 36",
                citation="Touvron et al. 2021, CaiT, arXiv 2103.17239",
                growth="mean square 1 + i lambda^2: flat at the start",
                own_start="each branch is multiplied by 0.1, 1e-5 or 1e-6, by depth",
                extra_parameters="(M+1)*N+M*d",
                traps=("the vector multiplies the branch's output, not the stream",),
                parent="pre_norm",
            ),
            pre=True,
            final=True,
            b=Learned("vector", lambda s, o: o.value(s)),
            growth=lambda s, before, o: before + o.value(s) ** 2,
            neutral={"initial": 1.0},
        ),
        LayerScaleOptions,
    ),
    "admin": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- N(omega * x + F(x)), omega a learned vector",
                citation="Liu et al. 2020, Understanding the Difficulty of Training Transformers, arXiv 2004.08249",
                growth="constant",
                init="Xavier normal; omega_i = sqrt(i) in closed form, or Scheme.profile_ from the branch variances",
                own_start="the skip path of branch i is multiplied by sqrt(i)",
                extra_parameters="M*N+M*d",
                traps=("omega multiplies the skip path, not the branch",),
                parent="post_norm",
            ),
            out=True,
            a=Learned("vector", lambda s, o: math.sqrt(s.index + 1) if o.omega == "closed_form" else 1.0),
            init=XAVIER,
            growth=_one,
            neutral={"omega": "one"},
        ),
        AdminOptions,
    ),
    "sub_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + W_out N(inner(N(x))): a second norm inside each branch, before the output map",
                citation="Wang et al. 2022, Foundation Transformers (Magneto), arXiv 2210.06423",
                growth="1 + i for unit branches; the gain adds ln(2L) a branch",
                init="Xavier normal; gain sqrt(ln(2L)) on value, out, fc1, fc2",
                own_start="value, output and FFN matrices are multiplied by sqrt(ln(2L))",
                extra_parameters="(M+1)*N",
                branch_parameters="L*(N+N*F//d)",
                traps=("the gain grows with depth, unlike DeepNorm's",),
            ),
            pre=True,
            final=True,
            init=Init("xavier", gain=lambda s, o: math.sqrt(math.log(s.count))),
            demands=Demands(inner_norm=True),
            growth=_plus_one,
        ),
        PlacementConfig,
    ),
    "hybrid_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + Attention(x) with N on each head's q, k, v; then x <- N(x) + FFN(N(x))",
                citation="Zhuo et al. 2025, HybridNorm, arXiv 2503.04598",
                growth="bounded: reset to 2 by every FFN",
                init="GPT-2: residual projections divided by sqrt(2L)",
                extra_parameters="(L+1)*N",
                branch_parameters="3*L*N*h//d",
                traps=("the FFN's skip path carries N(x), not x",),
            ),
            pre=lambda s, o: s.kind == "ffn" or o.first(s),
            keep_normed=lambda s, o: s.kind == "ffn" and not o.first(s),
            final=True,
            init=GPT2,
            demands=Demands(qk_norm="head", v_norm=True),
            growth=lambda s, before, o: before + 1 if o.first(s) else 2.0 if s.kind == "ffn" else 2.0 * before,
        ),
        HybridOptions,
    ),
    "gpas": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + F(N(x)); x <- x - SiLU(g_l) stopgrad(x), g_l = 0 at the start",
                citation="Chen et al. 2025, GPAS, arXiv 2506.22049 (on Pre-LN)",
                growth="1 + i at the start, as pre_norm",
                init="GPT-2: residual projections divided by sqrt(2L)",
                extra_parameters="(M+1)*N+L",
                traps=("the gate's shrinking is hidden from the gradient of x on purpose",),
                parent="pre_norm",
            ),
            pre=True,
            final=True,
            init=GPT2,
            gate=True,
            growth=_plus_one,
            neutral={},
        ),
        PlacementConfig,
    ),
    "residual_scaling": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- a * (x + s) + b * (F(N(x)) + t), all vectors; x_0 <- a_0 * (embedding + s_0)",
                citation="ZAYA as shipped in transformers (zaya: ZayaResidualScaling)",
                growth="1 + i at the start, as pre_norm",
                extra_parameters="(M+1)*N+4*M*d+2*d",
                traps=(
                    "the shift comes before the scale, on both paths",
                    "the embedding is scaled and shifted too",
                    "transformers keeps this stream in float32 whatever the model's type",
                ),
                parent="pre_norm",
            ),
            pre=True,
            final=True,
            a=Learned("vector", lambda s, o: 1.0),
            b=Learned("vector", lambda s, o: 1.0),
            shift=True,
            growth=_plus_one,
            neutral={},
        ),
        PlacementConfig,
    ),
    "no_norm": (
        PlacementRow(
            Card(
                family="placement",
                equation="x <- x + F(x)",
                citation="the control",
                growth="2^i: explodes",
                init="Xavier normal",
                extra_parameters="0",
            ),
            init=XAVIER,
            growth=lambda s, before, o: 2.0 * before,
        ),
        PlacementConfig,
    ),
}


def _configs() -> Iterator[type[PlacementConfig]]:
    """A config class per row, named after it."""
    for name, (row, base) in ROWS.items():
        title = "".join(part.capitalize() for part in name.split("_"))
        fields: dict[str, Any] = {"name": (Literal[name], name)}
        made = cast(
            type[PlacementConfig],
            create_model(title, __base__=base, __module__=__name__, __doc__=row.card.equation, **fields),
        )
        made.row, made.card = row, row.card
        globals()[title] = made  # found by pickle, so that a config can go to a worker process
        yield made


CONFIGS = tuple(_configs())
