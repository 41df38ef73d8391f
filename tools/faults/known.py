"""python -m tools.faults.known [NUMBER...]: faults that were found once, put back one by one; a test must see each.

The code has moved since they were repaired, so that the suite of today does not run on the code of then. Instead the repair
is taken out of a copy of today's sources, and the test that belongs to it is run on that copy: it must fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAILED = 1  # pytest: tests ran, and some failed


@dataclass(frozen=True)
class Edit:
    """In this file of the sources, `now` becomes what it was like `before`."""

    file: str
    now: str
    before: str


@dataclass(frozen=True)
class Known:
    number: int
    fault: str
    test: str
    edits: tuple[Edit, ...]


def known(number: int, fault: str, test: str, *edits: tuple[str, str, str]) -> Known:
    return Known(number, fault, f"tests/{test}", tuple(Edit(*edit) for edit in edits))


KNOWN = (
    known(
        1,
        "a diverged run resumed as finished",
        "training/test_faults.py::test_a_diverged_run_stays_diverged",
        (
            "training/loop.py",
            'self.status = "diverged" if state.status == "diverged" or ended else "running"',
            'self.status = "running"',
        ),
    ),
    known(
        2,
        "a tokenizer's own code ran after a question on the terminal",
        "probes/inputs/test_hub.py::test_a_tokenizers_own_code_neither_runs_nor_asks",
        (
            "probes/inputs/hub.py",
            "AutoTokenizer.from_pretrained(source, **here, **known)",
            "AutoTokenizer.from_pretrained(source, **known)",
        ),
    ),
    known(
        3,
        "weights that the file lacks were random numbers",
        "probes/inputs/test_hub.py::test_weights_that_are_not_there_are_not_made_up",
        ("probes/inputs/packages.py", "    if lacking:\n", "    if not known:\n"),
        ("probes/inputs/packages.py", "    lacking = [name", "    known = True\n    lacking = [name"),
    ),
    known(
        4,
        "links led out of the folder of a run",
        "test_store.py::test_links_inside_are_refused_and_the_folder_may_be_one",
        ("store.py", "link = stat.S_ISLNK(path.lstat().st_mode)", "link = not path.lstat()"),
    ),
    known(
        4,
        "an index of shards led out of the model folder",
        "probes/inputs/test_hub.py::test_an_index_names_files_of_its_folder_only",
        ("probes/inputs/packages.py", 'if Path(name).name != name or name in (".", ".."):', "if not name:"),
    ),
    known(
        5,
        "aliases of aliases were written out",
        "test_config.py::test_more_values_than_anybody_writes_are_refused",
        ("config.py", "self._count += self._sizes.get(id(node), LIMITS.yaml_values)", "self._count += 0"),
    ),
    known(
        5,
        "a text was read whole for two windows",
        "test_files.py::test_more_than_the_limit_is_refused_or_left_out",
        ("files.py", "raw = file.read(most if cut else most + 1)", "raw = file.read()"),
    ),
    known(
        6,
        "a damaged library of kernels was loaded",
        "schemes/test_depth_kernels.py::test_a_damaged_library_is_built_anew",
        (
            "schemes/depth_kernels.py",
            'return hashlib.sha256(path.read_bytes()).hexdigest() == _digest_of(path).read_text("ascii")',
            "return True",
        ),
    ),
    known(
        6,
        "a library of another owner was loaded",
        "schemes/test_depth_kernels.py::test_a_library_of_another_owner_is_not_ours",
        (
            "schemes/depth_kernels.py",
            "if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:",
            "if not stat.S_ISREG(found.st_mode):",
        ),
    ),
    known(
        7,
        "damaged files of a run ended in tracebacks",
        "training/test_faults.py::test_a_damaged_state_is_one_sentence",
        (
            "store.py",
            "    value = read_json(path, remedy=remedy)\n    if not isinstance(value, dict):\n",
            "    value = read_json(path, remedy=remedy)\n    if value == 0:\n",
        ),
    ),
    known(
        8,
        "a shortened log was accepted",
        "training/test_faults.py::test_a_shortened_log_is_not_passed_over",
        (
            "training/record.py",
            "        size = path.stat().st_size if path.exists()",
            "        return\n        size = path.stat().st_size if path.exists()",
        ),
    ),
    known(
        9,
        "a newline in --out sent a worker to another folder",
        "experiments/executors/test_local.py::test_a_name_may_hold_a_newline",
        (
            "experiments/executors/local.py",
            'json.dumps(str(folder.resolve())) + "\\n"',
            'str(folder.resolve()) + "\\n"',
        ),
        ("experiments/executors/worker.py", "attempt(json.loads(line),", "attempt(line.removesuffix(chr(10)),"),
    ),
    known(
        10,
        "stray checkpoints of later steps evicted the real ones",
        "training/test_faults.py::test_a_checkpoint_of_another_run_is_not_taken",
        ("training/checkpoint.py", "if at <= step][:-KEPT]", "if at >= 0][:-KEPT]"),
    ),
    known(
        11,
        "brackets in a path raised after all the work",
        "report/test_terminal.py::test_brackets_and_colons_are_what_they_are",
        ("report/terminal.py", "highlight=False, markup=False, emoji=False", "highlight=False"),
    ),
    known(
        12,
        "`!!timestamp x` was a traceback",
        "test_config.py::test_hostile_yaml_is_one_sentence",
        (
            "config.py",
            "except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError) as error:",
            "except RecursionError as error:",
        ),
    ),
    known(
        12,
        "`package:__main__` was a traceback",
        "probes/inputs/test_hub.py::test_packages_that_are_none",
        (
            "probes/inputs/packages.py",
            "except (ValueError, ImportError):  # __main__",
            "except ImportError:  # __main__",
        ),
    ),
    known(
        13,
        "temporary files stayed after kills",
        "test_files.py::test_what_a_kill_left_goes_with_the_next_writing",
        ("files.py", "                left.unlink()\n", "                pass\n"),
    ),
    known(
        13,
        "Ctrl-C left without its sentence",
        "cli/test_train.py::test_ctrl_c_says_what_is_kept",
        ("cli/__init__.py", '_INTERRUPTED = "interrupted; what was finished is kept, and', '_INTERRUPTED = "'),
    ),
    known(
        13,
        "a full disk named no path",
        "test_files.py::test_a_full_disk_names_the_file",
        ("files.py", "if error.errno is None or error.filename is not None:", "if error is not None:"),
    ),
    known(
        13,
        "cells of CSV began with `=`",
        "report/test_tables.py::test_no_text_is_a_formula",
        ("report/tables.py", '_FORMULA = ("=", "+", "-", "@", "\\t", "\\r")', '_FORMULA = ("\\0",)'),
    ),
    known(
        13,
        "`dim=1` gave an FFN of nothing",
        "model/test_edges.py::test_a_width_of_one_has_an_ffn",
        ("model/config.py", "8 * max(1, round(self.dim / 3))", "8 * round(self.dim / 3)"),
    ),
    known(
        13,
        "a finished run in a read-only folder was refused",
        "experiments/runs/test_folder.py::test_a_finished_run_is_only_read",
        (
            "experiments/runs/trainer.py",
            "if (ended := read_run(folder)) is not None:",
            "if (ended := None) is not None:",
        ),
    ),
    known(
        14,
        "the only checkpoint was removed while the same step was saved again (found by the campaign)",
        "training/test_checkpoint.py::test_the_only_checkpoint_survives_a_kill_while_it_is_written_again",
        ("training/checkpoint.py", "            target.rename(replaced)\n", "            shutil.rmtree(target)\n"),
    ),
    known(
        15,
        "a folder in the place of a log was opened (found by the campaign)",
        "training/test_faults.py::test_a_folder_in_the_place_of_a_log_is_one_sentence",
        ("training/record.py", "        if path.is_dir():\n", "        if False:\n"),
    ),
    known(
        16,
        "a swap that was stopped while it wrote left the new configuration beside the old weights",
        "cli/test_swap.py::test_a_folder_is_the_old_one_until_the_new_one_is_whole",
        ("store.py", "                yield room\n", "                yield home\n"),
    ),
)


def put_back(item: Known, copy: Path) -> None:
    """Take the repair out of the copy of the sources."""
    for edit in item.edits:
        path = copy / "normlab" / edit.file
        text = path.read_text()
        if text.count(edit.now) != 1:
            raise ValueError(f"{edit.file} has {text.count(edit.now)} times {edit.now!r}; once was expected")
        path.write_text(text.replace(edit.now, edit.before))


def is_seen(item: Known) -> bool:
    """Does its test fail where the repair is taken out?"""
    with tempfile.TemporaryDirectory() as home:
        copy = Path(home) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        put_back(item, copy)
        # The sources under test come first; the tests may need these tools.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", item.test]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        return done.returncode == FAILED


def table(items: tuple[Known, ...] = KNOWN) -> str:
    lines = ["| | fault | its test |", "|---:|---|---|"]
    return "\n".join([*lines, *(f"| {item.number} | {item.fault} | `{item.test}` |" for item in items)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults.known", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="only these; all if none is given")
    asked = parser.parse_args()
    missed = 0
    for item in KNOWN:
        if asked.numbers and item.number not in asked.numbers:
            continue
        seen = is_seen(item)
        missed += not seen
        print(f"{item.number:2} {'seen' if seen else 'MISSED'}: {item.fault} ({item.test})", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
