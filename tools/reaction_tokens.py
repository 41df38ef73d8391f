"""Token ids of chemical reactions for the models of rxnfp and rxnmapper, one reaction a line.

    pip install --no-deps rxnfp rxnmapper
    python tools/reaction_tokens.py reactions.txt
    normlab diagnose package:rxnfp/bert_pretrained --allow-pickle --tokens reactions.txt --window 64

Textbook reactions (amide and ester formation, Suzuki coupling, alkylation, reductive amination, Boc chemistry) are written
out over lists of building blocks, in the order of a fixed seed, and cut into atoms as the packages do. They are valid
SMILES but not the patents that the models were trained on; that the models know them shows in the masked loss. Every
line is a whole reaction of 62 tokens (solvents fill it up), so that windows of 64 with [CLS] and [SEP] are whole too.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

from normlab.probes.inputs.packages import package_weights

ATOMS = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|.")
ACYL = ("CC", "CCC", "CC(C)", "c1ccccc1", "Cc1ccc(cc1)", "COc1ccc(cc1)", "O=[N+]([O-])c1ccc(cc1)", "c1ccc(Cl)cc1", "C1CCCCC1",
        "c1ccncc1", "CC(C)(C)OC(=O)NC", "FC(F)(F)c1ccc(cc1)")  # fmt: skip
AMINE = (
    "CC",
    "CCC",
    "Cc1ccccc1",
    "c1ccccc1",
    "c1ccc(F)cc1",
    "CCO",
    "CCN(C)C",
    "C1CCCCC1",
    "Cc1ccncc1",
    "CCc1ccc(O)cc1",
)
ARYL = ("c1ccccc1", "c1ccc(C)cc1", "c1ccc(OC)cc1", "c1ccc(C#N)cc1", "c1ccc(C(=O)OC)cc1", "c1cccnc1", "c1ccc(C=O)cc1")


SOLVENTS = (
    "O",
    "CO",
    "CCO",
    "ClCCl",
    "CC#N",
    "CC(C)O",
    "C1CCOC1",
    "CN(C)C=O",
    "C1COCCO1",
    "Cc1ccccc1",
    "CCOC(C)=O",
    "",
)
LENGTH = 62


def filled(text: str) -> str | None:
    """The same reaction with two solvents, or one or none, that make it LENGTH tokens long; None if none do."""
    before, after = text.split(">>")
    for first in SOLVENTS:
        for second in SOLVENTS:
            parts = [before, *(s for s in (first, second) if s and s not in before.split("."))]
            molecules = sorted(".".join(parts).split("."))  # as in the models' training sets
            whole = f"{'.'.join(molecules)}>>{after}"
            if len(ATOMS.findall(whole)) == LENGTH:
                return whole
    return None


def reactions() -> list[str]:
    found = []
    for r in ACYL:
        for s in AMINE:
            found += [
                f"{r}C(=O)O.N{s}.CN(C)C=O.CCN(C(C)C)C(C)C>>{r}C(=O)N{s}",
                f"{r}C(=O)Cl.N{s}.CCN(CC)CC.ClCCl>>{r}C(=O)N{s}",
                f"{r}C(=O)O.O{s}.O=S(=O)(O)O>>{r}C(=O)O{s}",
                f"{r}C=O.N{s}.[BH3-]C#N.[Na+].CO>>{r}CN{s}",
                f"CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.N{s}.C1CCOC1>>CC(C)(C)OC(=O)N{s}",
                f"CC(C)(C)OC(=O)N{s}.O=C(O)C(F)(F)F.ClCCl>>N{s}",
                f"BrC{s}.O{r}.O=C([O-])[O-].[K+].[K+].CN(C)C=O>>{r}OC{s}",
            ]
    for r in ARYL:
        for s in ARYL:
            found.append(f"Br{r}.OB(O){s}.O=C([O-])[O-].[Na+].[Na+].C1COCCO1.O>>{r}-{s}")
    return sorted(set(found))


def token_ids(texts: list[str], vocabulary: dict[str, int]) -> list[list[int]]:
    return [[vocabulary.get(atom, vocabulary["[UNK]"]) for atom in ATOMS.findall(text)] for text in texts]


def main() -> None:
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "reactions.txt")
    words = (package_weights("rxnfp/bert_pretrained") / "vocab.txt").read_text(encoding="utf-8").splitlines()
    texts = [whole for whole in map(filled, reactions()) if whole is not None]
    random.Random(0).shuffle(texts)
    rows = token_ids(texts, {word: i for i, word in enumerate(words)})
    place.write_text("\n".join(" ".join(map(str, row)) for row in rows) + "\n", encoding="utf-8")
    print(f"{place}: {len(rows)} reactions, {sum(map(len, rows))} tokens")


if __name__ == "__main__":
    main()
