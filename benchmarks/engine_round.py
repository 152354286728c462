"""What the engine itself costs a round: everything but the local steps, the bytes' own journey and the outer step.

    python benchmarks/engine_round.py [--workers 2] [--parameters 1000000] [--rounds 40] [--compress dense]

Real processes on the loopback. "quorum" is the least that any worker waited in a round, which is what the protocol
costs; what a worker waits beyond that is for slower ones. The last line is one JSON object.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from benchmarks.fleet import Fleet, Spec
from laconic.store.runlog import provenance

WARM_UP = 5
LIMIT_MS = 10.0


def measure(options):
    with tempfile.TemporaryDirectory() as folder:
        task, rounds = f"synthetic:{options.parameters}", options.rounds + WARM_UP
        spec = Spec(0, options.workers, "", "", rounds, task, local_steps=1, batch=8, compress=options.compress)
        with Fleet(folder, spec, heartbeat_timeout=5.0) as fleet:
            for worker in range(options.workers):
                fleet.start(worker)
            while not all(map(fleet.done, range(options.workers))):
                if not all(fleet.alive(w) or fleet.done(w) for w in range(options.workers)):
                    raise SystemExit(fleet.errors())
                time.sleep(0.05)
            return [fleet.rows(w)[WARM_UP:] for w in range(options.workers)]


def split(rows_WR):
    """Milliseconds of each part in each round: over workers the mean, of the quorum the least."""
    rounds = list(zip(*rows_WR, strict=True))
    mean = lambda name: [1000 * statistics.mean(r["seconds"][name] for r in rows) for rows in rounds]
    parts = {name: mean(name) for name in ("compute", "gather", "check", "outer")}
    parts["quorum"] = [1000 * min(r["seconds"]["quorum"] for r in rows) for rows in rounds]
    parts["engine"] = [q + c for q, c in zip(parts["quorum"], parts["check"], strict=True)]
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--compress", default="dense")
    options = parser.parse_args()
    rows = measure(options)
    parts = split(rows)
    median = {name: round(statistics.median(values), 3) for name, values in parts.items()}
    tenth = {name: round(statistics.quantiles(values, n=10)[0], 3) for name, values in parts.items()}
    figures = {
        "workers": options.workers,
        "parameters": options.parameters,
        "compress": options.compress,
        "median_ms": median,
        "best_tenth_ms": tenth,
        "limit_ms": LIMIT_MS,
        "sent_bytes": rows[0][-1]["sent"],
        **provenance(),
    }
    print(f"{options.parameters:,} parameters, {options.workers} workers, {options.compress}; engine = quorum + check")
    for name in parts:
        print(f"  {name:8} {median[name]:8.3f} ms (best tenth {tenth[name]:.3f})")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
