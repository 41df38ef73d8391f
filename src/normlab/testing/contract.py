"""The contract suite: what every scheme must do. Public, so that you can run it on your own.

    import normlab as nl
    nl.testing.check_scheme(MyScheme)            # a config class, a config, or a registered name

Each check is a function of a scheme config; it raises `ContractError` with what was seen and what was expected. The suite
runs on tiny models and takes some seconds per scheme, most of them for torch.compile and for starting two processes.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.errors import ConfigError, ContractError, UnsupportedError, unknown
from normlab.model import Transformer, TransformerConfig
from normlab.schemes import SCHEMES, Frame, SchemeConfig, lookup, make_sites, scheme

VOCABULARY = 29
__all__ = ["CHECKS", "check_scheme", "measure_growth"]
Check = Callable[[SchemeConfig], None]
CHECKS: dict[str, Check] = {}


def check_scheme(
    which: str | SchemeConfig | type[SchemeConfig], *, only: Iterable[str] = (), skip: Iterable[str] = ()
) -> list[str]:
    """Run the contract suite; returns the names of the checks that passed, raises ContractError with all that failed."""
    config, only, skip = _as_config(which), tuple(only), tuple(skip)
    for name in (*only, *skip):
        if name not in CHECKS:
            raise ConfigError(unknown("check", name, CHECKS))
    chosen = [name for name in CHECKS if name in (only or CHECKS) and name not in skip]
    failed = []
    for name in chosen:
        try:
            CHECKS[name](config)
        except ContractError as error:
            failed.append(f"{name}: {error}")
        except Exception as error:
            failed.append(f"{name}: raised {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}")
    if failed:
        raise ContractError(f"{config.name} breaks {len(failed)} of {len(chosen)} rules:\n  " + "\n  ".join(failed))
    return chosen


def check(function: Check) -> Check:
    """Add a rule to the suite."""
    CHECKS[function.__name__] = function
    return function


# -- helpers ----------------------------------------------------------------------------------------------------------
def _as_config(which: str | SchemeConfig | type[SchemeConfig]) -> SchemeConfig:
    if isinstance(which, str):
        return scheme(which)
    if isinstance(which, SchemeConfig):
        return which
    return which()  # type: ignore[call-arg]  # a registered class has a default name


def tiny_config(config: SchemeConfig, **changes: Any) -> TransformerConfig:
    """Four layers, so that Mix-LN has a Post layer, and sizes that divide badly."""
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 24, "depth": 4, "heads": 2, "max_length": 16}
    return TransformerConfig(**{**shape, "scheme": config, **changes})


def tiny_model(config: SchemeConfig, *, seed: int = 0, perturbed: bool = True, **changes: Any) -> Transformer:
    """A small model; perturbed, its residual path is away from the neutral start, so that mistakes show."""
    torch.manual_seed(seed)
    model = Transformer(tiny_config(config, **changes))
    if perturbed:
        perturb_(model.scheme)
    return model


@torch.no_grad()
def perturb_(module: nn.Module, *, scale: float = 0.1, seed: int = 1) -> None:
    """Move every parameter a little, in place."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.add_((scale * noise).to(parameter))


def _impossible(config: SchemeConfig, changes: dict[str, Any]) -> bool:
    """Is this shape impossible for the scheme's options (more blocks than branches)? Then it is not asked for."""
    try:
        tiny_config(config, **changes)
    except ConfigError:
        return True
    return False


def some_tokens(batch: int = 3, time: int = 7, *, seed: int = 2) -> Tensor:
    """Random token ids [batch, time] of the small vocabulary."""
    return torch.randint(0, VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(seed))


def loss_of(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Next-token cross-entropy."""
    logits = model(tokens)[:, :-1]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), tokens[:, 1:].reshape(-1))


def gradients_of(model: nn.Module, tokens: Tensor, run: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
    """Parameter name -> gradient of the next-token loss."""
    model.zero_grad(set_to_none=True)
    loss_of(model if run is None else run, tokens).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def expect(condition: bool, message: str) -> None:
    """Raise ContractError unless the condition holds."""
    if not condition:
        raise ContractError(message)


def expect_close(got: Tensor, wanted: Tensor, what: str, *, tolerance: float) -> None:
    """Largest absolute difference against the largest wanted value."""
    gap = (got.double() - wanted.double()).abs().max().item()
    size = max(wanted.double().abs().max().item(), 1e-3)
    expect(
        gap <= tolerance * size, f"{what} differ by {gap:.2e} where values reach {size:.2e} (tolerance {tolerance:g})"
    )


def expect_same_gradients(got: dict[str, Tensor], wanted: dict[str, Tensor], what: str, *, tolerance: float) -> None:
    expect(
        got.keys() == wanted.keys(), f"{what}: other parameters have gradients: {sorted(got.keys() ^ wanted.keys())}"
    )
    largest = max(g.abs().max().item() for g in wanted.values())
    for name in wanted:
        gap = (got[name].double() - wanted[name].double()).abs().max().item()
        size = max(wanted[name].abs().max().item(), 1e-4 * largest)  # rounding is of the size of the large ones
        expect(gap <= tolerance * size, f"{what}: the gradient of {name} (up to {size:.2e}) differs by {gap:.2e}")


# -- the rules --------------------------------------------------------------------------------------------------------
@check
def shapes_and_dtypes(config: SchemeConfig) -> None:
    """Logits are [batch, time, vocabulary] in the model's dtype, also for one token, one layer, and no FFN."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = tiny_model(config).to(dtype)
        for batch, time in ((3, 7), (1, 1)):
            logits = model(some_tokens(batch, time))
            expect(
                logits.shape == (batch, time, VOCABULARY) and logits.dtype == dtype,
                f"logits for {batch} x {time} tokens in {dtype} are {tuple(logits.shape)}, {logits.dtype}",
            )
            expect(bool(logits.isfinite().all()), f"logits in {dtype} are not finite")
    variants: tuple[dict[str, Any], ...] = (
        {"ffn": "none", "depth": 8},
        {"norm": "layernorm"},
        {"depth": 1},
    )
    for changes in variants:
        if _impossible(config, changes):
            continue
        logits = tiny_model(config, **changes)(some_tokens())
        expect(bool(logits.isfinite().all()), f"logits with {changes} are not finite")


@check
def gradients_reach_everything(config: SchemeConfig) -> None:
    """Every parameter gets a finite gradient that is not zero, except rows that the config declares."""
    model = tiny_model(config)
    frame = model.scheme.frame
    found = gradients_of(model, some_tokens())
    exempt = {f"scheme.{name}": rows for name, rows in config.zero_gradients(frame).items()}
    for name, _ in model.named_parameters():
        expect(name in found, f"{name} gets no gradient at all")
        gradient = found[name]
        expect(bool(gradient.isfinite().all()), f"the gradient of {name} is not finite")
        rows = exempt.get(name, ())
        for row in rows:
            expect(bool((gradient[row] == 0).all()), f"the gradient of {name}[{row}] should be exactly zero")
        expect(bool((gradient != 0).any()), f"the gradient of {name} is zero everywhere")
        if name.startswith("scheme."):  # stacked over branches: one of them may be cut off while the others learn
            dead = [i for i, row in enumerate(gradient) if i not in rows and not bool((row != 0).any())]
            expect(not dead, f"the gradient of {name} is zero in the rows {dead}")


@check
def meta_device(config: SchemeConfig) -> None:
    """Meta construction, then to_empty and init_weights, equals direct construction: nothing hides from init."""
    torch.manual_seed(0)
    direct = Transformer(tiny_config(config))
    with torch.device("meta"):
        late = Transformer(tiny_config(config))
    late.to_empty(device="cpu")
    for tensor in (*late.parameters(), *late.buffers()):  # what to_empty leaves is arbitrary: make it unmistakable
        tensor.data.fill_(torch.nan) if tensor.is_floating_point() else tensor.data.fill_(-1)
    torch.manual_seed(0)
    late.init_weights()
    for (name, wanted), got in zip(direct.state_dict().items(), late.state_dict().values(), strict=True):
        expect(torch.equal(wanted, got), f"{name} differs between direct and meta construction")
    tokens = some_tokens()
    expect(torch.equal(direct(tokens), late(tokens)), "outputs differ between direct and meta construction")


@check
def state_and_config_round_trip(config: SchemeConfig) -> None:
    """The state dict and the config text rebuild the model, to the bit."""
    from safetensors.torch import load, save

    expect(config.name in SCHEMES, f"{config.name!r} is not registered: call normlab.register on its config class")
    expect(type(config) is lookup(config.name), f"{config.name!r} is registered to another class")
    model = tiny_model(config)
    text = model.config.to_yaml()
    again = TransformerConfig.from_yaml(text)
    expect(again == model.config, f"the config does not survive YAML: {text}")
    expect(TransformerConfig.from_yaml(model.config.to_json()) == model.config, "the config does not survive JSON")
    torch.manual_seed(99)
    twin = Transformer(again)
    twin.load_state_dict(load(save({k: v.contiguous() for k, v in model.state_dict().items()})))
    tokens = some_tokens()
    expect(torch.equal(model(tokens), twin(tokens)), "a reloaded model gives other outputs")


@check
def neutral_equals_parent(config: SchemeConfig) -> None:
    """At its neutral setting, the scheme computes the function of its parent scheme (float64, eps as usual)."""
    neutral = config.neutral()
    if neutral is None:
        default = type(config)()  # type: ignore[call-arg]
        expect(
            config != default or config.card.parent is None, "the card names a parent, but there is no neutral setting"
        )
        return
    name = neutral.parent()
    expect(name is not None, "there is a neutral setting, but no parent that it equals")
    model = tiny_model(neutral, perturbed=False).double()
    parent = tiny_model(scheme(str(name)), perturbed=False).double()
    shared = {name: value for name, value in model.state_dict().items() if not name.startswith("scheme.")}
    parent.load_state_dict(shared, strict=False)
    tokens = some_tokens()
    expect_close(model(tokens), parent(tokens), f"outputs of {neutral} and {name}", tolerance=1e-10)


@check
def copies_and_pickles(config: SchemeConfig) -> None:
    """deepcopy and pickle give the same model: it can be sent to a worker process."""
    model, tokens = tiny_model(config), some_tokens()
    wanted = model(tokens)
    for how, twin in (("deepcopy", copy.deepcopy(model)), ("pickle", pickle.loads(pickle.dumps(model)))):
        expect(torch.equal(twin(tokens), wanted), f"a model that went through {how} gives other outputs")


@check
def verbs_are_pure(config: SchemeConfig) -> None:
    """A stream is a value: reading twice gives the same, and writing leaves the old stream as it was."""
    model = tiny_model(config)
    mixer, site = model.scheme, model.sites[0]
    with torch.no_grad():
        stream = mixer.open(torch.randn(2, 3, model.config.dim))
        first, carry = mixer.read(stream, site)
        before = first.clone()
        mixer.write(stream, torch.randn_like(first), carry, site)
        again, _ = mixer.read(stream, site)
    expect(torch.equal(before, first) and torch.equal(before, again), "write changed the stream that it was given")


@check
def compiles(config: SchemeConfig) -> None:
    """torch.compile(fullgraph=True) equals eager, outputs and gradients (backend aot_eager: cheap and complete)."""
    check_compiled(config, backend="aot_eager")


def check_compiled(config: SchemeConfig, *, backend: str) -> None:
    """Outputs and gradients of the compiled model are those of the eager one."""
    model = tiny_model(config, depth=2 if config.name != "mix_norm" else 4)
    tokens = some_tokens()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    wanted, expected = gradients_of(model, tokens), model(tokens)
    got = gradients_of(model, tokens, run=compiled)
    expect_close(compiled(tokens), expected, "compiled and eager outputs", tolerance=1e-5)
    expect_same_gradients(got, wanted, "compiled against eager", tolerance=1e-4)


@check
def autocast_stays_finite(config: SchemeConfig) -> None:
    """bfloat16 autocast: finite outputs and gradients, near those of float32."""
    # With a small embedding: at unit size a softmax over depth whose queries come from the input is so sharp that rounding
    # decides which source wins.
    model = tiny_model(config, start="authors")
    tokens = some_tokens()
    reference = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens)
        loss = loss_of(model, tokens)
    loss.backward()
    expect(bool(logits.isfinite().all()), "outputs under bfloat16 autocast are not finite")
    expect(
        all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None), "gradients are not finite"
    )
    expect_close(logits, reference, "outputs under autocast and in float32", tolerance=0.2)


@check
def cached_generation(config: SchemeConfig) -> None:
    """Decoding with the cache gives the logits of a full pass, token by token and in chunks."""
    model = tiny_model(config).double().eval()
    tokens = some_tokens(2, 9)
    with torch.no_grad():
        whole = model(tokens)
        for sizes in ((1,) * 9, (4, 1, 3, 1)):
            cache = model.new_cache(2, 9)
            parts = [model(part, cache=cache) for part in tokens.split(sizes, dim=1)]
            expect_close(torch.cat(parts, 1), whole, f"cached (chunks {sizes}) and full logits", tolerance=1e-10)
    one = model.generate(tokens[:, :3], max_new_tokens=5, temperature=0)
    two = model.generate(tokens[:, :3], max_new_tokens=5, temperature=0, use_cache=False)
    expect(torch.equal(one, two), "cached and uncached generation differ")


@check
def activation_checkpointing(config: SchemeConfig) -> None:
    """Recomputing layers in the backward pass gives the same gradients."""
    model = tiny_model(config).double()
    tokens = some_tokens()
    wanted = gradients_of(model, tokens)
    model.enable_checkpointing()
    expect_same_gradients(gradients_of(model, tokens), wanted, "with activation checkpointing", tolerance=1e-10)


@check
def no_future_leak(config: SchemeConfig) -> None:
    """Changing a token changes no earlier output."""
    model = tiny_model(config).double()
    tokens = some_tokens()
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCABULARY
    with torch.no_grad():
        one, two = model(tokens), model(changed)
    expect(torch.allclose(one[:, :4], two[:, :4], rtol=0, atol=1e-12), "a later token changes an earlier output")
    expect(not torch.allclose(one[:, 4:], two[:, 4:], rtol=0, atol=1e-9), "a changed token changes nothing at all")


@check
def batch_permutation(config: SchemeConfig) -> None:
    """Sequences of a batch do not see each other: their order and their company do not matter."""
    model = tiny_model(config).double()
    tokens = some_tokens(4)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        whole = model(tokens)
        expect_close(model(tokens[order]), whole[order], "outputs of a permuted batch", tolerance=1e-12)
        expect_close(model(tokens[1:2]), whole[1:2], "outputs of a sequence alone and in a batch", tolerance=1e-12)


@check
def parameters_as_stated(config: SchemeConfig) -> None:
    """The card's formulas count the parameters: of the residual path, and with the branches' against no_norm."""
    for depth, norm in ((4, "rmsnorm"), (7, "layernorm")):
        model = tiny_model(config, perturbed=False, depth=depth, norm=norm)
        frame, shape = model.scheme.frame, model.config
        names = {"d": shape.dim, "M": 2 * depth, "L": depth, "N": frame.norm_parameters, "V": VOCABULARY}
        names |= {"n": getattr(config, "streams", 0), "F": shape.size_of_ffn, "h": shape.size_of_head}
        names |= config.symbols(frame)
        plain = tiny_model(scheme("no_norm"), perturbed=False, depth=depth, norm=norm)
        built = sum(p.numel() for p in model.scheme.parameters())
        # Formulas of a card, which is code, not user input.
        stated, inside = (
            eval(text, {"__builtins__": {}}, names)
            for text in (config.card.extra_parameters, config.card.branch_parameters)
        )
        more = model.num_parameters() - plain.num_parameters()
        expect(more == built + inside, f"{more} more than no_norm at {names}, but the card says {built} + {inside}")
        expect(
            built == stated,
            f"{built} parameters at {names}, but the card says {config.card.extra_parameters} = {stated}",
        )


@check
def growth_law(config: SchemeConfig) -> None:
    """What branches read grows at initialisation as the config's closed form says (within 15 %)."""
    frame = Frame(256, make_sites(6))
    law = config.growth(frame)
    expect(
        len(law) == len(frame.sites) + 1, f"the law has {len(law)} values for {len(frame.sites)} branches and a close"
    )
    for index, (stated, seen) in enumerate(zip(law, measure_growth(config, frame), strict=True)):
        if stated is None:
            continue
        low, high = stated if isinstance(stated, tuple) else (stated, stated)
        expect(0.85 * low <= seen <= 1.15 * high, f"read {index} has mean square {seen:.4g}, but the law says {stated}")


@torch.no_grad()
def measure_growth(config: SchemeConfig, frame: Frame, *, tokens: int = 128, seeds: int = 6) -> list[float]:
    """Mean square of h at each read and at the close, for branches F(x) = W x, W fresh, N(0, 1/d)."""
    totals = torch.zeros(len(frame.sites) + 1)
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        mixer = config.build(frame)
        with mixer.taped() as tape:
            stream = mixer.open(torch.randn(1, tokens, frame.dim, generator=generator))
            for site in frame.sites:
                x, carry = mixer.read(stream, site)
                weight = torch.randn(frame.dim, frame.dim, generator=generator) * frame.dim**-0.5
                stream = mixer.write(stream, x @ weight, carry, site)
            mixer.close(stream)
        totals += torch.stack([h.square().mean() for h in tape.reads])
    return (totals / seeds).tolist()


@check
def depth_mixing_rebuilds(config: SchemeConfig) -> None:
    """Where the scheme is linear in its branches, M rebuilds every read to rounding; elsewhere it says why not."""
    model = tiny_model(config).double()
    try:
        found = model.depth_mixing_parts(some_tokens())
    except UnsupportedError as error:
        expect(model.scheme.not_linear is not None or getattr(config, "heads", 1) > 1, f"no matrix: {error}")
        return
    expect(found.error < 1e-12, f"sum_i M[l,i] v_i misses h by {found.error:.1e} (relative)")
    expect(len(model.sites) + 1 == found.matrix.shape[2] == found.matrix.shape[3], "M is not square")
    above = torch.triu(found.matrix, diagonal=1).abs().max().item()
    expect(above == 0, "a read depends on a later branch")


@check
def data_parallel(config: SchemeConfig) -> None:
    """DDP over two gloo processes gives the gradients of one process on the whole batch."""
    from normlab.testing.data_parallel import check_data_parallel

    check_data_parallel([config])
