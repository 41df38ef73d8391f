"""An executor by name."""

from __future__ import annotations

from normlab.errors import ConfigError, canonical, unknown
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.executors.protocol import Executor


def executor(
    name: str, *, workers: int = 0, threads: int = 1, address: str | None = None, device: str = "cpu"
) -> Executor:
    """local, or ray (which `address` says where to find)."""
    kind = canonical(name)
    if kind == "local":
        if address is not None:
            raise ConfigError(f"--address {address!r} belongs to --executor ray; local processes need none")
        return LocalExecutor(workers=workers, threads=threads, device=device)
    if kind == "ray":
        from normlab.experiments.executors.ray import RayExecutor

        return RayExecutor(address=address, workers=workers, threads=threads, device=device)
    raise ConfigError(unknown("executor", name, ["local", "ray"]))
