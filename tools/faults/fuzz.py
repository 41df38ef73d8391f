"""Input that nobody would write: it is read, or refused in one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import struct
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as reproduce
from hypothesis import strategies as st
from tools.faults.harness import forked

from normlab.cli import run as command
from normlab.config import Config, load_yaml
from normlab.errors import NormlabError
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import load as load_run
from normlab.model import TransformerConfig
from normlab.probes.inputs import hub, packages, texts
from normlab.store import seal
from normlab.tasks import task
from normlab.training import TrainConfig, checkpoint
from normlab.training.loop import TrainState
from normlab.training.record import read_log

NAMES = st.sampled_from(
    ["vocab_size", "dim", "depth", "heads", "scheme", "name", "model", "train", "task", "steps", "lr", "num_hidden_layers",
     "hidden_size", "id2label", "num_labels", "auto_map", "weight_map", "architectures", "model_type", "state", "step", "log",
     "size", "sha256", "last", "high", "seconds", "status", "kind", "loss"]
) | st.text(max_size=8)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=12)
    | st.sampled_from(["pre_norm", "attn_res", "../x", "/etc/passwd", "a\0b", "[/bold]", "=1+1", "NaN", "1e999", "BertModel"])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=20
)
TAGS = st.sampled_from(["timestamp", "int", "float", "binary", "set", "omap", "python/none"])
YAML = (
    st.text(max_size=80)
    | st.text("&*!|>-?:{}[],#%@`\"'<= \n\tab0123.e", max_size=60)
    | VALUES.map(lambda value: json.dumps(value))
    | st.builds("!!{} {}".format, TAGS, st.text(max_size=8))
)  # fmt: skip
BYTES = st.binary(max_size=200)
WORDS = st.sampled_from(
    ["schemes", "show", "config", "check", "cost", "report", "diagnose", "train", "--json", "--out", "--schemes", "--depth",
     "--text", "--tokens", "/dev/zero", "package:__main__", "package:os", "pre_norm", "all", "-1", "1e999", "a\0b", "[/b]"]
) | st.text(max_size=6)  # fmt: skip


def _json_file(folder: Path, name: str, value: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")
    return path


def yaml(folder: Path, text: str) -> None:
    values = load_yaml(text)
    kinds: list[type[Config]] = [TransformerConfig, TrainConfig, RunConfig]
    for kind in kinds if isinstance(values, dict) else ():
        with contextlib.suppress(NormlabError):
            kind.from_dict(values)


def configuration_file(folder: Path, raw: bytes) -> None:
    (folder / "config.yaml").write_bytes(raw)
    load_run(folder)


def log(folder: Path, raw: bytes) -> None:
    path = folder / "log.jsonl"
    path.write_bytes(b'{"kind": "train", "step": 1}\n' + raw)
    read_log(path, "train")


def state(folder: Path, value: object) -> None:
    """The checksum is right: only what is said is wrong."""
    there = folder / "checkpoint" / "step-000000003"
    checkpoint.save(folder / "checkpoint", 3, {}, {})
    raw = (there / "tensors.safetensors").read_bytes()
    body = {"step": 3, "sha256": hashlib.sha256(raw).hexdigest(), "state": value}
    _json_file(there, "state.json", seal(json.loads(json.dumps(body))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = checkpoint.latest(folder / "checkpoint")
    if found is not None:
        found.state_as(TrainState)


def model_folder(folder: Path, value: object) -> None:
    _json_file(folder, "config.json", value)
    _json_file(folder, "model.safetensors.index.json", value)
    with contextlib.suppress(NormlabError):
        packages.check_config(folder)
    packages.check_places(folder)


def tensors(folder: Path, raw: bytes) -> None:
    for content in (raw, struct.pack("<Q", len(raw)) + raw, struct.pack("<Q", 1 << 62) + raw):
        (folder / "model.safetensors").write_bytes(content)
        with contextlib.suppress(NormlabError):
            packages.weight_names(folder, allow_pickle=False)


def _string(text: str, lie: int) -> bytes:
    raw = text.encode(errors="replace")
    return struct.pack("<Q", (len(raw) + lie) % 2**64) + raw


def _field(name: str, kind: int, value: object, lie: int) -> bytes:
    """A field of a GGUF header; `lie` is added to the lengths that it states."""
    head = _string(name, 0) + struct.pack("<I", kind)
    if kind == GGUF_STRING:
        return head + _string(str(value), lie)
    if kind == GGUF_ARRAY:
        return head + struct.pack("<IQ", GGUF_STRING, (2 + lie) % 2**64) + _string(str(value), 0) + _string("b", lie)
    number = value if isinstance(value, int) else 1
    return head + struct.pack("<Q", number % 2**64)[: GGUF_WIDTHS.get(kind, 4)]


GGUF_STRING, GGUF_ARRAY = 8, 9
GGUF_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
GGUF_NAMES = st.sampled_from(
    [f"llama.{name}" for name in ("block_count", "embedding_length", "vocab_size", "context_length", "feed_forward_length")]
    + ["llama.attention.head_count", "general.architecture", "general.alignment", "split.count", "tokenizer.ggml.model"]
    + ["tokenizer.ggml.tokens", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.merges"]
) | st.text(max_size=6)  # fmt: skip
GGUF_VALUES = st.integers(-1, 12) | st.integers(0, 2**64 - 1) | st.sampled_from(["llama", "gpt2", "", "../x"])
LIES = st.sampled_from([0, 0, 0, 0, 1, -1, 2**31, 2**62, -(2**63)])
GGUF = st.builds(
    lambda version, tensors, fields, count, tail: (
        b"GGUF" + struct.pack("<IQQ", version, tensors, (len(fields) + count) % 2**64) + b"".join(fields) + tail
    ),
    st.sampled_from([3, 3, 3, 2, 1, 0, 2**31]),
    st.sampled_from([0, 0, 1, 2**40, 2**64 - 1]),
    st.lists(st.builds(_field, GGUF_NAMES, st.integers(0, 14), GGUF_VALUES, LIES), max_size=6).map(
        lambda fields: [_field("general.architecture", GGUF_STRING, "llama", 0), *fields]
    ),
    LIES,
    st.binary(max_size=40),
)


def gguf(folder: Path, raw: bytes) -> None:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    os.environ["NORMLAB_CACHE"] = str(folder / "cache")
    hub.load(str(path))


def text(folder: Path, raw: bytes) -> None:
    path = folder / "text"
    path.write_bytes(raw)
    for read in (texts.read_text, texts.read_tokens, lambda p: task("text", path=str(p)).stream):
        with contextlib.suppress(NormlabError):
            read(path)


def arguments(folder: Path, words: list[str]) -> None:
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = command(words)
    assert code in (0, 1, 2), code


TARGETS: dict[str, tuple[Callable[..., None], st.SearchStrategy[object], float]] = {
    "YAML": (yaml, YAML, 0.2),
    "config.yaml of a run": (configuration_file, BYTES | YAML.map(lambda t: t.encode(errors="replace")), 0.15),
    "log.jsonl": (log, BYTES | VALUES.map(lambda v: json.dumps(v).encode() + b"\n"), 0.1),
    "state.json": (state, VALUES, 0.1),
    "model folder": (model_folder, st.dictionaries(NAMES, VALUES, max_size=6) | VALUES, 0.15),
    "safetensors header": (tensors, BYTES | VALUES.map(lambda v: json.dumps(v).encode()), 0.1),
    "GGUF header": (gguf, GGUF | BYTES, 0.1),
    "texts and token ids": (text, BYTES | VALUES.map(lambda v: json.dumps(v).encode()), 0.08),
    "command line": (arguments, st.lists(WORDS, max_size=4).filter(lambda w: "demo" not in w), 0.02),
}


def fuzz(name: str, count: int, home: Path, *, seed: int = 0) -> str | None:
    """So many inputs of one kind, in a process of its own: one that dies is counted too. What was wrong, or None."""
    target, strategy, _share = TARGETS[name]
    ended = forked(lambda: _explore(target, strategy, count, seed), home / "said", seconds=3600.0)
    return None if ended.code == 0 else ended.said.strip()[-600:] or f"ended with {ended.code}"


def _explore(target: Callable[..., None], strategy: st.SearchStrategy[object], count: int, seed: int) -> None:
    quiet = list(HealthCheck)

    @reproduce(seed)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=quiet)
    @given(strategy)
    def explore(value: object) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(NormlabError):
            target(Path(folder), value)

    explore()
