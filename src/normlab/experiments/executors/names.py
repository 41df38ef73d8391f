"""An executor by name."""

from __future__ import annotations

from collections.abc import Sequence

from normlab.errors import ConfigError, canonical, unknown
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.executors.protocol import Executor
from normlab.plugins import Imported


def executor(
    name: str,
    *,
    workers: int = 0,
    threads: int = 1,
    address: str | None = None,
    device: str = "cpu",
    imports: Sequence[Imported] = (),
) -> Executor:
    """local, or ray (which `address` says where to find). Its workers import the modules `imports` before they read a run."""
    kind = canonical(name)
    if kind == "local":
        if address is not None:
            raise ConfigError(f"--address {address!r} belongs to --executor ray; local processes need none")
        return LocalExecutor(workers=workers, threads=threads, device=device, imports=imports)
    if kind == "ray":
        from normlab.experiments.executors.ray import RayExecutor

        return RayExecutor(address=address, workers=workers, threads=threads, device=device, imports=imports)
    raise ConfigError(unknown("executor", name, ["local", "ray"]))
