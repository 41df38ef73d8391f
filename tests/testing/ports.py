"""Ports of other people's making, written by hand from the equations: the right ones, and ones with one mistake each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import normlab as nl
from normlab.testing import Frame, make_sites

DIM, DEPTH, N = 12, 3, 4


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Gain(nn.Module):
    def __init__(self, forgotten: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))
        self.forgotten = forgotten

    def forward(self, x: Tensor) -> Tensor:
        return rms(x) if self.forgotten else rms(x) * self.weight


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Parameter(torch.zeros(N * DIM, N))
        self.bias = nn.Parameter(torch.full((N,), -1.0986122886681098))
        self.alpha = nn.Parameter(torch.full((1,), 0.01))


class Mhc(nn.Module):
    """mHC by a stranger, with DeepSeek's comb and normlab's names. `mistake` plants one."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        self.frame, self.config = Frame(DIM, make_sites(DEPTH)), nl.scheme("mhc")
        count = len(self.frame.sites)
        forgotten = mistake == "gain forgotten"
        self.pre = nn.ModuleList(Gain(forgotten) for _ in range(count))
        self.final = Gain(forgotten)
        self.project = nn.Parameter(torch.zeros(count, N * DIM, 2 * N + N * N))
        self.bias = nn.Parameter(torch.zeros(count, 2 * N + N * N))
        self.alpha = nn.Parameter(torch.full((count, 3), 0.01))
        self.head = Head()
        if mistake != "bias zero":
            with torch.no_grad():
                for i, bias in enumerate(self.bias):
                    bias[:N] = -3.0
                    bias[i % N] = 3.0
                    bias[2 * N :] = (6 * torch.eye(N) - 3).flatten()

    def open(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-2).expand(*x.shape[:-1], N, DIM)

    def read(self, X: Tensor, site: Any) -> tuple[Tensor, Any]:
        i = site.index
        raw = rms(X.flatten(-2)) @ self.project[i]
        pre, post, res = raw.split([N, N, N * N], dim=-1)
        b_pre, b_post, b_res = self.bias[i].split([N, N, N * N])
        pre = torch.sigmoid(self.alpha[i, 0] * pre + b_pre)
        post = 2 * torch.sigmoid(self.alpha[i, 1] * post + b_post)
        # comb is indexed (in, out): the transpose of H_res
        comb = (self.alpha[i, 2] * res + b_res).unflatten(-1, (N, N)).transpose(-1, -2)
        comb = torch.softmax(comb, dim=-1)
        for _ in range(19):
            comb = comb / comb.sum(-2, keepdim=True)
            comb = comb / comb.sum(-1, keepdim=True)
        comb = comb / comb.sum(-2, keepdim=True)
        if self.mistake == "gradient cut":
            comb = comb.detach()
        return self.pre[i]((pre.unsqueeze(-1) * X).sum(-2)), (post, comb)

    def write(self, X: Tensor, y: Tensor, carry: Any, site: Any) -> Tensor:
        post, comb = carry
        if self.mistake == "H_res not applied":
            kept = X
        else:
            kept = (comb if self.mistake == "comb not transposed" else comb.transpose(-1, -2)) @ X
        return kept + post.unsqueeze(-1) * y.unsqueeze(-2)

    def close(self, X: Tensor) -> Tensor:
        if self.mistake == "output read missing":
            return self.final(X.sum(-2))
        raw = rms(X.flatten(-2)) @ self.head.project
        weights = torch.sigmoid(self.head.alpha * raw + self.head.bias)
        return self.final((weights.unsqueeze(-1) * X).sum(-2))


class AttnRes(nn.Module):
    """Full Attention Residuals by a stranger."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        self.frame, self.config = Frame(DIM, make_sites(DEPTH), eps=0.0), nl.scheme("attn_res")
        count = len(self.frame.sites)
        self.pre = nn.ModuleList(Gain() for _ in range(count))
        self.final = Gain()
        self.queries = nn.Parameter(torch.zeros(count + 1, DIM))
        self.key_gain = nn.Parameter(torch.ones(count + 1, DIM))
        if mistake == "queries not zero":
            nn.init.normal_(self.queries)

    def open(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,)

    def attend(self, sources: tuple[Tensor, ...], i: int) -> Tensor:
        values = torch.stack(sources)
        keys = values if self.mistake == "no key norm" else rms(values)
        if self.mistake != "gain forgotten":
            keys = keys * self.key_gain[i]
        logits = keys @ self.queries[i]
        if self.mistake == "sqrt(d)":
            logits = logits / DIM**0.5
        return (torch.softmax(logits, 0).unsqueeze(-1) * values).sum(0)

    def read(self, sources: tuple[Tensor, ...], site: Any) -> tuple[Tensor, None]:
        return self.pre[site.index](self.attend(sources, site.index)), None

    def write(self, sources: tuple[Tensor, ...], y: Tensor, carry: None, site: Any) -> tuple[Tensor, ...]:
        return (*sources, y)

    def close(self, sources: tuple[Tensor, ...]) -> Tensor:
        if self.mistake == "output read missing":
            return self.final(torch.stack(sources).sum(0))
        return self.final(self.attend(sources, len(self.frame.sites)))


def right() -> nn.Module:
    return Mhc()


def untransposed() -> nn.Module:
    return Mhc("comb not transposed")
