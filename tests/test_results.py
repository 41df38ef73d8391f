import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from normlab.errors import InputError
from normlab.results import Result, flat, page_of, pick, plain


@dataclass(frozen=True)
class Part:
    derived: ClassVar[tuple[str, ...]] = ("double",)

    size: float
    names: tuple[str, ...] = ()

    @property
    def double(self) -> float:
        return 2 * self.size


@dataclass(frozen=True)
class Whole(Result):
    parts: dict[int, Part]
    place: Path
    kind: str = "whole"


def test_a_result_becomes_json_with_what_is_derived_and_without_nan(tmp_path):
    whole = Whole({3: Part(0.5, ("a",)), 4: Part(math.nan)}, Path("x/y"))
    path = whole.to_json(tmp_path / "whole.json")
    assert json.loads(path.read_text()) == {
        "schema": 1, "kind": "whole", "place": "x/y",
        "parts": {"3": {"size": 0.5, "names": ["a"], "double": 1.0}, "4": {"size": None, "names": [], "double": None}},
    }  # fmt: skip


def test_what_is_no_plain_value_is_refused():
    with pytest.raises(TypeError, match="a complex is no plain value"):
        plain({"z": [1j]})
    with pytest.raises(InputError, match="a Whole has no page"):
        page_of(Whole({}, Path(".")))


def test_a_row_of_a_table_has_no_lists():
    assert flat(Part(1.0, ("a", "b"))) == {"size": 1.0, "double": 2.0}


def test_pick_reads_older_and_newer_files_and_names_the_damaged_one():
    assert pick(Part, {"size": 2.0, "added later": 1}, source="'f'") == Part(2.0)
    with pytest.raises(InputError, match=r"'f' is damaged: .*'size'"):
        pick(Part, {"names": []}, source="'f'")
    with pytest.raises(InputError, match="'f' is damaged: a mapping was expected, and it holds list"):
        pick(Part, [], source="'f'")
