"""Which text model families of the installed transformers does `diagnose` understand? Makes docs/diagnose/families.md.

    python tools/families.py            try every family that is not in families.json yet, then write the table
    python tools/families.py bert t5    try these again
    python tools/families.py --table    write the table from families.json alone

Each family is built small with random weights in a process of its own, with a time limit, and diagnosed on random token
ids. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))
RESULTS = HERE / "docs" / "diagnose" / "families.json"
PAGE = HERE / "docs" / "diagnose" / "families.md"
SECONDS = 900
# Families whose input is no text, so token ids alone do not run them.
OTHER_INPUT = {
    "audio": ("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "moshi", "musicgen", "musicgen_melody",
              "musicflamingo", "nemo_speechlm", "qwen2_audio", "qwen3_asr", "seamless_m4t", "seamless_m4t_v2", "speecht5",
              "vibevoice_asr", "voxtral", "voxtral_realtime", "whisper", "moss_transcribe_diarize", "speech-encoder-decoder",
              "cohere_asr", "moonshine", "moonshine_streaming", "kyutai_speech_to_text", "vibevoice", "higgs_audio_v2"),
    "images": ("fuyu", "git", "got_ocr2", "mllama", "modernvbert", "ultravbert", "trocr", "vision-encoder-decoder", "neomme",
               "pix2struct", "pp_formulanet", "florence2"),
    "page layouts or tables": ("layoutlm", "tapas", "udop"),
    "the hidden states of another model": ("gemma4_assistant", "gemma4_unified_assistant"),
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What became of one family."""

    name: str
    outcome: str  # "diagnosed", "refused", "not built" or "other input"
    model: str = ""
    placement: str = ""
    identity_error: float | None = None
    attention: str = ""
    why: str = ""
    layers: int = 0
    seconds: float = 0.0
    monitor: str = ""  # "works", or what went wrong in one training step that was watched


def names() -> list[str]:
    """Every family with a causal, masked or sequence-to-sequence head."""
    from transformers.models.auto import modeling_auto as auto

    return sorted(set(_heads(auto)))


def _heads(auto: Any) -> dict[str, str]:
    masked, causal = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return {**masked, **causal, **auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}  # a decoder alone is half of BART


def main(arguments: list[str]) -> None:
    known = load()
    if "--table" not in arguments:
        wanted = [name for name in arguments if not name.startswith("-")] or [n for n in names() if n not in known]
        if "--refused" in arguments:
            wanted = [name for name, each in known.items() if each.outcome in ("refused", "not built")]
        for number, name in enumerate(wanted):
            known[name] = apart(name)
            save(known)
            print(f"{number + 1}/{len(wanted)} {line(known[name])}", flush=True)
    PAGE.write_text(table(known.values()), encoding="utf-8")


def line(f: Family) -> str:
    return f"{f.name}: {f.outcome} {f.placement} {f.identity_error} {f.attention} {f.why} ({f.seconds:.1f} s)"


def load() -> dict[str, Family]:
    return {each["name"]: Family(**each) for each in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}


def save(known: dict[str, Family]) -> None:
    rows = [asdict(known[name]) for name in sorted(known)]
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    temporary.replace(RESULTS)


def apart(name: str) -> Family:
    """One family in a process of its own: what it breaks, breaks there."""
    other = next((what for what, group in OTHER_INPUT.items() if name in group), None)
    if other is not None:
        return Family(name, "other input", why=f"it reads {other}")
    import torch
    import transformers  # noqa: F401  both are loaded once, before the processes part

    torch.set_num_threads(1)
    start, (read, write) = time.monotonic(), os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write, "w") as pipe, contextlib.suppress(BaseException):
            signal.alarm(SECONDS)
            pipe.write(json.dumps(asdict(attempt(name))))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    seconds = round(time.monotonic() - start, 1)
    if not told:
        ended = f"no answer in {SECONDS} s" if os.WIFSIGNALED(status) else f"the process ended ({status})"
        return Family(name, "refused", why=ended, seconds=seconds)
    return Family(**{**json.loads(told), "seconds": seconds})


def attempt(name: str) -> Family:
    """Build and diagnose one family here."""
    import torch

    from normlab.errors import NormlabError
    from normlab.probes.diagnose import diagnose

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    try:
        model, batch = build(name)
        with torch.no_grad():
            model(**batch)
    except Exception as error:  # whatever a model of somebody else's raises on a small configuration
        return Family(name, "not built", why=_short(error))
    head = type(model).__name__
    try:
        found = diagnose(model, [batch], skips=False, lengths=[16])
    except NormlabError as error:
        return Family(name, "refused", head, why=str(error))
    except Exception as error:
        return Family(name, "refused", head, why=f"a fault of normlab: {_short(error)}")
    stacks = found.stacks
    return Family(
        name,
        "diagnosed",
        head,
        placement="; ".join(f"{d.stack}: {d.placement}" if d.stack else d.placement for d in stacks),
        identity_error=None
        if any(math.isnan(d.identity_error) for d in stacks)
        else max(d.identity_error for d in stacks),
        attention="; ".join(dict.fromkeys(_attention(d) for d in stacks)),
        layers=sum(len(d.layers) for d in stacks),
        monitor=monitored(model, batch),
    )


def monitored(model: Any, batch: dict[str, Any]) -> str:
    """One training step under `Monitor`, without an example: the first batch is what it reads the layers from."""
    import torch

    from normlab.probes.monitor import Monitor

    model.train()
    monitor = Monitor(model, every=1)
    try:
        monitor.before_step()
        output = model(**batch)
        values = output.logits if isinstance(getattr(output, "logits", None), torch.Tensor) else output[0]
        values.float().square().mean().backward()
        monitor.gradients()
        seen = monitor.step()
    except Exception as error:
        return _short(error)
    finally:
        monitor.close()
    bad = [name for name, value in seen.items() if not math.isfinite(value)]
    layers = [name for name in seen if name.startswith("stream/") and name.endswith("/norm") and "/mean/" not in name]
    return f"{bad[0]} is not finite" if bad else "works" if layers else "saw no layer"


def _attention(diagnosis: Any) -> str:
    measured = [row.layer for row in diagnosis.layers if row.entropy is not None]
    reasons = dict.fromkeys(row.unmeasured for row in diagnosis.layers if row.unmeasured)
    if len(measured) == len(diagnosis.layers):
        return "measured"
    some = [f"measured in {len(measured)} of {len(diagnosis.layers)} layers"] if measured else []
    return ", ".join([*some, *(reasons or ["not measured, without a reason"])])


def _short(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:160]}"


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """A small model with random weights and a batch for it."""
    import torch
    import transformers
    from tools.families_small import small_config
    from transformers.models.auto import modeling_auto as auto

    head = _heads(auto)[name]
    kind = getattr(transformers, head if isinstance(head, str) else head[0])
    config = small_config(name)
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(0)
    vocabulary = min(97, getattr(config.get_text_config(), "vocab_size", 97) or 97)
    batch = {"input_ids": torch.randint(5, vocabulary, (2, 24), generator=generator)}
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = torch.randint(5, vocabulary, (2, 20), generator=generator)
    return model, batch


def tried(families: Iterable[Family]) -> list[Family]:
    return [f for f in families if f.outcome in ("diagnosed", "refused")]


def exact(families: Iterable[Family]) -> list[Family]:
    """Those whose residual identity holds."""
    return [f for f in families if f.identity_error is not None and f.identity_error < 1e-4]


def with_attention(families: Iterable[Family]) -> list[Family]:
    """Transformers: softmax attention in some layer. What was refused counts as one."""
    return [f for f in families if f.outcome == "refused" or f.attention.startswith("measured")]


def table(families: Iterable[Family]) -> str:
    """The page."""
    rows = sorted(families, key=lambda f: f.name)
    run = tried(rows)
    attended, good = with_attention(run), exact(run)
    share = 100 * len(exact(attended)) / max(1, len(attended))
    lines = [
        "# Text model families, tried",
        "",
        "Made by `make families`: every family of the installed transformers with a causal, masked or "
        "sequence-to-sequence head, built small with random weights and diagnosed on random token ids.",
        "",
        f"**{len(run)} families were run: {len(good)} were diagnosed with an identity error below 1e-4, "
        f"{len(run) - len(good)} not.** Of the {len(attended)} that have softmax attention in some layer (or were "
        f"refused), {share:.1f} % were. {sum(f.outcome == 'not built' for f in rows)} could not be built small, "
        f"{sum(f.outcome == 'other input' for f in rows)} read something else than text. `nl.Monitor` watched a step "
        f"of {sum(f.monitor == 'works' for f in rows)} of the {sum(f.outcome == 'diagnosed' for f in rows)} diagnosed.",
        "",
        "The identity error is the largest difference, over layers and branches, between what a layer returns and the sum "
        "that its roles say it is, in units of what is added.",
        "",
        "| family | model | placement | identity error | attention | monitor |",
        "|---|---|---|---|---|---|",
    ]
    for f in rows:
        if f.outcome == "diagnosed":
            error = (
                "none: no single stream"
                if f.identity_error is None or f.identity_error != f.identity_error
                else f"{f.identity_error:.1e}"
            )
            lines.append(f"| {f.name} | {f.model} | {f.placement} | {error} | {f.attention} | {f.monitor} |")
    for title, outcome in (
        ("Refused", "refused"), ("Could not be built small", "not built"), ("Not text", "other input")
    ):  # fmt: skip
        chosen = [f for f in rows if f.outcome == outcome]
        if chosen:
            lines += ["", f"## {title}", "", "| family | why |", "|---|---|"]
            lines += [f"| {f.name} | {f.why.replace('|', '/')} |" for f in chosen]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
