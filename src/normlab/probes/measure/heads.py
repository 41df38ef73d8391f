"""What the attention weights of each layer do, reduced while they stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from normlab.probes.measure import metrics
from normlab.probes.measure.stream import Means
from normlab.probes.measure.table import AttentionRow, HeadRow, MaskRow
from normlab.probes.trace.hooks import Record


class AttentionStatistics:
    """Entropy, largest weight, sink mass and the size of what attention returns, per layer and per head."""

    def __init__(self, text: Tensor | None = None) -> None:
        self.text = text  # [batch, tokens], where the batch is not padding
        self.sums: dict[int, Means] = defaultdict(Means)
        self.positions: dict[int, Counter[int]] = defaultdict(Counter)
        self.heads: dict[int, dict[str, Tensor]] = {}
        self.unmeasured: dict[int, str] = {}
        self.twins: dict[int, Tensor] = {}
        self.seen: dict[int, MaskRow] = {}

    def __call__(self, record: Record) -> None:
        sums = self.sums[record.index]
        with torch.no_grad():
            if record.attended is not None:
                late = record.attended[:, record.attended.shape[1] // 2 :].float()
                if self.text is not None:
                    late = late[self.text[:, self.text.shape[1] // 2 :].to(late.device)]
                sums.add(attention_output_rms=float(late.square().mean().sqrt()))
            if record.weights is None or record.weights.shape[-1] < 2:
                if record.unmeasured:
                    self.unmeasured[record.index] = record.unmeasured
                return
            trimmed = self._trimmed(record.weights)
            if trimmed[0].shape[-1] == trimmed[0].shape[-2]:  # else another text is looked at
                self.seen[record.index] = _span(record.index, trimmed[0])
            found = [self._read(record.index, weights) for weights in trimmed]
            heads = {name: torch.cat([each[name] for each in found]).mean(0) for name in found[0]}
            sums.add(**{name: float(values.mean()) for name, values in heads.items()})
            if record.mixed is not None and record.projection is not None:
                parts = _parts(record.mixed, record.projection, len(heads["entropy"]), self.text)
                heads["output"] = parts.square().sum(-1).mean(-1).sqrt()
                slices = record.projection.float().unflatten(1, (len(parts), -1)).transpose(0, 1)
                self.twins[record.index] = torch.maximum(_likeness(parts), _likeness(slices))
            self.heads[record.index] = heads

    def _trimmed(self, weights: Tensor) -> list[Tensor]:
        """Weights without padding: one sequence at a time where there is some."""
        if self.text is None or self.text.shape != weights.shape[:1] + weights.shape[-1:]:
            return [weights]
        rows = [text.to(weights.device) for text in self.text]
        return [
            one[None][..., text, :][..., text] for one, text in zip(weights, rows, strict=True) if int(text.sum()) > 2
        ]

    def _read(self, index: int, weights: Tensor) -> dict[str, Tensor]:
        mass, position = metrics.sink(weights)
        self.positions[index].update(int(place) for place in position.flatten().tolist())
        return {
            "entropy": metrics.normalised_entropy(weights),
            "max_weight": metrics.max_weight(weights),
            "sink_mass": mass,
        }

    def rows(self) -> list[AttentionRow]:
        return [self._row(index) for index in sorted(self.sums)]

    def _row(self, index: int) -> AttentionRow:
        means = self.sums[index].values()
        if index not in self.heads:
            return AttentionRow(index, **means, unmeasured=self.unmeasured.get(index))
        places = self.positions[index]
        parked = float((self.heads[index]["sink_mass"] > 0.5).float().mean())
        return AttentionRow(
            index, **means, sink_position=max(places, key=lambda place: places[place]), sink_heads=parked
        )

    def head_rows(self) -> tuple[HeadRow, ...]:
        rows = []
        for layer, values in sorted(self.heads.items()):
            alike = self.twins.get(layer)
            for head in range(len(values["entropy"])):
                numbers = {name: float(each[head]) for name, each in values.items()}
                twin = None if alike is None or len(alike) < 2 else int(alike[head].argmax())
                cosine = None if alike is None or twin is None else float(alike[head, twin])
                rows.append(HeadRow(layer, head, **numbers, twin=twin, twin_cosine=cosine))
        return tuple(rows)

    def mask_rows(self, layers: Sequence[nn.Module], config: object) -> tuple[MaskRow, ...]:
        """What each layer sees, beside what the configuration says of it."""
        return tuple(replace(row, window=_window(layers, row.layer, config)) for _, row in sorted(self.seen.items()))


def _span(layer: int, weights: Tensor) -> MaskRow:
    """The largest distances over which any head of any sequence looks."""
    seen = (weights > 0).flatten(0, 1).any(0)  # [queries, keys]
    queries, keys = seen.shape
    apart = torch.arange(keys - queries, keys, device=seen.device)[:, None] - torch.arange(keys, device=seen.device)
    distances = apart[seen]
    back, ahead = (int(distances.max()), int(-distances.min())) if len(distances) else (0, 0)
    return MaskRow(layer, keys, max(back, 0), max(ahead, 0))


def _window(layers: Sequence[nn.Module], layer: int, config: object) -> int | None:
    """The sliding window of a layer, where the configuration has one; None: it sees everything.

    0: the configuration speaks of something else that limits attention, and nothing can be said.
    """
    text = getattr(config, "get_text_config", lambda: config)()
    others = ("chunk", "block_size", "block_length", "local", "sparse", "global", "stride", "topk", "top_k_keys")
    names = [name for name in vars(text) if any(word in name for word in others)] if config is not None else []
    limits = [name for name in names if "attention" in name or "attn" in name or "index" in name]
    if limits or len(layers) == 1:
        return 0
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if not isinstance(window, int) or window <= 0 or getattr(text, "use_sliding_window", True) is False:
        return None
    if isinstance(kinds, (list, tuple)) and layer < len(kinds):
        return window if "sliding" in str(kinds[layer]) else None if "full" in str(kinds[layer]) else 0
    return window


def _parts(mixed: Tensor, projection: Tensor, heads: int, text: Tensor | None) -> Tensor:
    """What each head adds [heads, tokens, d]: its slice of the projection, applied to its part of the mixed values."""
    tokens = mixed.reshape(-1, mixed.shape[-1]).float()
    if text is not None and text.numel() == len(tokens):
        tokens = tokens[text.flatten().to(tokens.device)]
    tokens = tokens[:: max(1, len(tokens) // 512)]
    parts = tokens.reshape(len(tokens), heads, -1).transpose(0, 1)  # [heads, tokens, width]
    slices = projection.float().reshape(len(projection), heads, -1).permute(1, 2, 0)  # [heads, width, d]
    added: Tensor = parts @ slices
    return added


def _likeness(parts: Tensor) -> Tensor:
    """Cosines [heads, heads] between what heads add to the same tokens, or their slices; -1 on the diagonal."""
    flat = parts[:, :: max(1, parts.shape[1] // 64)].flatten(1)
    unit = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-30)
    cosines: Tensor = (unit @ unit.T).fill_diagonal_(-1.0)
    return cosines
