"""Line coverage by room, from coverage's JSON report (`make coverage`)."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(report: str) -> None:
    lines: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for path, found in json.loads(Path(report).read_text(encoding="utf-8"))["files"].items():
        parts = Path(path).parts
        inside = parts[parts.index("normlab") + 1 :]
        room = "/".join(inside[:-1]) or "(top)"
        lines[room] += found["summary"]["num_statements"]
        seen[room] += found["summary"]["covered_lines"]
    for room in sorted(lines):
        print(f"{room:<28}{100 * seen[room] / max(lines[room], 1):>6.1f} %  of {lines[room]} lines")
    print(
        f"{'all':<28}{100 * sum(seen.values()) / max(sum(lines.values()), 1):>6.1f} %  of {sum(lines.values())} lines"
    )


if __name__ == "__main__":
    main(sys.argv[1])
