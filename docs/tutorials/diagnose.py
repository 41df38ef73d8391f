# %% [markdown]
# # Diagnose your model
#
# In five minutes: train a tiny model, look into it, break it, and see that the break is found.
# For a model of your own the first command is all you need:
#
# ```
# normlab diagnose FOLDER_OR_HUGGING_FACE_ID
# ```
#
# ## A model to look at
# We train a small one, so that nothing has to be downloaded. `normlab train --example` prints the file; here it is smaller.

# %%
import torch

import normlab as nl
from normlab.tasks import Text
from normlab.training import Schedule, TrainConfig, Trainer

torch.manual_seed(0)
model = nl.Transformer(
    nl.TransformerConfig(vocab_size=256, dim=48, depth=6, heads=4, scheme="pre_norm")
)
how = TrainConfig(steps=150, batch=8, length=48, lr=4e-3, schedule=Schedule(warmup=15))
trained = Trainer(model, Text(), how, "runs/tiny", quiet=True).run()
print(f"loss {trained['loss']:.2f} after {trained['step']} steps")
# %% [markdown]
# ## One line first
# A diagnosis needs a model and token ids. It answers with one sentence; then come verdicts, and numbers for every layer.

# %%
tokens = Text().held_out().sample(16, 64, torch.Generator().manual_seed(1)).tokens
found = nl.diagnose(model, [tokens])
print("\n".join(str(found).splitlines()[:12]))

# %% [markdown]
# *Healthy* means that every rule was within its limit, on this text. A small model that saw little text may get notes: they
# accuse nobody.
#
# ## Break it
# Somebody scales the output of one FFN by thirty, as a wrong conversion does.

# %%
with torch.no_grad():
    model.branches[7].matrices()["down"].mul_(30.0)  # the FFN of layer 3

broken = nl.diagnose(model, [tokens])
print("\n".join(str(broken).splitlines()[:8]))

# %% [markdown]
# The verdict names the layer, the number and the limit. Each verdict has a page: [what it means](../verdicts/index.md).

# %%
for verdict in broken.verdicts[:3]:
    print(f"{verdict.severity:5} {verdict.id}: {verdict.title}")

# %% [markdown]
# ## Numbers
# `layers` is a table with a row for each layer.

# %%
for row in broken.layers:
    shares = f"attention / stream {row.attention_ratio:.2f}   FFN / stream {row.ffn_ratio:.2f}"
    print(f"layer {row.layer}: stream {row.norm_median:7.2f}   {shares}")

# %% [markdown]
# ## Keep it
# `found.to_html("report.html")` is one file without network, `to_json` and `to_csv` are for programs.
# While you train, `nl.Monitor(model, every=50)` gives the same numbers for 0.03 % of the time.
# From a terminal: `normlab diagnose runs/mine --strict` exits with 1 if there is a fault.
