"""A real cluster of two nodes in process groups of this test's own: same losses as local, through kills."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normlab.cli import run
from normlab.experiments.runs.folder import prepare, read_summary
from normlab.store import Heartbeat, locked
from tests.experiments.tiny import alone, tiny
from tests.own_schemes import MODULE

ray = pytest.importorskip("ray", reason="ray is an extra", exc_type=ImportError)
SOURCES = os.pathsep.join(p for p in sys.path if p)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(address, environment) of a head and a second node, one core each."""
    port, root = free_port(), tmp_path_factory.mktemp("ray")
    environment = {
        **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1",
    }  # fmt: skip
    binary = str(Path(sys.executable).parent / "ray")
    common = ["--block", "--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats"]
    address = f"127.0.0.1:{port}"
    groups = []

    def start(*options):
        with open(root / f"node{len(groups)}.log", "w") as log:
            groups.append(subprocess.Popen([binary, "start", *options, *common], env=environment, stdout=log, stderr=log,
                                           start_new_session=True))  # fmt: skip

    try:
        start("--head", f"--port={port}", "--include-dashboard=false", "--node-ip-address=127.0.0.1",
              f"--temp-dir=/tmp/r{port}")  # fmt: skip
        _until(lambda: _listens(port), 120)
        start(f"--address={address}", "--node-ip-address=127.0.0.1")
        script = (
            f"import ray, time; ray.init(address={address!r}, log_to_driver=False)\n"
            "while sum(n['Alive'] for n in ray.nodes()) < 2: time.sleep(0.2)\n"
        )
        subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120, capture_output=True)
        yield address, environment
    finally:
        for process in reversed(groups):
            os.killpg(process.pid, signal.SIGTERM)
        for process in groups:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(f"/tmp/r{port}", ignore_errors=True)


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


DRIVER = """
import sys
from pathlib import Path
from normlab.experiments.executors.ray import RayExecutor
with RayExecutor(address=sys.argv[1]) as cells:
    for outcome in cells.run(sorted(p.parent for p in Path(sys.argv[2]).glob("*/config.yaml"))):
        print(outcome.folder.name, outcome.error, flush=True)
"""


def driver(cluster, folder):
    address, environment = cluster
    return subprocess.Popen([sys.executable, "-c", DRIVER, address, str(folder)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


@pytest.mark.slow
def test_same_losses_on_two_nodes(cluster, tmp_path):
    configs = {f"s{seed}": tiny(seed=seed) for seed in range(4)}
    here = {name: alone(prepare(tmp_path / "here" / name, c)).loss for name, c in configs.items()}
    for name, config in configs.items():
        prepare(tmp_path / "ray" / name, config)
    said, error = driver(cluster, tmp_path / "ray").communicate(timeout=240)
    assert sorted(said.split()) == sorted([*here, *["None"] * 4]), error
    assert {name: read_summary(tmp_path / "ray" / name)["validation"] for name in here} == here


@pytest.mark.slow
def test_killed_ray_worker_and_killed_driver(cluster, tmp_path):
    configs = {f"s{seed}": tiny(seed=seed, steps=400, train={"checkpoint_every": 10}) for seed in range(3)}
    for name, config in configs.items():
        prepare(tmp_path / name, config)
    first = driver(cluster, tmp_path)
    _until(lambda: any((tmp_path / "s0" / "checkpoint").glob("step-*")), 120)
    worker = _holder(tmp_path / "s0" / ".lock")
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    _until(lambda: read_summary(tmp_path / "s0") is not None or read_summary(tmp_path / "s1") is not None, 200)
    first.kill()
    first.communicate()
    finished = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")}
    assert finished
    said, error = driver(cluster, tmp_path).communicate(timeout=300)
    assert said.count("None") == 3, error
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in finished.items()), "a finished cell was run again"
    whole = alone(prepare(tmp_path / "again" / "s0", configs["s0"]))
    assert read_summary(tmp_path / "s0")["validation"] == whole.loss


def _holder(path):
    """The process that holds the lock on this file, from the kernel's table."""
    inode = path.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        parts = line.split()
        if parts[1] == "FLOCK" and parts[5].endswith(f":{inode}"):
            return int(parts[4])
    return None


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("127.0.0.1:{port}", "no Ray cluster answers at '127.0.0.1:"), ("somewhere", "is auto or host:port")],
)
def test_an_address_that_does_not_answer(address, sentence, tmp_path, capsys):
    address = address.format(port=free_port())
    options = ["--tokens", "9999", "--executor", "ray", "--address", address, "--out", str(tmp_path)]
    assert run(["compare", *options]) == 2
    assert sentence in capsys.readouterr().err
    assert json.dumps(sorted(p.name for p in tmp_path.iterdir())) == "[]"


@pytest.mark.slow
def test_the_command_gives_the_same_comparison_on_ray(cluster, tmp_path):
    address, environment = cluster
    request = ["compare", "--schemes", "pre_norm,post_norm", "--depth", "2", "--dim", "16", "--heads", "2", "--json",
               "--data", "tomita", "--batch", "4", "--length", "8", "--tokens", "256", "--seeds", "2"]  # fmt: skip
    found = {}
    for name, options in {"local": [], "ray": ["--executor", "ray", "--address", address]}.items():
        command = [sys.executable, "-m", "normlab", *request, *options, "--out", str(tmp_path / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        cells = json.loads(done.stdout)["cells"]
        found[name] = {cell["cell"]: cell["validation"] for cell in cells}
        assert (tmp_path / name / "report.html").exists()
    assert len(found["local"]) >= 8
    assert found["ray"] == found["local"]


OWN = """
import shutil, sys
from pathlib import Path
from normlab.experiments.executors.ray import RayExecutor
from normlab.experiments.runs.folder import prepare
from normlab.plugins import import_modules
from tests.experiments.tiny import tiny

address, folder, module = sys.argv[1:]
imports = import_modules([module])
prepare(Path(folder), tiny("own_norm"))
with RayExecutor(address=address, imports=imports) as cells:
    shutil.rmtree(Path(module).parent)  # as on a node that has never had it
    for outcome in cells.run([Path(folder)]):
        print(outcome.folder.name, outcome.error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["file", "package"])
def test_a_scheme_of_ones_own_travels_to_the_nodes(form, cluster, tmp_path):
    """Its losses are those of the scheme that it is a copy of; the configuration alone brings nothing along."""
    address, environment = cluster
    place = tmp_path / "source"
    module = place / "own_module.py" if form == "file" else place / "own_package" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text(MODULE)
    written = str(module) if form == "file" else "own_package"
    command = [sys.executable, "-c", OWN if form == "file" else OWN.replace("Path(module).parent", repr(str(place)))]
    command += [address, str(tmp_path / "own"), written]
    environment = {**environment, "PYTHONPATH": os.pathsep.join([str(place), SOURCES])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.strip() == "own None", done.stdout + done.stderr
    plain = alone(prepare(tmp_path / "plain", tiny()))
    assert read_summary(tmp_path / "own")["validation"] == plain.loss
    (tmp_path / "own" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "own" / "checkpoint")
    said, _ = driver(cluster, tmp_path).communicate(timeout=240)
    assert f"own {str(tmp_path / 'own' / 'config.yaml')!r} is not a run that" in said
    assert f"it comes from the module {written!r}; give --import {written}" in said


LISTENING = """
import glob, os
from normlab.experiments.executors.ray import RayExecutor

executor = RayExecutor(workers=1)
parents = {}
for path in glob.glob("/proc/[0-9]*/stat"):
    try:
        parents[int(path.split("/")[2])] = int(open(path).read().rpartition(")")[2].split()[1])
    except OSError:
        continue
ours = {os.getpid()}
while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
    ours |= more
sockets = set()
for pid in ours:
    for handle in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            sockets.add(os.readlink(handle))
        except OSError:
            continue
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for row in open(table).read().splitlines()[1:]:
        fields = row.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            print("listens", fields[1].partition(":")[0])
executor.close()
"""


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs Linux")
def test_a_cluster_of_our_own_listens_to_this_machine_only():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], env={**environment, "PYTHONPATH": SOURCES}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("listens")}
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert found
    assert found <= loopback


HANGS = """
import sys
from pathlib import Path
from normlab.experiments.executors.ray import RayExecutor
with RayExecutor(address=sys.argv[1], retries=1, silence=float(sys.argv[3]), workers=2) as cells:
    for outcome in cells.run([Path(sys.argv[2]) / name for name in ("stuck", "sound")]):
        print(outcome.folder.name, outcome.error, sep=": ", flush=True)
"""


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_retried_and_recorded(cluster, tmp_path):
    """Somebody else holds its lock for good: the worker waits, and nothing happens. The run beside it is not touched."""
    address, environment = cluster
    for name in ("stuck", "sound"):
        prepare(tmp_path / name, tiny())
    command = [sys.executable, "-c", HANGS, address, str(tmp_path), "10"]
    with locked(tmp_path / "stuck"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    said = ["sound: None", "stuck: it made no progress for 10 s and was ended"]
    assert sorted(done.stdout.strip().splitlines()) == said
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert sorted(done.stdout.strip().splitlines()) == ["sound: None", "stuck: None"], done.stderr


def test_a_run_that_waits_for_room_does_not_hang(tmp_path):
    from normlab.experiments.executors.ray import _Cell

    cell = _Cell(prepare(tmp_path / "run", tiny()), given=time.time() - 100)
    assert not cell.hangs(10)
    Heartbeat(cell.folder).beat()
    assert not cell.hangs(10)
    os.utime(cell.folder / ".heartbeat", (time.time() - 50,) * 2)
    assert cell.hangs(10)
    cell.given = time.time() - 20  # given again, and not begun: the beat is of the attempt before
    assert not cell.hangs(10)
