import os
import signal
import subprocess
import sys


def _path():
    return os.pathsep.join(p for p in sys.path if p)


def test_a_worker_whose_driver_died_while_it_was_starting_leaves(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "normlab.experiments.executors.worker", "1", "cpu", str(gone.pid)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _path()})
    try:
        assert worker.wait(timeout=60) == -signal.SIGTERM
    finally:
        worker.kill()
        worker.communicate()
