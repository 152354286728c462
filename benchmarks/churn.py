"""A soak: workers are killed and stopped at random for minutes, and the model must not notice.

    python benchmarks/churn.py [--minutes 5] [--workers 4] [--pace 0.05] [--every 4] [--seed 0]
    [--exchange auto] [--record FILE]

Every few seconds one worker is killed (and started again at once) or stopped for a while; a
majority is always left at work, since fewer would wait for the others, as they should. Told
afterwards: the longest time without a commit by anyone, whether any two processes ever held
different states, and the training loss of the final weights against that of an undisturbed run of
as many rounds. The last line is one JSON object.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from benchmarks.fleet import Fleet, Spec, method_of, task_of
from laconic.client import Shared
from laconic.engines.waiting import majority
from laconic.method import Setting
from laconic.runs.measure import heldout_metrics
from laconic.runs.simulate import Simulation
from laconic.store.records import provenance, write_json

TIMEOUTS = {
    "gather": 1.0,
    "heal": 5.0,
    "heartbeat": 0.05,
    "grace": 1.5,
    "lost": 120.0,
    "patience": 120.0,
}
HANG, LOSS = 5.0, 0.05


class Churn:
    """Trouble for a fleet, from a seed."""

    def __init__(self, fleet, workers, every, seed):
        self.fleet, self.workers, self.every = fleet, workers, every
        self.rng, self.stopped, self.kills, self.stops = random.Random(seed), {}, 0, 0

    def step(self, now):
        """What is due: wake the stopped, bring back the dead, and hit one more."""
        for worker, until in list(self.stopped.items()):
            if now >= until:
                self.fleet.signal(worker, signal.SIGCONT)
                del self.stopped[worker]
        for worker in range(self.workers):
            if not self.fleet.alive(worker) and not self.fleet.done(worker):
                self.fleet.start(worker)

    def hit(self, now):
        """Kill or stop one of those that work, if a majority is left."""
        up = [w for w in range(self.workers) if w not in self.stopped and self.working(w)]
        if len(up) <= majority(self.workers):
            return
        worker = self.rng.choice(up)
        if self.rng.random() < 0.5:
            self.fleet.signal(worker, signal.SIGKILL)
            self.kills += 1
        else:
            self.fleet.signal(worker, signal.SIGSTOP)
            self.stopped[worker] = now + self.rng.uniform(0.2, 3.0)
            self.stops += 1

    def working(self, worker):
        """Whether it has committed since it was last started."""
        rows = self.fleet.rows(worker)[-1:]
        return bool(rows) and rows[0]["pid"] == self.fleet.pids[worker] and self.fleet.alive(worker)


def soak(options, spec, folder):
    """Churn for the given time, or until all rounds are done → the fleet's logs and what was done
    to it."""
    with Fleet(folder, spec) as fleet:
        for worker in range(options.workers):
            fleet.start(worker)
        while not all(fleet.rows(w) for w in range(options.workers)):
            time.sleep(0.05)
        churn, begin = Churn(fleet, options.workers, options.every, options.seed), time.monotonic()
        due = begin + options.every
        while not all(map(fleet.done, range(options.workers))):
            now = time.monotonic()
            churn.step(now)
            if now >= due and now < begin + 60 * options.minutes:
                churn.hit(now)
                due = now + churn.rng.uniform(0.5, 1.5) * options.every
            if now > begin + 60 * options.minutes + 300:
                raise SystemExit("the run did not end: " + fleet.errors())
            time.sleep(0.02)
        return [fleet.rows(w) for w in range(options.workers)], churn


def judge(rows):
    """The longest time between two commits of anyone, and the rounds after which two processes held
    different states.

    The last word of a life does not count: who commits and dies before anyone hears of it leaves
    the round to the rest.
    """
    first, digests = {}, {}
    for log in rows:
        for row, following in zip(log, [*log[1:], None], strict=True):
            first[row["round"]] = min(first.get(row["round"], np.inf), row["committed_at"])
            if following is None or following["pid"] == row["pid"]:
                digests.setdefault(row["round"], set()).add(row["digest"])
    times = [first[r] for r in sorted(first)]
    return float(np.max(np.diff(times))), [r for r, d in digests.items() if len(d) > 1]


def train_loss(task, shared):
    return float(jax.jit(lambda s: heldout_metrics(task, s, "train"))(shared)["loss"])


def undisturbed(task, spec):
    setting = Setting(spec.workers, spec.local_steps, spec.batch, spec.rounds, (0,), 500)
    simulation = Simulation(task, method_of(spec), setting)
    state = simulation.start()
    for chunk in simulation.run(state):
        state = chunk.state
    return jax.tree.map(lambda x: x[0], state.shared)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--pace", type=float, default=0.05, help="seconds that local steps take at least"
    )
    parser.add_argument("--every", type=float, default=4.0, help="mean seconds between two blows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rounds", type=int, default=0, help="0: about as many as fit into the time"
    )
    parser.add_argument("--exchange", default="auto", help="auto, gather or reduce")
    parser.add_argument("--record", default="", help="file for the figures")
    options = parser.parse_args()
    rounds = options.rounds or int(60 * options.minutes / (1.6 * options.pace))
    how = {"rate": 0.05, "pace": options.pace, "timeouts": TIMEOUTS, "exchange": options.exchange}
    spec = Spec(0, options.workers, "", "", rounds, **how)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        rows, churn = soak(options, spec, folder)
        spent = time.monotonic() - begin
        with np.load(Path(folder) / "weights-0.npz") as file:
            leaves = [file[f"arr_{i}"] for i in range(len(file.files))]
    task = task_of(spec.task)
    calm = undisturbed(task, spec)
    shared = Shared(*jax.tree.unflatten(jax.tree.structure(calm), leaves))
    losses = {"churned": train_loss(task, shared), "undisturbed": train_loss(task, calm)}
    gap, diverged = judge(rows)
    counted = np.mean(
        [len(row["counted"]) for row in {r["round"]: r for log in rows for r in log}.values()]
    )
    apart = losses["churned"] / losses["undisturbed"] - 1
    figures = {
        "benchmark": "churn",
        "minutes": round(spent / 60, 2),
        "rounds": rounds,
        "kills": churn.kills,
        "stops": churn.stops,
        "mean_workers": round(float(counted), 2),
        "healed": sum(row["healed"] for log in rows for row in log),
        "longest_gap_s": round(gap, 3),
        "rounds_with_two_states": diverged,
        "loss": losses,
        "loss_apart": round(apart, 4),
        "passed": gap < HANG and not diverged and abs(apart) < LOSS,
        "options": vars(options),
        **provenance(),
    }
    for name in (
        "rounds",
        "kills",
        "stops",
        "mean_workers",
        "healed",
        "longest_gap_s",
        "loss_apart",
        "passed",
    ):
        print(f"{name:16} {figures[name]}")
    if options.record:
        write_json(options.record, figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
