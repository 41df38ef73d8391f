"""python tools/audit.py: known weaknesses of the tested versions (constraints.txt), by pip-audit, over the network.

Exit code 0: every version was looked up and none has a known weakness; 1: some have; 3: some or all could not be looked up.
pip-audit says "No known vulnerabilities found" of versions that it could not look up, so what it says is counted here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "audit"  # an environment of its own: nothing is added to the one that is tested
CLEAN, WEAK, UNKNOWN = 0, 1, 3


@dataclass(frozen=True)
class Audit:
    checked: tuple[str, ...]
    unknown: tuple[str, ...]  # not looked up
    weak: tuple[str, ...]  # "name version: id, id"

    @classmethod
    def from_json(cls, text: str) -> Audit:
        checked, unknown, weak = [], [], []
        for item in json.loads(text)["dependencies"]:
            if "skip_reason" in item:
                unknown.append(item["name"])
                continue
            checked.append(item["name"])
            if item["vulns"]:
                weak.append(f"{item['name']} {item['version']}: {', '.join(found['id'] for found in item['vulns'])}")
        return cls(tuple(checked), tuple(unknown), tuple(weak))

    @property
    def code(self) -> int:
        return WEAK if self.weak else UNKNOWN if self.unknown or not self.checked else CLEAN

    def __str__(self) -> str:
        if not self.checked:
            return f"audit: nothing was checked: none of {len(self.unknown)} versions could be looked up (no network?)"
        lines = [f"audit: {len(self.checked)} versions checked, {len(self.weak)} with known weaknesses", *self.weak]
        if self.unknown:
            lines.append(f"not looked up: {', '.join(self.unknown)}")
        return "\n".join(lines)


def main() -> int:
    python = PLACE / "bin" / "python"
    if not python.exists():
        venv.create(PLACE, with_pip=True)
    install = [str(python), "-m", "pip", "install", "-q", "pip-audit"]
    if subprocess.run([str(python), "-m", "pip_audit", "--version"], capture_output=True, check=False).returncode != 0:
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print("audit: nothing was checked: pip-audit is not installed and cannot be fetched", file=sys.stderr)
            return UNKNOWN
    command = [
        str(python),
        "-m",
        "pip_audit",
        "--disable-pip",
        "--no-deps",
        "--format",
        "json",
        "-r",
        "constraints.txt",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    try:
        found = Audit.from_json(done.stdout)
    except (ValueError, KeyError):
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"audit: nothing was checked: {said}", file=sys.stderr)
        return UNKNOWN
    print(found, file=sys.stderr if found.code else sys.stdout)
    return found.code


if __name__ == "__main__":
    sys.exit(main())
