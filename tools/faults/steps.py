"""python -m tools.faults.steps SOURCES [SOURCES...]: processor time of a training step, each beside the first, interleaved.

Each SOURCES is a folder that holds the package (`src` of this checkout, or of an older one); with `-checks` behind it the
heartbeat and the digest of the log are switched off. One process each, asked in turn, so that what else goes on in the
machine falls on all alike.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

ROUNDS, STEPS = 30, 200
WORKER = """
import json, sys, tempfile, time
import torch
import normlab as nl
from normlab.tasks import task
from normlab.training import TrainConfig, Schedule
from normlab.training.loop import Trainer
torch.set_num_threads(1)
if sys.argv[1] == "off":
    import hashlib
    from normlab import store
    from normlab.training import record
    store.Heartbeat.beat = lambda self: None
    class Nothing:
        def update(self, raw): pass
        def hexdigest(self): return ""
    record.Log._digest = lambda self, size: Nothing()
job = task("tomita", number=4)
model = dict(vocab_size=job.vocab_size, dim=16, depth=2, heads=2)
for line in sys.stdin:
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = TrainConfig(steps=int(line), batch=2, length=8, lr=1e-3, log_every=1, checkpoint_every=50,
                             schedule=Schedule(warmup=2))
        trainer = Trainer(nl.Transformer(nl.TransformerConfig(**model)), job, config, folder, quiet=True)
        start = time.process_time()
        trainer.run()
        print(json.dumps(time.process_time() - start), flush=True)
"""


def main() -> None:
    names = sys.argv[1:]
    workers = []
    for name in names:
        environment = {**os.environ, "PYTHONPATH": name.removesuffix("-checks"), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-W", "ignore", "-c", WORKER, "off" if name.endswith("-checks") else "on"]
        workers.append(
            subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        )
    times: list[list[float]] = [[] for _ in workers]
    for turn in range(ROUNDS + 1):
        for mine, worker in zip(times, workers, strict=True):
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(f"{STEPS}\n")
            worker.stdin.flush()
            seconds = float(worker.stdout.readline())
            if turn:  # the first round warms up
                mine.append(seconds / STEPS)
    for worker in workers:
        worker.communicate()
    for name, mine in zip(names, times, strict=True):
        ratios = [one / other for one, other in zip(mine, times[0], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name}: {1e3 * statistics.median(mine):.3f} ms a step; {middle:.3f} of the first (quartiles {low:.3f} and "
            f"{high:.3f})"
        )
    print(f"{ROUNDS} rounds of {STEPS} steps; the machine's load is {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
