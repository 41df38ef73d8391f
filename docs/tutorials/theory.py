# %% [markdown]
# # From equation to sphere to network
#
# Why does the place of a norm matter? Follow tokens through depth: an equation, points on a sphere, a real network.
#
# ## Symbols
#
# | symbol | what it is |
# |---|---|
# | n, d | tokens, and the width of a token |
# | x_j | token j, a vector of d numbers; r_j is its length, theta_j = x_j / r_j its direction |
# | t | depth, taken as a time: layer l is the time t = l h with a small step h |
# | beta | how sharp attention is: it weighs token k by exp(beta cos(theta_j, theta_k)) |
# | A_j | what attention adds to token j: the weighted mean of the directions |
# | gamma | the mean cosine between two tokens: 0 all apart, 1 all alike |
# | s | the scheme's speed: how much of A_j turns the token |
#
# ## The equation
# With identity weights, attention pulls tokens together. Every scheme does the same thing at its own speed:
#
#     theta_j' = (1 / s_j) (A_j - <theta_j, A_j> theta_j)
#
# Pre-Norm has s = r, and r grows: it slows down by itself. Post-Norm has s = 1: it never does.
#
# ## One number: when is half of the way gone?

# %%
from normlab import dynamics

for scheme in ("post_norm", "pre_norm", "peri_norm", "ngpt", "ln_scaling"):
    hits = dynamics.scalar(scheme, n=256, beta=5.0, time=200.0).hits
    print(
        f"{scheme:11} mean cosine 0.5 at t = {hits[0.5]:6.2f}, 0.9 at t = {hits[0.9]:7.2f}"
    )

# %% [markdown]
# ## How it ends
# The closed forms say how the last gap closes. Post-Norm closes it exponentially, Pre-Norm like a power of the depth.

# %%
for scheme in ("post_norm", "pre_norm", "ln_scaling"):
    print(f"{scheme:11} {dynamics.oracle('terminal', scheme, n=256, beta=5.0)}")

# %% [markdown]
# ## On the sphere
# The same with tokens that start anywhere, in 3 dimensions, three seeds. `normlab dynamics` draws them on a page that plays.

# %%
run = dynamics.simulate(
    ["post_norm", "pre_norm", "peri_norm"],
    n=24,
    d=3,
    beta=1.0,
    time=8.0,
    init="uniform",
    seeds=(0, 1, 2),
)
for field, curves in zip(run.fields, run.cosine, strict=True):
    start, middle, end = (curves[:, at].mean() for at in (0, len(run.t) // 2, -1))
    print(f"{field.name:10} mean cosine {start:5.2f} -> {middle:5.2f} -> {end:5.2f}")

# %% [markdown]
# ## In a network
# Random weights are not the identity. A real network at initialisation: how large the stream is, and what a layer adds to it.

# %%
from normlab.experiments.atlas.measure import measure
from normlab.experiments.atlas.request import AtlasRequest

atlas = measure(
    AtlasRequest(
        schemes=("pre_norm", "post_norm", "peri_norm"),
        depth=12,
        dim=64,
        init="unit",
        rounds=1,
    ),
    quiet=True,
)
for entry in atlas.entries:
    size = f"stream rms {entry.stream[0]:.2f} -> {entry.stream[-1]:.2f}"
    print(
        f"{entry.scheme:10} {size};  a branch is {entry.contribution[0]:.2f} -> {entry.contribution[-1]:.2f} of it"
    )

# %% [markdown]
# Pre-Norm's stream grows like the square root of depth, so a late branch is a small part of it. That is *dilution*.
#
# ## What carries over, and what does not
# The equations carry over to random networks, FFN, heads and mask included. Identity weights do not: they gather tokens
# far too fast.
# Training ends it: a network that learns keeps its tokens apart. Numbers, and the claims that this settles:
# [sphere dynamics](../dynamics.md), [the ledger](../claims/003.md).
