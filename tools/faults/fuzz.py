"""Input that nobody would write: it is read, or refused in one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
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
from normlab.probes.inputs import packages, texts
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
    "YAML": (yaml, YAML, 0.3),
    "config.yaml of a run": (configuration_file, BYTES | YAML.map(lambda t: t.encode(errors="replace")), 0.15),
    "log.jsonl": (log, BYTES | VALUES.map(lambda v: json.dumps(v).encode() + b"\n"), 0.1),
    "state.json": (state, VALUES, 0.1),
    "model folder": (model_folder, st.dictionaries(NAMES, VALUES, max_size=6) | VALUES, 0.15),
    "safetensors header": (tensors, BYTES | VALUES.map(lambda v: json.dumps(v).encode()), 0.1),
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
