"""Every fault that was found once has a test that sees it again."""

import ast
from pathlib import Path

import pytest
from tools.faults.known import KNOWN, ROOT, is_seen, put_back, table

IDS = [f"{item.number} {item.fault}" for item in KNOWN]


def test_none_is_left_out():
    assert {item.number for item in KNOWN} == set(range(1, 17))


@pytest.mark.parametrize("item", KNOWN, ids=IDS)
def test_the_repair_and_the_test_are_where_the_table_says(item, tmp_path):
    for edit in item.edits:
        place = tmp_path / "normlab" / edit.file
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text((ROOT / "src" / "normlab" / edit.file).read_text())
    put_back(item, tmp_path)
    for edit in item.edits:
        ast.parse((tmp_path / "normlab" / edit.file).read_text())
    path, _, name = item.test.partition("::")
    functions = {
        node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert name in functions


def test_the_page_has_this_table():
    assert table() in Path(ROOT / "docs" / "faults.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("item", KNOWN, ids=IDS)
def test_a_fault_that_is_put_back_is_seen(item):
    assert is_seen(item)
