"""One thread and deterministic algorithms: uninitialised memory shows as NaN, and timings do not matter."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
