from pathlib import Path

import pytest
import torch

from normlab.experiments.memory import peak, reset_peak

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")


def resident():
    return next(int(row.split()[1]) * 1024 for row in STATUS.read_text().splitlines() if row.startswith("VmRSS:"))


def test_the_peak_remembers_what_was_freed():
    if peak(CPU) is None:
        assert not STATUS.exists() or "VmHWM" not in STATUS.read_text()
        pytest.skip("this system does not say what memory a process reached")
    reset_peak(CPU)
    tensor = torch.ones(2**24)  # 64 MB
    held = resident()
    del tensor
    assert peak(CPU) >= held - 2**20
    assert held > 2**26


def test_resetting_never_raises_the_peak():
    before = peak(CPU)
    if before is None:
        pytest.skip("this system does not say what memory a process reached")
    reset_peak(CPU)
    assert peak(CPU) <= before + 2**20
