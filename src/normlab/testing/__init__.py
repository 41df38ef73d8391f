"""Contracts that anybody can run on their own code.

import normlab as nl
nl.testing.check_scheme(MyScheme)             # a scheme written for normlab
nl.testing.check_against(module, "mhc")       # somebody else's implementation of a scheme that normlab has
"""

from __future__ import annotations

from normlab.schemes import Frame, make_sites
from normlab.tasks.contract import check_task
from normlab.testing.against import Finding, Verification, check_against, examine
from normlab.testing.contract import (
    CHECKS,
    check_compiled,
    check_scheme,
    expect,
    expect_close,
    gradients_of,
    loss_of,
    measure_growth,
    perturb_,
    some_tokens,
    tiny_config,
    tiny_model,
)
from normlab.testing.data_parallel import check_data_parallel
from normlab.testing.ports import Connection, Path, Pool

__all__ = [
    "CHECKS",
    "Connection",
    "Finding",
    "Frame",
    "Path",
    "Pool",
    "Verification",
    "check_against",
    "check_compiled",
    "check_data_parallel",
    "check_scheme",
    "check_task",
    "examine",
    "expect",
    "expect_close",
    "gradients_of",
    "loss_of",
    "make_sites",
    "measure_growth",
    "perturb_",
    "some_tokens",
    "tiny_config",
    "tiny_model",
]
