"""What the engine itself costs a round: everything but the local steps, the bytes' own journey and
the outer step; and what it costs as workers and parameters become more.

    python benchmarks/engine_round.py [--workers 2 4] [--parameters 1e5 1e6] [--compress dense]
    [--exchange auto] [--record FILE]
    python benchmarks/engine_round.py --light 64 [--parameters 1e5] [--rounds 50] [--record FILE]

Real processes on the loopback, each on a core of its own as far as there are cores. "quorum" is the
least that any worker waited in a round, which is what the protocol costs; what a worker waits
beyond that is for slower ones. "check" is the signature, the guard and the hash of the state;
"rest" is what no clock covers, this program's log included. Bytes are counted where they leave the
sockets; CPU seconds and the peak of the resident memory are those that the kernel says of each
process. Memory is that above a worker of the same run with a model of a thousand parameters.

With --light, workers are threads of one process (see `light`). The last line is one JSON object.
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
IDLE = 1000  # parameters of a model that takes no memory
PATIENT = {"patience": 1200.0, "silence": 60.0, "gather": 300.0}
OWN = ("quorum", "check", "rest")
WORD = 4  # bytes of a parameter


def measure(options, workers, parameters):
    """The log of each worker, from the last round of warming up on."""
    with tempfile.TemporaryDirectory() as folder:
        task, rounds = f"synthetic:{parameters}", options.rounds + WARM_UP
        more = {"local_steps": 1, "batch": 8, "compress": options.compress, "pinned": True}
        more |= {"exchange": options.exchange, "timeouts": PATIENT}
        spec = Spec(0, workers, "", "", rounds, task, **more)
        with Fleet(folder, spec, heartbeat_timeout=60.0) as fleet:
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


def figures_of(options, workers, parameters, idle):
    """Medians and best tenths over the rounds, bytes, CPU seconds and memory; printed too."""
    rows = measure(options, workers, parameters)
    parts = split(rows)
    median = {name: round(statistics.median(values), 3) for name, values in parts.items()}
    tenth = {
        name: round(statistics.quantiles(values, n=10)[0], 3) for name, values in parts.items()
    }
    size = WORD * round(parameters**0.5) * (round(parameters**0.5) + 1)
    sent = statistics.median(row["sent"] for log in rows for row in log[1:])
    took = [(log[-1]["cpu_seconds"] - log[0]["cpu_seconds"]) / (len(log) - 1) for log in rows]
    wall = [(log[-1]["committed_at"] - log[0]["committed_at"]) / (len(log) - 1) for log in rows]
    peak = max(log[-1]["peak_bytes"] for log in rows)
    found = {
        "exchange": rows[0][-1]["exchange"],
        "median_ms": median,
        "best_tenth_ms": tenth,
        "sent_bytes": sent,
        "sent_models": round(sent / size, 4),
        "cpu_seconds": round(statistics.mean(took), 6),
        "wall_seconds": round(statistics.mean(wall), 6),
        "peak_bytes": peak,
        "equal_hashes": len({tuple(row["digest"] for row in log) for log in rows}) == 1,
    }
    if idle:
        found["peak_models_above_idle"] = round((peak - idle) / size, 3)
    print(
        f"{parameters:,} parameters, {workers} workers, {options.compress}, {found['exchange']}; "
        f"engine = {' + '.join(OWN)}"
    )
    for name in parts:
        print(f"  {name:8} {median[name]:8.3f} ms (best tenth {tenth[name]:.3f})")
    print(
        f"  sent {found['sent_models']:.3f} models, {1000 * found['cpu_seconds']:.2f} ms CPU, "
        f"{1000 * found['wall_seconds']:.1f} ms wall a round, {peak / 1e6:.0f} MB at the peak, "
        f"{found.get('peak_models_above_idle', '-')} models above idle",
        flush=True,
    )
    return found


def processes(options):
    """Every number of workers with every number of parameters, those of no memory first."""
    figures, idle = {}, {}
    for parameters in [*([IDLE] if options.memory else []), *options.parameters]:
        for workers in options.workers:
            found = figures_of(options, workers, parameters, idle.get(workers))
            figures.setdefault(str(parameters), {})[str(workers)] = found
            if parameters == IDLE:
                idle[workers] = found["peak_bytes"]
    return {"benchmark": "engine-round", "compress": options.compress, "runs": figures}


def light(options):
    """Threads of this process; whether all went through the same states, and what it took."""
    from benchmarks.light import LightCrew

    (parameters,) = options.parameters
    workers, began = options.light, time.process_time()
    size = WORD * round(parameters**0.5) * (round(parameters**0.5) + 1)
    with LightCrew(workers, parameters, options.rounds, exchange=options.exchange) as crew:
        crew.begin()
        began_rounds = time.monotonic()
        crew.join(options.patience)
        wall = time.monotonic() - began_rounds
        states = {(one.round, one.digest) for worker in crew.workers for one in worker.done}
        ends = {worker.done[-1].digest for worker in crew.workers}
        took = [len(worker.done) for worker in crew.workers]
        sent = [b - a for w in crew.workers for a, b in itertools.pairwise(w.sent)]
        found = {
            "benchmark": "engine-round-light",
            "parameters": parameters,
            "workers": workers,
            "rounds": max(one.round for worker in crew.workers for one in worker.done),
            "rounds_missed": options.rounds * workers - sum(took),
            "exchange": crew.programs.topology.kind,
            "equal_hashes": len(states) == options.rounds and len(ends) == 1,
            "final_hash": ends.pop().hex(),
            "interruptions": sum(len(worker.notes) for worker in crew.workers),
            "sent_bytes": statistics.median(sent),
            "sent_models": round(statistics.median(sent) / size, 4),
            "wall_seconds": round(wall, 3),
            "cpu_seconds": round(time.process_time() - began, 3),
        }
    for name, value in found.items():
        print(f"  {name:16} {value}")
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    number = lambda text: int(float(text))
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2, 4], help="one measurement for each number"
    )
    parser.add_argument("--parameters", type=number, nargs="+", default=[1_000_000])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--compress", default="dense")
    parser.add_argument("--exchange", default="auto", help="auto, gather or reduce")
    parser.add_argument("--memory", action="store_true", help="measure idle workers first")
    parser.add_argument("--light", type=int, default=0, help="so many threads instead")
    parser.add_argument("--patience", type=float, default=3600.0, help="seconds for --light")
    parser.add_argument("--record", default="", help="file for the figures")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    about = {"rounds": options.rounds, "limit_ms": LIMIT_MS, "load_before": load}
    ran = provenance()  # of the code that runs, whatever is committed meanwhile
    figures = about | (light(options) if options.light else processes(options)) | ran
    if options.record:
        write_json(options.record, figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
