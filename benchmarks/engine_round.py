"""What the engine itself costs a round: everything but the local steps, the bytes' own journey and
the outer step.

    python benchmarks/engine_round.py [--workers 2 4] [--parameters 1000000] [--compress dense]
    [--record FILE]

Real processes on the loopback, each on a core of its own as far as there are cores. "quorum" is the
least that any worker waited in a round, which is what the protocol costs; what a worker waits
beyond that is for slower ones. "check" is the signature, the guard and the hash of the state;
"rest" is what no clock covers, this program's log included. The last line is one JSON object.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from benchmarks.fleet import Fleet, Spec
from laconic.store.records import provenance, write_json

WARM_UP = 5
LIMIT_MS = 10.0
OWN = ("quorum", "check", "rest")


def measure(options, workers):
    """The log of each worker, from the last round of warming up on."""
    with tempfile.TemporaryDirectory() as folder:
        task, rounds = f"synthetic:{options.parameters}", options.rounds + WARM_UP
        more = {"local_steps": 1, "batch": 8, "compress": options.compress, "pinned": True}
        spec = Spec(0, workers, "", "", rounds, task, **more)
        with Fleet(folder, spec, heartbeat_timeout=5.0) as fleet:
            for worker in range(workers):
                fleet.start(worker)
            while not all(map(fleet.done, range(workers))):
                if not all(fleet.alive(w) or fleet.done(w) for w in range(workers)):
                    raise SystemExit(fleet.errors())
                time.sleep(0.05)
            return [fleet.rows(w)[WARM_UP - 1 :] for w in range(workers)]


def split(rows_WR):
    """Milliseconds of each part in each round: over workers the mean, of the quorum the least."""
    rounds = list(zip(*[rows[1:] for rows in rows_WR], strict=True))
    mean = lambda name: [
        1000 * statistics.mean(r["seconds"][name] for r in rows) for rows in rounds
    ]
    parts = {name: mean(name) for name in ("compute", "gather", "outer", "check")}
    parts["quorum"] = [1000 * min(r["seconds"]["quorum"] for r in rows) for rows in rounds]
    gone = lambda before, after: (
        after["committed_at"] - before["committed_at"] - sum(after["seconds"].values())
    )
    rests = [[gone(*pair) for pair in itertools.pairwise(rows)] for rows in rows_WR]
    parts["rest"] = [1000 * statistics.mean(rest) for rest in zip(*rests, strict=True)]
    parts["engine"] = [sum(own) for own in zip(*(parts[name] for name in OWN), strict=True)]
    return parts


def figures_of(options, workers):
    """Medians and best tenths over the rounds, printed too."""
    rows = measure(options, workers)
    parts = split(rows)
    median = {name: round(statistics.median(values), 3) for name, values in parts.items()}
    tenth = {
        name: round(statistics.quantiles(values, n=10)[0], 3) for name, values in parts.items()
    }
    print(
        f"{options.parameters:,} parameters, {workers} workers, {options.compress}; engine = "
        f"{' + '.join(OWN)}"
    )
    for name in parts:
        print(f"  {name:8} {median[name]:8.3f} ms (best tenth {tenth[name]:.3f})", flush=True)
    return {"median_ms": median, "best_tenth_ms": tenth, "sent_bytes": rows[0][-1]["sent"]}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2, 4], help="one measurement for each number"
    )
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--compress", default="dense")
    parser.add_argument("--record", default="", help="file for the figures")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    figures = {
        "benchmark": "engine-round",
        "parameters": options.parameters,
        "compress": options.compress,
        "rounds": options.rounds,
        "limit_ms": LIMIT_MS,
        "load_before": load,
        "workers": {str(workers): figures_of(options, workers) for workers in options.workers},
        **provenance(),
    }
    if options.record:
        write_json(options.record, figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
