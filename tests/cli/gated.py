"""`python -m tests.cli.gated MODULE WORDS…`: `python -m MODULE WORDS…`, but workers wait at a gate
or break down.

$GATES is a folder. A worker leaves a file `started-PID` there, and `ready-PID` once it can take
part; after $GATE_AFTER calls of its pace it waits for a file `open`. The worker $BREAKS ends with
an error at once. `launch` starts its workers this way too.
"""

import os
import runpy
import sys
import time
from pathlib import Path


class Gate:
    """In the place of a worker's pace."""

    def __init__(self, seconds: float):
        self.calls = 0

    def __call__(self) -> None:
        gates, after = Path(os.environ["GATES"]), int(os.environ["GATE_AFTER"])
        (gates / f"ready-{os.getpid()}").touch()
        self.calls += 1
        while self.calls > after and not (gates / "open").exists():
            time.sleep(0.01)


def main() -> None:
    module, sys.argv = sys.argv[1], sys.argv[1:]
    if module != "laconic":
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    if sys.argv[1] == "worker":
        (Path(os.environ["GATES"]) / f"started-{os.getpid()}").touch()
        if os.environ.get("BREAKS") == sys.argv[sys.argv.index("--worker") + 1]:
            sys.exit("error: out of luck.")
    from laconic import cli
    from laconic.cli import launch, worker

    launch.PYTHON = (sys.executable, "-m", "tests.cli.gated")
    worker.Pace = Gate
    cli.main(sys.argv[1:])


if __name__ == "__main__":
    main()
