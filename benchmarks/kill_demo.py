"""Kill one of several workers and see it come back: what `make demo-distributed` runs.

    python benchmarks/kill_demo.py [--workers 4] [--at 15] [--pace 0.8] [--out DIR]

It starts `laconic launch -- train digits`, kills the last worker once that has saved round `--at`,
and lets the training end. The records must then show that the worker came back, that all ended with
the same state, and that no message was left out, as nobody misbehaved. A round takes at least
`--pace` seconds, as with a large model: the small one would be trained before the worker is back.

`python benchmarks/kill_demo.py --paced MODULE WORDS…` is `python -m MODULE WORDS…` at that pace.
"""

import argparse
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

PACE, PIDS = "LACONIC_DEMO_PACE", "LACONIC_DEMO_PIDS"
PACED = (sys.executable, str(Path(__file__).resolve()), "--paced")
LOOK = 0.1  # seconds between looks at the checkpoint


class Pace:
    """Makes the time from one call to the next at least so many seconds."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._last = -float("inf")

    def __call__(self) -> None:
        """Wait for what is left."""
        left = self._last + self._seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
        self._last = time.monotonic()


def run_module(
    words: Sequence[str], python: Sequence[str], before_quorum: Callable[[], None]
) -> None:
    """`python -m WORDS…` in this process; workers call `before_quorum`, and `launch` starts each of
    its processes with the words `python`."""
    sys.argv = list(words)
    if words[0] != "laconic":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    from laconic import cli
    from laconic.cli import launch

    launch.PYTHON = tuple(python)
    if words[1] == "worker":
        from laconic.engines.elastic import ElasticEngine

        quorum = ElasticEngine.quorum

        def later(self, round, digest):
            before_quorum()
            return quorum(self, round, digest)

        ElasticEngine.quorum = later
    cli.main(words[1:])


def run_paced(words: Sequence[str]) -> None:
    """A process of the demonstration; a worker writes down its process id."""
    if words[:2] == ["laconic", "worker"]:
        worker = words[words.index("--worker") + 1]
        (Path(os.environ[PIDS]) / worker).write_text(str(os.getpid()))
    run_module(words, PACED, Pace(float(os.environ[PACE])))


def demonstrate(workers: int, at: int, pace: float, folder: Path) -> int:
    """Launch, kill, wait and check → the exit status."""
    from laconic.store import checkpoint

    victim = workers - 1
    saved = folder / f"worker-{victim}.safetensors"
    train = ["train", "digits", "--checkpoint-every", "5", "--out", str(folder)]
    words = ["launch", "--workers", str(workers), "--silence", "1", "--", *train]
    killed = None
    with tempfile.TemporaryDirectory() as pids:
        environment = {**os.environ, PACE: str(pace), PIDS: pids}
        with subprocess.Popen([*PACED, "laconic", *words], env=environment) as launched:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which ends
            signal.signal(signal.SIGTERM, lambda number, frame: launched.send_signal(number))
            while launched.poll() is None:
                time.sleep(LOOK)
                if killed is None and saved.exists():
                    done = checkpoint.peek(saved)["round"]
                    if done >= at:
                        os.kill(int((Path(pids) / str(victim)).read_text()), signal.SIGKILL)
                        killed = done
    if launched.returncode:
        return launched.returncode
    return verdict(folder, victim, killed)


def verdict(folder: Path, victim: int, killed: int | None) -> int:
    """Say what the records show; 0 if the worker came back, all agree and all messages counted."""
    from laconic.store.records import read

    summary = read(folder / "records.jsonl")[-1]
    seen = summary["workers"][str(victim)]
    agree = len(summary["final_digests"]) == 1
    # Of two workers the other waits, and nobody is ahead of the checkpoint; of more, a peer heals.
    healed = seen["healed"] > 0 or len(summary["workers"]) == 2
    back = seen["starts"] > 1 and seen["finished"] and healed
    print(
        f"worker {victim} was killed after round {killed} and "
        f"{'came back' if back else 'did not come back in time'}; at the end the workers "
        f"{'all hold the same state' if agree else 'hold different states'}. Messages left out: "
        f"{sum(summary['excluded'].values())}."
    )
    return 0 if agree and back and not summary["excluded"] else 1


def main() -> int:
    """Read the words."""
    if sys.argv[1:2] == ["--paced"]:
        run_paced(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description="kill one worker and see it come back")
    parser.add_argument("--workers", type=int, default=4, help="how many processes train")
    parser.add_argument("--at", type=int, default=15, help="kill one once it has saved this round")
    parser.add_argument("--pace", type=float, default=0.8, help="least seconds a round takes")
    parser.add_argument("--out", type=Path, help="the run's folder; by default a new one in runs/")
    options = parser.parse_args()
    folder = options.out or Path("runs") / f"kill-demo-{time.strftime('%Y%m%d-%H%M%S')}"
    return demonstrate(options.workers, options.at, options.pace, folder)


if __name__ == "__main__":
    sys.exit(main())
