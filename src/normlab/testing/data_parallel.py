"""Two gloo processes that train together, for the contract suite; a plain script may start them.

The processes are started as commands, not forked or spawned: a script that calls `check_scheme` without a `__main__` guard
is not run again in them. A scheme that is defined in that script is found there by its definitions alone.
"""

from __future__ import annotations

import ast
import copy
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from normlab.errors import ContractError
from normlab.schemes import SchemeConfig

RANKS = 2
LIMIT = 600.0  # seconds for the whole registry on a busy machine; one scheme takes about five
_START = "import sys; sys.path[:] = {path!r}; from normlab.testing.data_parallel import work; work({rank}, {folder!r})"


@dataclass(frozen=True)
class _Order:
    """What a process is given: the schemes, and the script that defines one of them."""

    configs: bytes
    script: str | None


def check_data_parallel(configs: Sequence[SchemeConfig]) -> None:
    """DDP over two gloo processes gives the gradients of one, for many schemes at once: they are started once."""
    with tempfile.TemporaryDirectory() as folder:
        order = _Order(pickle.dumps(list(configs)), _script_of(configs))
        (Path(folder) / "order").write_bytes(pickle.dumps(order))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        errors = [open(Path(folder) / f"{rank}.err", "w+", encoding="utf-8") for rank in range(RANKS)]  # noqa: SIM115
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", _START.format(path=[p or os.getcwd() for p in sys.path], rank=rank, folder=folder)],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors[rank],
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        try:
            failed = _wait(processes)
        finally:
            for process in processes:  # the one that waits for the other would wait for long
                process.kill()
                process.wait()
        said = _last_line(errors[failed]) if failed is not None else ""
        for file in errors:
            file.close()
    if failed is not None:
        raise ContractError(f"two processes do not train together: {said}")


def _script_of(configs: Sequence[SchemeConfig]) -> str | None:
    """The script that is running, where a scheme is defined in it."""
    here = next((type(config).__name__ for config in configs if type(config).__module__ == "__main__"), None)
    if here is None:
        return None
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not Path(path).is_file():
        raise ContractError(
            f"{here} is defined in an interactive session, where another process cannot find it: put it into a file of its "
            "own and import it, or leave this check out with skip=['data_parallel']"
        )
    return str(path)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """The first process that fails, or None; one that does not end is a failure too."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                return rank
        if all(code == 0 for code in codes):
            return None
        time.sleep(0.02)
    return 0


def _last_line(file: IO[str]) -> str:
    file.seek(0)
    lines = file.read().strip().splitlines()
    return lines[-1] if lines else f"no answer within {LIMIT:.0f} s"


# -- inside a process --------------------------------------------------------------------------------------------------
def work(rank: int, folder: str) -> None:
    """One of the processes."""
    import torch
    import torch.distributed as distributed
    from torch.nn.parallel import DistributedDataParallel

    from normlab.testing.contract import expect_same_gradients, gradients_of, some_tokens, tiny_model

    torch.set_num_threads(1)
    order: _Order = pickle.loads((Path(folder) / "order").read_bytes())
    if order.script is not None:
        define(Path(order.script), vars(sys.modules["__main__"]))
    configs: list[SchemeConfig] = pickle.loads(order.configs)
    store = f"file://{Path(folder) / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    try:
        for config in configs:
            model = tiny_model(config).double()
            tokens = some_tokens(4)
            wanted = gradients_of(copy.deepcopy(model), tokens)
            shared = DistributedDataParallel(model)
            got = gradients_of(model, tokens[2 * rank : 2 * rank + 2], run=shared)
            expect_same_gradients(got, wanted, f"{config.name} under DDP", tolerance=1e-8)
    finally:
        distributed.destroy_process_group()


def define(script: Path, namespace: dict[str, object]) -> None:
    """Run the definitions of a script, and the assignments that they need, but nothing that it does."""
    tree = ast.parse(script.read_text(encoding="utf-8"), str(script))
    tree.body = list(_definitions(tree.body))
    exec(compile(tree, str(script), "exec", dont_inherit=True), namespace)


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    used = {
        node.id
        for statement in body
        if isinstance(statement, defined)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom, *defined)):
            yield statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
            if names & used:
                yield statement
