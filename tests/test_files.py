import json
import math

import pytest

from normlab.files import atomic_path, write_json, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    write_json(target, {"x": 1})
    assert json.loads(target.read_text()) == {"x": 1}
    with pytest.raises(ValueError):
        write_json(target, math.nan)
    assert json.loads(target.read_text()) == {"x": 1}
