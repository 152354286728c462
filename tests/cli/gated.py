"""`python -m tests.cli.gated MODULE WORDS…`: `python -m MODULE WORDS…`, but workers wait at a gate
or break down.

$GATES is a folder. A worker leaves a file `started-PID` there, and `ready-PID` once it can take
part; after $GATE_AFTER quorums it waits for a file `open`. The worker $BREAKS ends with an error at
once. `launch` starts its workers this way too.
"""

import os
import sys
import time
from pathlib import Path

from benchmarks.kill_demo import run_module


class Gate:
    """Waited at before each quorum."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        gates, after = Path(os.environ["GATES"]), int(os.environ["GATE_AFTER"])
        (gates / f"ready-{os.getpid()}").touch()
        self.calls += 1
        while self.calls > after and not (gates / "open").exists():
            time.sleep(0.01)


def main() -> None:
    words = sys.argv[1:]
    if words[:2] == ["laconic", "worker"]:
        (Path(os.environ["GATES"]) / f"started-{os.getpid()}").touch()
        if os.environ.get("BREAKS") == words[words.index("--worker") + 1]:
            sys.exit("error: out of luck.")
    run_module(words, (sys.executable, "-m", "tests.cli.gated"), Gate())


if __name__ == "__main__":
    main()
