"""`check_against`: our contract run on somebody else's implementation of a scheme that normlab has.

A whole path is compared with ours under the same, perturbed weights: outputs, gradients, the start, and large logits. A
single connection or read, whose weights cannot be mapped, is looked at from outside: what it does to given streams or
sources must have the form that the scheme's equation says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.errors import ConfigError, ContractError, InputError
from normlab.schemes import Scheme, SchemeConfig, scheme
from normlab.schemes.depth_stream import DepthAttention
from normlab.schemes.hyper import Streams
from normlab.testing.contract import perturb_
from normlab.testing.mistakes import mutants
from normlab.testing.ports import Connection, Path, Pool, SeenConnection, as_port, checked, fresh, look, run_verbs

BATCH, TIME = 2, 5
# Ports that force their gates into float32 keep seven digits of float64's sixteen.
TOLERANCE = 1e-4
APART = 0.7  # second singular value of the mixing at the start, below which streams are averaged within a few branches


@dataclass(frozen=True)
class Finding:
    """One rule: what was seen, and, where it fails, the known mistake that it looks like."""

    rule: str
    passed: bool
    seen: str
    looks_like: str | None = None

    def __str__(self) -> str:
        mark = "ok   " if self.passed else "FAILS"
        return f"{mark} {self.rule}: {self.seen}" + (f"; looks like: {self.looks_like}" if self.looks_like else "")


@dataclass(frozen=True)
class Verification:
    """What `normlab verify` reports."""

    module: str
    kind: str
    scheme: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def mistakes(self) -> tuple[str, ...]:
        return tuple(f.looks_like for f in self.findings if f.looks_like is not None)


def check_against(module: object, which: str | SchemeConfig | None = None, *, trained: bool = False) -> Verification:
    """Run the contract on a port; raises ContractError with all that fails and what it looks like."""
    found = examine(module, which, trained=trained)
    if not found.passed:
        lines = [str(finding) for finding in found.findings if not finding.passed]
        raise ContractError(f"{found.module} is not {found.scheme}:\n  " + "\n  ".join(lines))
    return found


def examine(module: object, which: str | SchemeConfig | None = None, *, trained: bool = False) -> Verification:
    """The same without raising. `trained` says that the weights are no fresh start, which is then not judged."""
    config = scheme(which) if isinstance(which, str) else which
    port = as_port(module, config)
    torch.manual_seed(0)
    if isinstance(port, Path):
        findings, name = _path(port, trained=trained), port.config.name
    elif isinstance(port, Connection):
        name = "mhc" if config is None else config.name
        if name not in ("mhc", "hyper_connections", "independent_hc"):
            raise ConfigError(f"a connection of streams can be mhc, hyper_connections or independent_hc, not {name}")
        findings = _connection(checked(port), name, trained=trained)
    else:
        findings, name = _pool(port, trained=trained), "attn_res"
    return Verification(type(port.module).__name__, port.what, name, tuple(findings))


# -- a whole path ---------------------------------------------------------------------------------------------------------
def _path(port: Path, *, trained: bool) -> list[Finding]:
    streams = getattr(port.config, "streams", None)
    if streams == 1:
        raise ConfigError(
            "one stream: its mixing is the number 1, so there is nothing to verify; give 2 streams or more"
        )
    weights = torch.randn(len(port.frame.sites), port.frame.dim, port.frame.dim, dtype=torch.float64)
    weights *= port.frame.dim**-0.5

    def branch(index: int, z: Tensor) -> Tensor:
        return torch.tanh(z @ weights[index].to(z.dtype))

    x = torch.randn(BATCH, TIME, port.frame.dim, dtype=torch.float64)
    findings = [] if trained else _start(port)
    moved = fresh(port.module)
    perturb_(moved, scale=0.3)
    theirs = _with_gradient(lambda given: port.run(moved, given, branch), x)
    twin = port.twin(moved)
    ours = _with_gradient(lambda given: run_verbs(twin, given, branch), x)
    findings += _compare(theirs, ours, lambda s: _with_gradient(lambda given: run_verbs(s, given, branch), x), twin)
    findings.append(_large(port, x, branch))
    return findings


def _with_gradient(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    output = run(x)
    (gradient,) = torch.autograd.grad((output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum(), x)
    return output.detach(), gradient


def _gap(one: Tensor, two: Tensor) -> float:
    return float((one - two).abs().max() / two.abs().max().clamp_min(1e-12))


def _compare(
    theirs: tuple[Tensor, Tensor],
    ours: tuple[Tensor, Tensor],
    run: Callable[[Scheme], tuple[Tensor, Tensor]],
    twin: Scheme,
) -> list[Finding]:
    outputs, gradients = (_gap(a, b) for a, b in zip(theirs, ours, strict=True))
    same = outputs < TOLERANCE
    guess = None if same else _recognise(theirs[0], run, twin)
    seen = f"the same weights give outputs that differ by {outputs:.1e} (relative)"
    found = [Finding("outputs", same, seen, guess)]
    if same:
        cut = (
            None
            if gradients < 10 * TOLERANCE
            else "a gradient that leaves out part of the path (Sinkhorn's iterations?)"
        )
        seen = f"the gradient of the input differs by {gradients:.1e}"
        found.append(Finding("gradients", cut is None, seen, cut))
    return found


def _recognise(output: Tensor, run: Callable[[Scheme], tuple[Tensor, Tensor]], twin: Scheme) -> str | None:
    """The known mistake that gives these outputs."""
    gaps = {words: _gap(output, run(mutant)[0]) for words, mutant in mutants(twin)}
    closest = min(gaps, key=lambda words: gaps[words], default=None)
    return closest if closest is not None and gaps[closest] < TOLERANCE else None


@torch.no_grad()
def _start(port: Path) -> list[Finding]:
    """Is the start one that trains: streams that stay apart, queries at zero?"""
    twin = port.twin(fresh(port.module))
    if isinstance(twin, DepthAttention) and hasattr(twin, "queries"):
        largest = float(twin.queries.abs().max())
        guess = None if largest == 0 else "queries that do not start at zero"
        return [Finding("start", guess is None, f"the largest query is {largest:.2g} at the start", guess)]
    if not isinstance(twin, Streams):
        return []
    streams = torch.randn(BATCH, TIME, twin.streams, port.frame.dim, dtype=torch.float64)
    mixings = [twin.coefficients(streams, site)[2].expand(BATCH, TIME, -1, -1) for site in port.frame.sites]
    return [_apart(torch.stack(mixings).flatten(0, -3))]


def _apart(mixings: Tensor) -> Finding:
    second = float(torch.linalg.svdvals(mixings)[..., 1].mean())
    guess = None if second > APART else "biases never set, or too weak: the mixing averages the streams"
    return Finding("start", guess is None, f"the mixing's second singular value is {second:.2f} at the start", guess)


def _large(port: Path, x: Tensor, branch: Callable[[int, Tensor], Tensor]) -> Finding:
    """Logits of +-80 give finite outputs and gradients."""
    module = fresh(port.module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.split(".")[-1] in ("bias", "base", "hc_base", "queries"):
                parameter.copy_(80 * (2 * torch.rand_like(parameter) - 1))
    output, gradient = _with_gradient(lambda given: port.run(module, given, branch), x)
    finite = bool(output.isfinite().all() and gradient.isfinite().all())
    seen = "outputs and gradients are finite" if finite else "outputs or gradients overflow"
    return Finding("large logits", finite, seen, None if finite else "a Sinkhorn that divides by vanished sums")


# -- one connection, from outside ---------------------------------------------------------------------------------------
def _connection(port: Connection, name: str, *, trained: bool) -> list[Finding]:
    streams = torch.randn(BATCH, TIME, port.streams, port.dim, dtype=torch.float64)
    start, moved = fresh(port.module), fresh(port.module)
    perturb_(moved, scale=0.3)
    with torch.no_grad():
        first, seen = look(port, start, streams), look(port, moved, streams)
    if seen.misfit > 1e-3:
        raise InputError(
            f"{type(port.module).__name__} is no residual of streams: what it does to them is not "
            f"X <- R X + p F(r X), by {seen.misfit:.1e}"
        )
    findings = [Finding("form", True, f"X <- R X + p F(r X) holds to {seen.misfit:.0e}")]
    findings += [] if trained or name == "independent_hc" else [_apart(first.res)]
    findings.append(_applied(seen, name))
    if name == "mhc":
        findings += [_stochastic(seen), _gates(seen)]
    findings.append(_derivative(port, moved, streams))
    return findings


def _applied(seen: SeenConnection, name: str) -> Finding:
    far = float((seen.res - torch.eye(seen.res.shape[-1]).to(seen.res)).abs().max())
    if name == "independent_hc":
        return Finding("no mixing", far < 1e-4, f"the streams' mixing is {far:.1e} from the identity")
    applied = far > 1e-3
    guess = None if applied else "the mixing (H_res) is computed but not applied"
    return Finding("mixing applied", applied, f"the mixing is {far:.1e} from the identity", guess)


def _stochastic(seen: SeenConnection) -> Finding:
    rows, columns = ((seen.res.sum(axis) - 1).abs().max() for axis in (-1, -2))
    least = float(seen.res.min())
    good = float(max(rows, columns)) < 0.05 and least > -1e-6
    guess = None
    if not good and float(rows) > 0.5 and float(columns) > 0.5:
        guess = "a Sinkhorn over slices of one row: every stream becomes a sum of all"
    text = f"rows of the mixing miss 1 by {rows:.0e}, columns by {columns:.0e}, its least entry is {least:.0e}"
    if good and float(rows) > 100 * float(columns) + 1e-6:
        # No fault in itself: whoever trains it learns the transpose. With given weights it is.
        text += "; its columns are exact, not its rows: with DeepSeek-V4's weights comb would not be transposed"
    return Finding("doubly stochastic", good, text, guess)


def _gates(seen: SeenConnection) -> Finding:
    low, high = float(seen.pre.min()), float(seen.pre.max())
    most = float(seen.post.max())
    good = low > -1e-6 and high < 1 + 1e-3 and float(seen.post.min()) > -1e-6 and most < 2 + 1e-3
    guess = None if good else "gates that are not sigmoid (read) and 2 sigmoid (write)"
    return Finding("gates", good, f"read weights are in [{low:.2f}, {high:.2f}], write weights reach {most:.2f}", guess)


def _derivative(port: Connection, module: nn.Module, streams: Tensor) -> Finding:
    """The derivative along a random move of all parameters, by autograd and by a difference."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    moves = [torch.randn_like(p) for p in parameters]
    weight = torch.randn_like(streams)

    def value() -> Tensor:
        return (port.step(module, streams, torch.tanh) * weight).sum()

    gradients = torch.autograd.grad(value(), parameters, allow_unused=True)
    along = sum(float((g * m).sum()) for g, m in zip(gradients, moves, strict=True) if g is not None)
    found = []
    with torch.no_grad():
        for size in (1e-4, -2e-4):
            for parameter, move in zip(parameters, moves, strict=True):
                parameter.add_(size * move)
            found.append(float(value()))
    difference = (found[0] - found[1]) / 2e-4
    gap = abs(along - difference) / max(abs(difference), 1e-6)
    guess = None if gap < 1e-2 else "a gradient that leaves out part of the path (Sinkhorn's iterations?)"
    return Finding("gradient", guess is None, f"autograd and a difference differ by {100 * gap:.2g} %", guess)


# -- one read of sources, from outside ---------------------------------------------------------------------------------
def _pool(port: Pool, *, trained: bool) -> list[Finding]:
    count = 4
    sources = torch.randn(count, BATCH, TIME, port.dim, dtype=torch.float64)
    start, moved = fresh(port.module), fresh(port.module)
    perturb_(moved, scale=0.3)
    with torch.no_grad():
        first, misfit = _weights(port, start, sources)
        seen, other = _weights(port, moved, sources)
        if max(misfit, other) > 1e-3:
            raise InputError(
                f"{type(port.module).__name__} is no read of sources: what it gives is not a weighted sum of them, "
                f"by {max(misfit, other):.1e}"
            )
        louder = sources.clone()
        louder[1] *= 7.0
        scaled, _ = _weights(port, moved, louder)
        order = torch.tensor([2, 0, 3, 1])
        permuted, _ = _weights(port, moved, sources[order])
    findings = [Finding("form", True, f"h is a sum of the raw sources to {max(misfit, other):.0e}")]
    if not trained:
        spread = float((first - 1 / count).abs().max())
        guess = None if spread < 1e-6 else "queries that do not start at zero"
        findings.append(Finding("start", guess is None, f"weights are {spread:.0e} from equal at the start", guess))
    total = float((seen.sum(0) - 1).abs().max())
    findings.append(Finding("softmax", total < 1e-4, f"weights sum to 1 within {total:.0e}"))
    gap = float((scaled - seen).abs().max())
    guess = None if gap < 1e-3 else "keys are not normalised"
    findings.append(Finding("key norm", guess is None, f"a source 7 times as large has weights {gap:.0e} away", guess))
    gap = float((permuted - seen[order]).abs().max())
    guess = None if gap < 1e-6 else "weights that depend on a source's place"
    findings.append(Finding("order", guess is None, f"permuted sources have weights {gap:.0e} away", guess))
    vectors = [p for p in moved.parameters() if p.shape[-1] == port.dim]
    text = (
        "the keys have a gain" if len(vectors) > 1 else "the keys have no gain of their own (it folds into the query)"
    )
    return [*findings, Finding("key gain", True, text), _temperature(port, moved, sources, seen)]


def _weights(port: Pool, module: nn.Module, sources: Tensor) -> tuple[Tensor, float]:
    """The weights [sources, tokens] that make h of the sources, and how well they do."""
    h = port.read(module, sources).reshape(-1, port.dim)
    flat = sources.flatten(1, 2).transpose(0, 1)  # [tokens, sources, d]
    weights = (h.unsqueeze(1) @ torch.linalg.pinv(flat)).squeeze(1)
    return weights.t(), float(((weights.unsqueeze(1) @ flat).squeeze(1) - h).abs().max())


def _temperature(port: Pool, module: nn.Module, sources: Tensor, weights: Tensor) -> Finding:
    """log weight against w . RMSNorm(v), w the query times the gain if there is one: the slope is 1."""
    vectors = [p.detach().flatten() for p in module.parameters() if p.numel() == port.dim]
    query = torch.stack(vectors).prod(0) if vectors else torch.ones(port.dim, dtype=torch.float64)
    flat = sources.flatten(1, 2)
    logits = (flat / flat.square().mean(-1, keepdim=True).sqrt()) @ query
    x, y = (t - t.mean(0) for t in (logits, weights.clamp_min(1e-12).log()))
    slope = float((x * y).sum() / x.square().sum().clamp_min(1e-12))
    guess = None
    if abs(slope - 1) > 0.01:
        scaled = abs(slope * port.dim**0.5 - 1) < 0.01
        guess = "logits are divided by sqrt(d)" if scaled else "the key norm's gain is forgotten, or another query"
    return Finding("temperature", guess is None, f"log weights rise by {slope:.3f} for each unit of w . key", guess)


__all__ = ["Finding", "Verification", "check_against", "examine"]
