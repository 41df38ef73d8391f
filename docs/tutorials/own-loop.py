# %% [markdown]
# # AttnRes in your own loop
#
# You have blocks of your own. A scheme is four verbs on a stream, so your loop keeps its shape:
#
# | verb | what it does |
# |---|---|
# | `open(x)` | the embedding becomes a stream |
# | `read(stream, site)` | what this branch sees |
# | `write(stream, y, carry, site)` | how its output joins |
# | `close(stream)` | what the head sees |
#
# ## Your blocks
# Anything that maps `[batch, time, dim]` to the same shape. They hold no norm and no residual: the scheme owns both.

# %%
import torch
from torch import nn

import normlab as nl
from normlab.schemes import Frame, make_sites

DIM, LAYERS = 32, 4


class MyMixer(nn.Module):
    """A causal running mean and a linear map: not attention, to show that the scheme does not care."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.arange(1, x.shape[1] + 1)[:, None]
        return self.out(x.cumsum(1) / count)


class MyMlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))


# %% [markdown]
# ## Where they stand
# `make_sites` numbers the branches. A site knows its index, its layer (from 1), its kind and how many there are.
# Schemes need this: LayerNorm Scaling divides by the layer, Block AttnRes closes a block after some branches.

# %%
sites = make_sites(LAYERS, kinds=("attention", "ffn"))
print(len(sites), sites[0], sites[-1], sep="\n")


# %% [markdown]
# ## The loop
# Replace `"block_attn_res"` by any of the [schemes](../schemes/index.md); nothing else changes.


# %%
class MyModel(nn.Module):
    def __init__(self, scheme: str, **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, DIM)
        self.branches = nn.ModuleList(
            MyMixer() if site.kind == "attention" else MyMlp() for site in sites
        )
        self.scheme = nl.scheme(scheme, **options).build(Frame(DIM, sites))
        self.head = nn.Linear(DIM, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        stream = self.scheme.open(self.embed(tokens))
        for site, branch in zip(sites, self.branches, strict=True):
            x, carry = self.scheme.read(stream, site)
            stream = self.scheme.write(stream, branch(x), carry, site)
        return self.head(self.scheme.close(stream))


torch.manual_seed(0)
tokens = torch.randint(0, 256, (2, 16))
mine = MyModel("block_attn_res", blocks=2)
print(mine(tokens).shape)

# %% [markdown]
# ## It starts as Pre-Norm
# Attention Residuals begin with zero queries: every source has the same weight. That is Pre-Norm, up to rounding.

# %%
plain = MyModel("pre_norm")
plain.load_state_dict(
    {k: v for k, v in mine.state_dict().items() if not k.startswith("scheme.")},
    strict=False,
)
print(f"largest difference: {(mine(tokens) - plain(tokens)).abs().max():.1e}")

# %% [markdown]
# ## It trains
# The scheme's parameters are parameters of your model. Only nGPT wants more: `scheme.after_step_(model)` after each step
# puts its weights back on the sphere.

# %%
optimizer = torch.optim.AdamW(mine.parameters(), lr=3e-3)
losses = []
for _ in range(60):
    logits = mine(tokens)[:, :-1]
    loss = nn.functional.cross_entropy(
        logits.reshape(-1, 256), tokens[:, 1:].reshape(-1)
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")

# %% [markdown]
# ## Check what you built
# A scheme of your own goes through the same contract as ours: `nl.testing.check_scheme(MyScheme)`
# ([how to write one](../extend.md)). Here, three of its checks on the scheme that we used.

# %%
print(
    nl.testing.check_scheme(
        "block_attn_res",
        only=["verbs_are_pure", "no_future_leak", "depth_mixing_rebuilds"],
    )
)
