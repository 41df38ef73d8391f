"""Contracts that anybody can run on their own code.

import normlab as nl
nl.testing.check_scheme(MyScheme)             # a scheme written for normlab
nl.testing.check_against(module, "mhc")       # somebody else's implementation of a scheme that normlab has
"""

from __future__ import annotations

from normlab.tasks.contract import check_task
from normlab.testing.contract import (
    CHECKS,
    check_compiled,
    check_data_parallel,
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

__all__ = [
    "CHECKS",
    "check_compiled",
    "check_data_parallel",
    "check_scheme",
    "check_task",
    "expect",
    "expect_close",
    "gradients_of",
    "loss_of",
    "measure_growth",
    "perturb_",
    "some_tokens",
    "tiny_config",
    "tiny_model",
]
