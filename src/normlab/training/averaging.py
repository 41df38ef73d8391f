"""Averages of weights along a run: EMA, and BEMA, which takes the EMA's lag back out (arXiv 2508.00180).

    beta_t  = (rho + gamma t)^-kappa        EMA  <- (1 - beta_t) EMA + beta_t theta_t
    alpha_t = (rho + gamma t)^-eta          BEMA  = EMA + alpha_t (theta_t - theta_0)

t counts optimizer steps. Until the burn-in tau nothing is averaged; at tau, theta_0 and the EMA restart from theta_tau;
afterwards an update happens every `every` steps (phi). phi is the dominant knob: the window is 1/beta_t *updates*.
eta = 0 is the largest correction, not none. Between updates the averages stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict, Unpack

from normlab.errors import ConfigError


class AverageOptions(TypedDict, total=False):
    """What `EMA` takes besides the model."""

    kappa: float
    rho: float
    gamma: float
    decay: float | None
    burn_in: int
    every: int


class AverageState(TypedDict):
    step: int
    tensors: dict[str, Tensor]


class EMA:
    """An exponential moving average of the trainable parameters of a module.

    >>> ema = EMA(model, every=10)
    >>> for batch in data:
    ...     train_step(batch)
    ...     ema.update()
    >>> with ema.averaged():        # the model has the averaged weights inside, its own again behind
    ...     evaluate(model)

    With `decay` the weight of the past is constant; without it beta_t follows the power law above.
    """

    kinds: tuple[str, ...] = ("ema",)

    def __init__(
        self,
        model: nn.Module | Mapping[str, Tensor],
        *,
        kappa: float = 0.5,
        rho: float = 10.0,
        gamma: float = 1.0,
        decay: float | None = None,
        burn_in: int = 0,
        every: int = 400,
    ) -> None:
        if every < 1 or burn_in < 0:
            raise ConfigError(f"an average needs every >= 1 and burn_in >= 0, but got every={every}, burn_in={burn_in}")
        if not (rho > 0 and gamma >= 0 and kappa >= 0):
            raise ConfigError(f"rho > 0, gamma >= 0, kappa >= 0 are needed, but got {rho}, {gamma} and {kappa}")
        if decay is not None and not 0 <= decay < 1:
            raise ConfigError(f"decay is a weight of the past in [0, 1), but got {decay}")
        self.kappa, self.rho, self.gamma, self.decay = kappa, rho, gamma, decay
        self.burn_in, self.every = burn_in, every
        self.step = 0
        self._live = dict(_parameters(model))
        self._buffers: dict[str, dict[str, Tensor]] = {kind: self._copy() for kind in self._stored()}

    def _stored(self) -> tuple[str, ...]:
        return ("ema",)

    def _copy(self) -> dict[str, Tensor]:
        """Averages of half-precision weights are kept in float32: beta_t would vanish in bfloat16's eight bits."""
        return {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._live.items()
        }

    def beta(self, step: int) -> float:
        """Weight of the live weights in the average at this step."""
        return 1 - self.decay if self.decay is not None else (self.rho + self.gamma * step) ** -self.kappa

    @torch.no_grad()
    def update(self, step: int | None = None) -> bool:
        """Call after every optimizer step (or say which step it was); True where the average moved."""
        self.step = self.step + 1 if step is None else step
        if self.step < self.burn_in:
            return False
        if self.step == self.burn_in:
            for buffers in self._buffers.values():
                for name, parameter in self._live.items():
                    buffers[name].copy_(parameter)
            return False
        if (self.step - self.burn_in) % self.every:
            return False
        self._advance(self.step)
        return True

    def _advance(self, step: int) -> None:
        torch._foreach_lerp_(self._shards("ema"), self._theta(), min(self.beta(step), 1.0))

    def _theta(self) -> list[Tensor]:
        pairs = zip(self._live.values(), self._shards("ema"), strict=True)
        return [_shard(p.detach()).to(buffer.dtype) for p, buffer in pairs]

    def _shards(self, kind: str) -> list[Tensor]:
        return [_shard(buffer) for buffer in self._buffers[kind].values()]

    def weights(self, kind: str | None = None) -> dict[str, Tensor]:
        """The averaged weights by parameter name (the average's own buffers, not copies)."""
        kind = kind or self.kinds[-1]
        if kind not in self.kinds:
            raise ConfigError(f"this average keeps {', '.join(self.kinds)}, not {kind!r}")
        return self._buffers[kind]

    @contextmanager
    def averaged(self, kind: str | None = None) -> Iterator[None]:
        """The model carries the averaged weights inside the block and its own, bit for bit, behind it."""
        weights = self.weights(kind)
        own = {name: p.detach().clone() for name, p in self._live.items()}
        try:
            self._load(weights)
            yield
        finally:
            self._load(own)

    @torch.no_grad()
    def _load(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._live.items():
            parameter.copy_(weights[name])

    # -- resuming --------------------------------------------------------------------------------------------------
    def tensors(self) -> dict[str, Tensor]:
        """Everything but the step, flat, for a checkpoint."""
        return {f"{kind}/{name}": t for kind, buffers in self._buffers.items() for name, t in buffers.items()}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take the averages over from tensors by name."""
        for key, mine in self.tensors().items():
            mine.copy_(tensors[key])
        self.step = step

    def state_dict(self) -> AverageState:
        """What a checkpoint keeps of it."""
        return {"step": self.step, "tensors": {key: t.clone() for key, t in self.tensors().items()}}

    def load_state_dict(self, state: AverageState) -> None:
        """Go on from what a checkpoint kept."""
        self.load_tensors(state["tensors"], state["step"])


class BEMA(EMA):
    """EMA and its bias-corrected form, of one run: `averaged("ema")`, `averaged("bema")` (the default)."""

    kinds = ("ema", "bema")

    def __init__(
        self, model: nn.Module | Mapping[str, Tensor], *, eta: float = 0.2, **options: Unpack[AverageOptions]
    ) -> None:
        if eta < 0:
            raise ConfigError(f"eta >= 0 is needed (0 is the largest correction), but got {eta}")
        self.eta = eta
        super().__init__(model, **options)

    def _stored(self) -> tuple[str, ...]:
        return ("ema", "bema", "start")

    def alpha(self, step: int) -> float:
        """Weight of the correction at this step."""
        return (self.rho + self.gamma * step) ** -self.eta

    def _advance(self, step: int) -> None:
        super()._advance(step)
        theta, alpha = self._theta(), self.alpha(step)
        ema, bema, start = (self._shards(kind) for kind in ("ema", "bema", "start"))
        torch._foreach_copy_(bema, ema)
        torch._foreach_add_(bema, theta, alpha=alpha)
        torch._foreach_add_(bema, start, alpha=-alpha)


def _shard(tensor: Tensor) -> Tensor:
    """What this process holds: averaging is entry by entry, and torch has not every foreach operation for DTensors."""
    local = getattr(tensor, "to_local", None)
    return local() if callable(local) else tensor


def _parameters(model: nn.Module | Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    named = model.named_parameters() if isinstance(model, nn.Module) else model.items()
    return ((name, p) for name, p in named if p.requires_grad or not isinstance(model, nn.Module))
