"""Block Attention Residuals over pipeline stages: what crosses the wire, with and without the ranks' caches.

    torchrun --nproc-per-node 4 examples/pipeline.py [--virtual-stages 2] [--layers 16] [--blocks 8]

Every rank also runs the whole model, to show that gradients are the same.
"""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F

import normlab as nl
from normlab.model.pipeline import NaivePipeline
from normlab.report import console, table


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def measure(model: nl.Transformer, tokens: torch.Tensor, *, virtual_stages: int, cached: bool) -> dict[str, float]:
    model.zero_grad()
    pipe = (nl.Pipeline if cached else NaivePipeline)(
        model,
        shape=tuple(tokens.shape),
        microbatches=dist.get_world_size(),
        loss=loss,
        virtual_stages=virtual_stages,
    )
    pipe.step(tokens, tokens)
    sent = torch.tensor([float(pipe.traffic()[key]) for key in ("forward", "backward")])
    dist.all_reduce(sent)
    return {"forward": sent[0].item(), "backward": sent[1].item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--virtual-stages", type=int, default=2)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=8)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = nl.TransformerConfig(
        vocab_size=64, dim=128, depth=options.layers, heads=4, scheme=nl.scheme("block_attn_res", blocks=options.blocks)
    )
    model = nl.Transformer(config).double()
    whole, tokens = copy.deepcopy(model), torch.randint(64, (8, 32))
    stages = dist.get_world_size()
    found = {
        name: measure(model, tokens, virtual_stages=options.virtual_stages, cached=cached)
        for name, cached in (("naive", False), ("cached", True))
    }
    loss(whole(tokens), tokens).backward()
    pairs = [
        (p.grad, dict(whole.named_parameters())[n].grad) for n, p in model.named_parameters() if p.grad is not None
    ]
    worst = torch.tensor(max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) for a, b in pairs))
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        predicted = nl.cost(config, length=32, stages=stages, virtual_stages=options.virtual_stages).pipeline
        unit = 8 * config.dim * tokens.numel()
        rows = [
            {
                "transfer": name,
                "sent forward": f"{item['forward'] / 1e6:.2f} MB",
                "per token": f"{item['forward'] / unit:g}d",
                "predicted": f"{getattr(predicted, name):g}d",
                "paper's formula": f"{getattr(predicted, f'formula_{name}'):g}d",
                "sent backward": f"{item['backward'] / 1e6:.2f} MB",
            }
            for name, item in found.items()
        ]
        console().print(table(rows, title=f"{stages} stages x {options.virtual_stages} virtual stages"))
        console().print(f"gradients equal the whole model's to {worst.item():.1e} (relative, float64)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
