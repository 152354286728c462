"""What exchanging a model in fragments hides on a slow link: seconds a round, as seen from outside.

    python benchmarks/hidden.py [--rate 1e8] [--seconds 40] [--repeats 2] [--out FILE]

As root. Two workers train one model, each in a network namespace of its own, behind the campaign's
router: with whole messages on a perfect network, with whole messages on a link of `--rate` bits a
second, and in fragments on that link. Local steps, model and bytes are the same. Each is run once
with a fixed outer optimizer and once with a learned one, `--repeats` times in turn. The last line
is one JSON object.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from benchmarks import witness
from benchmarks.blows import Plan
from benchmarks.campaign import INSIDE
from benchmarks.router import Namespaces, Rule, Rules, between
from benchmarks.scenarios import Site
from benchmarks.verdict import markdown_table
from laconic.runs.train_log import lives_of
from laconic.store.records import provenance, read, write_json

WORKERS, STEPS = 2, 18
PACKET = 16_000  # bytes; the router in Python should not be what is measured
FRAGMENTS = {"fragments": 3, "delay": 6, "mix": 0.5}
# What is exchanged how: flags of the training, and whether the link is slow.
WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "whole, no limit": ({}, False),
    "whole": ({}, True),
    "in fragments": (FRAGMENTS, True),
}
OPTIMIZERS = ("slowmo:gamma=0.1,beta=0.5", "lopt-a-general")
SETTLE = 3  # rounds that are begun before a rule holds, or soon after


@dataclass(frozen=True)
class Training(Plan):
    """A training without a pace; `more` are flags beside these."""

    optimizer: str = OPTIMIZERS[0]
    more: Mapping[str, Any] = field(default_factory=dict)

    def words(self, seed: int) -> list[str]:
        """What stands after `laconic train`."""
        values = {
            "task": "fmnist-mlp3:width=512",
            "optimizer": self.optimizer,
            "workers": self.workers,
            "local-steps": STEPS,
            "batch": 128,
            "rounds": self.rounds,
            "seed": seed,
            **self.more,
        }
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def training(optimizer: str, way: str) -> Training:
    """What is run."""
    return Training(WORKERS, 100_000, 0.0, optimizer=optimizer, more=WAYS[way][0])


def carry_out(optimizer: str, way: str, rate: float, seconds: float, folder: Path) -> Any:
    """One training, looked at for so long."""
    slow = WAYS[way][1]
    rules: Rules = between(range(WORKERS), range(WORKERS), Rule(rate=rate)) if slow else {}
    with Namespaces(WORKERS, PACKET) as net:
        site = Site(net, training(optimizer, way), folder, INSIDE)
        try:
            site.start()
            site.ready()
            net.rule(rules)
            site.watch_for(seconds)
            packets = net.rule({})
        finally:
            site.end()
    seen = list(witness.first_seen(site.watch.commits).items())
    begin = seen[-1][1] - seconds
    rounds = [round for round, at in seen if at > begin][SETTLE:]
    (life,) = lives_of(read(folder / "launch" / "run" / "worker-0.jsonl", gaps=True))
    rows = [row for row in life.rows if row["round"] in rounds]
    times = witness.gaps(at for round, at in seen if round in set(rounds))
    return {
        "optimizer": optimizer,
        "way": way,
        "load": round(os.getloadavg()[0], 1),
        "rounds": len(times),
        "round_s": statistics.median(b - a for a, b in times),
        "mean_round_s": (times[-1][1] - times[0][0]) / len(times),
        "sent": statistics.median(row["sent"] for row in rows),
        "parts_s": {
            name: statistics.median(row["seconds"][name] for row in rows)
            for name in ("compute", "quorum", "gather", "check", "outer", "store")
        },
        "packets": packets,
    }


def idle(run: Any) -> float:
    """The seconds of a round in which this worker takes no local steps."""
    return run["round_s"] - run["parts_s"]["compute"]


def table(runs: Sequence[Any]) -> str:
    """Markdown for the docs: seconds a round, and those without local steps, medians of the
    repeats. What else the machine does changes the first more than the second."""
    heads = ["outer optimizer", "messages", "a round", "of it without local steps"]
    rows = []
    for optimizer in OPTIMIZERS:
        for way in WAYS:
            of_it = [run for run in runs if (run["optimizer"], run["way"]) == (optimizer, way)]
            medians = (statistics.median(map(f, of_it)) for f in (lambda r: r["round_s"], idle))
            rows.append([f"`{optimizer}`", way, *(f"{seconds:.2f} s" for seconds in medians)])
    return markdown_table(heads, rows)


def main() -> None:
    """Read the words."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=1e8, help="bits a second of a link")
    parser.add_argument("--seconds", type=float, default=40.0, help="of rounds that are looked at")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", default="", help="file for the figures")
    options = parser.parse_args()
    about, runs = provenance(), []
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(options.repeats):
            for optimizer in OPTIMIZERS:
                for way in WAYS:
                    folder = Path(scratch) / str(len(runs))
                    folder.mkdir()
                    given = (options.rate, options.seconds, folder)
                    runs.append({"turn": turn, **carry_out(optimizer, way, *given)})
                    print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    settings = {**vars(options), "workers": WORKERS, "steps": STEPS, **FRAGMENTS}
    settings["words"] = training(OPTIMIZERS[0], "in fragments").words(0)
    record = {"benchmark": "hidden", "settings": settings, **about}
    record["runs"] = runs
    if options.out:
        write_json(Path(options.out), record)
    print(table(runs), file=sys.stderr)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
