"""Worker processes for benchmarks: a nursery that imports everything once and forks a worker for
each request.

A request is a line of JSON on stdin with `Spec`'s fields; the answer is the process id. A worker
appends one JSON line a round to `FOLDER/worker-N.jsonl`, and writes its weights to
`FOLDER/weights-N.npz` when it has finished.
"""

import contextlib
import dataclasses
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # so that it runs as a file too


@dataclasses.dataclass
class Spec:
    """One worker: which of how many, what it trains (a task or "synthetic:PARAMETERS"), and how."""

    worker: int
    workers: int
    lighthouse: str
    folder: str
    rounds: int
    task: str = "digits-mlp"
    local_steps: int = 4
    batch: int = 32
    rate: float = 0.1
    outer: str = "average"
    compress: str = "dense"
    exchange: str = "auto"
    pace: float = 0.0  # seconds that a round's local steps take at least
    pinned: bool = False  # to one core each, in turn
    bind: str = "127.0.0.1"  # where it listens
    timeouts: dict = dataclasses.field(default_factory=dict)


def task_of(name):
    """A task by name; "synthetic:N" has about N parameters and next to nothing to compute."""
    from laconic.tasks.base import plain_task
    from laconic.tasks.catalog import make_task

    kind, _, number = name.partition(":")
    if kind != "synthetic":
        return make_task(name)
    import jax
    import jax.numpy as jnp

    side = round(int(number) ** 0.5)
    init = lambda key: {"w": 0.01 * jax.random.normal(key, (side, side)), "b": jnp.zeros(side)}
    loss = lambda params, rows: jnp.mean((params["w"][rows] + params["b"][None, :] - 1.0) ** 2)
    return plain_task(name, init, loss, jnp.arange(side))


def method_of(spec):
    from laconic.client import LocalOptimizer
    from laconic.compress import parse_compressor
    from laconic.method import local_method
    from laconic.outer import OUTER

    local = LocalOptimizer("sgd", spec.rate)
    return local_method(
        "benchmark", local, OUTER[spec.outer].make(), parse_compressor(spec.compress)
    )


def work(spec):
    if spec.pinned:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[spec.worker % len(cores)]})
    import jax
    import numpy as np

    from laconic.engines.elastic import ElasticEngine, Timeouts
    from laconic.engines.loop import BEFORE_QUORUM, Loop
    from laconic.engines.wire import Seal
    from laconic.method import Setting

    def at(point, now):
        if point == BEFORE_QUORUM and spec.pace:
            time.sleep(spec.pace)

    seal = Seal.of("benchmark", spec.folder)
    timeouts = Timeouts(**spec.timeouts)
    engine = ElasticEngine(
        spec.worker, spec.workers, spec.lighthouse, seal, bind=spec.bind, timeouts=timeouts
    )
    setting = Setting(spec.workers, spec.local_steps, spec.batch, spec.rounds, (0,))
    keep = {"folder": spec.folder, "checkpoint_every": 50} if spec.pace else {}
    last = None
    loop = Loop(
        task_of(spec.task),
        method_of(spec),
        setting,
        engine,
        seal,
        exchange=spec.exchange,
        at=at,
        **keep,
    )
    with open(f"{spec.folder}/worker-{spec.worker}.jsonl", "a", encoding="utf-8") as log:
        for report in loop.rounds():
            fields = (
                "round",
                "loss",
                "sent",
                "received",
                "attempts",
                "notes",
                "healed",
                "digest",
                "committed_at",
            )
            row = {name: getattr(report, name) for name in fields}
            row |= {
                "quorum": report.quorum.workers,
                "counted": sorted(report.losses),
                "pid": os.getpid(),
                "exchange": loop.programs.topology.kind,
            }
            used = resource.getrusage(resource.RUSAGE_SELF)
            row["cpu_seconds"] = used.ru_utime + used.ru_stime
            row["peak_bytes"] = peak_bytes()
            log.write(json.dumps(row | {"seconds": dataclasses.asdict(report.seconds)}) + "\n")
            log.flush()
            last = report
    if last is not None:
        np.savez(
            f"{spec.folder}/weights-{spec.worker}.npz",
            *map(np.asarray, jax.tree.leaves(last.shared)),
        )
    Path(f"{spec.folder}/done-{spec.worker}").touch()


def peak_bytes():
    """The most memory that this process had in use so far; what it shares with the one that it was
    forked from counts too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def nurse(read, errors, work):
    """Fork a worker for each line of stdin: `read` it, send what it prints to the file `errors`
    names, and `work`."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are buried at once
    print("ready", flush=True)
    for line in sys.stdin:
        spec = read(line)
        child = os.fork()
        if child:
            print(child, flush=True)
            continue
        status = 1
        try:
            log = os.open(errors(spec), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            work(spec)
            status = 0
        except BaseException:
            traceback.print_exc()
            with contextlib.suppress(OSError):
                sys.stderr.flush()
        os._exit(status)


def free_address():
    """An address of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def lighthouse_at(address, heartbeat_timeout, environment, join_timeout=30.0):
    """A Lighthouse that listens."""
    waits = ["--heartbeat-timeout", str(heartbeat_timeout), "--join-timeout", str(join_timeout)]
    command = [sys.executable, "-m", "laconic.engines.lighthouse", "--bind", address, *waits]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


class Fleet:
    """A Lighthouse, a nursery and their workers; a context manager that leaves nothing running."""

    def __init__(self, folder, spec, heartbeat_timeout=0.5):
        address = free_address()
        self.folder, self.pids = Path(folder), {}
        self._spec = dataclasses.asdict(spec) | {
            "lighthouse": address,
            "folder": str(folder),
        }
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "LACONIC_TOKEN": "benchmark",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._lighthouse = lighthouse_at(address, heartbeat_timeout, environment)
        pipes = {"stdout": subprocess.PIPE, "text": True, "env": environment, "cwd": ROOT}
        self._nursery = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, **pipes)
        orders, answers = self._nursery.stdin, self._nursery.stdout
        assert orders is not None
        assert answers is not None
        self._in, self._out = orders, answers
        answers.readline()

    def start(self, worker):
        """Fork a worker."""
        self._in.write(json.dumps(self._spec | {"worker": worker}) + "\n")
        self._in.flush()
        self.pids[worker] = int(self._out.readline())

    def signal(self, worker, number):
        """Send a signal."""
        os.kill(self.pids[worker], number)

    def alive(self, worker):
        """Whether its process exists."""
        try:
            os.kill(self.pids[worker], 0)
        except ProcessLookupError:
            return False
        return True

    def done(self, worker):
        """Whether it finished all rounds."""
        return (self.folder / f"done-{worker}").exists()

    def rows(self, worker):
        """Its rounds so far; a line torn by a death is left out."""
        path = self.folder / f"worker-{worker}.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}") and line.startswith("{")]

    def errors(self):
        """The ends of what workers complained of."""
        return "\n".join(p.read_text()[-2000:] for p in sorted(self.folder.glob("stderr-*")))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for worker, pid in self.pids.items():
            if self.alive(worker):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._in.close()
        self._nursery.wait(30)
        self._lighthouse.kill()
        self._lighthouse.wait(30)


if __name__ == "__main__":
    nurse(
        lambda line: Spec(**json.loads(line)),
        lambda spec: f"{spec.folder}/stderr-{spec.worker}",
        work,
    )
