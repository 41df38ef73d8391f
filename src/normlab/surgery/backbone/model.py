"""`Backbone`: a swapped Hugging Face model that the training loop and the measures of layers take as one of ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from normlab import __version__
from normlab.errors import UnsupportedError
from normlab.probes.inputs.hub import quiet
from normlab.schemes import Scheme, Site
from normlab.schemes.mixing import depth_mixing
from normlab.schemes.names import to_record
from normlab.surgery.anatomy import anatomy
from normlab.surgery.backbone.architecture import config_of
from normlab.surgery.backbone.config import BackboneConfig, base_class
from normlab.surgery.classes import config_class, model_class

ROUNDING = 1e-3  # of what a changed token changes at its own place


class Backbone(nn.Module):
    """tokens [batch, time] -> logits [batch, time, vocabulary].

    The weights are the architecture's own initialisation, the same for every scheme at one seed; the scheme starts as
    its authors start it, not neutral, and its new norms have gains of 1.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        own = config_of(config.architecture)
        base = base_class(config.architecture)
        own.__class__ = config_class(type(own))
        own.normlab = {"version": __version__, "scheme": to_record(config.scheme)}
        own.use_cache = False
        with quiet():
            self.model = model_class(base, type(own))(own)  # type: ignore[arg-type]

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=tokens).logits
        return found

    def features(self, tokens: Tensor) -> Tensor:
        """What the head sees: [batch, time, dim]."""
        found: Tensor = self.model.base_model(input_ids=tokens).last_hidden_state
        return found

    @property
    def scheme(self) -> Scheme:
        found = self.model.scheme
        assert isinstance(found, Scheme)
        return found

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.config.sites()

    @property
    def branches(self) -> nn.ModuleList:
        """The module of each site; of parallel branches, both in one list, which is nobody's call."""
        found = []
        for place in anatomy(self.model).places:
            parts = [place.part(name) for name in place.cores]
            found.append(parts[0] if len(parts) == 1 else nn.ModuleList(parts))
        return nn.ModuleList(found)

    @property
    def embedding(self) -> nn.Module:
        found: nn.Module = self.model.get_input_embeddings()
        return found

    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    @torch.no_grad()
    def flops_per_token(self, length: int, *, training: bool = False) -> int:
        """As torch counts the products of a forward pass; a training step is three of them."""
        tokens = torch.zeros(1, length, dtype=torch.long, device=self.embedding.weight.device)  # type: ignore[arg-type]
        counter = FlopCounterMode(display=False)
        with counter:
            self(tokens)
        return round(counter.get_total_flops() / length * (3 if training else 1))

    def depth_mixing(self, tokens: Tensor) -> Tensor:
        """M with h_l = sum_i M[l, i] v_i, for every token: [batch, time, reads, sources]."""
        was = self.training
        self.eval()
        try:
            return depth_mixing(self.scheme, lambda: self(tokens)).matrix
        finally:
            self.train(was)


@torch.no_grad()
def check_causal(model: Backbone) -> None:
    """Raise if a token sees those behind it: its loss would be no prediction."""
    was = model.training
    model.eval()
    tokens = torch.arange(8).remainder(model.config.vocab_size)[None]
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % model.config.vocab_size
    moved = (model(tokens) - model(other)).abs().amax((0, 2))
    model.train(was)
    if moved[:-1].max() > ROUNDING * moved[-1]:  # experts that share a product round otherwise with other tokens
        raise UnsupportedError(
            f"a {model.config.name} sees the tokens behind each token, so the next one is no prediction; give a decoder"
        )
