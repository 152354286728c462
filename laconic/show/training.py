"""A training that is over, from what its processes wrote: who agreed with whom, what it cost, and
its curve.

Several processes tell of the same rounds. What each of them says of a round's loss is the same;
bytes and seconds are its own. A life is one process from its start to its end or death.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laconic.show import figures
from laconic.show.panels import COLOURS, Curve, Panel, Record, Style, drawable, of_kind
from laconic.show.summary import count, duration, number, percent
from laconic.store import atomic

Row = dict[str, Any]
WINDOW = 10  # rounds that the final loss is a mean of
COLUMNS = ("round", "loss", "quorum", "digest", "committed_at")


@dataclass
class Life:
    """One process: the worker it was (the first, if it held all), when it began, its rounds, and
    how it ended."""

    worker: int
    begun: float
    rows: list[Row]
    end: Record

    @property
    def last_seen(self) -> float:
        """When it committed for the last time; its start, if it never did."""
        return self.rows[-1]["committed_at"] if self.rows else self.begun


def of_lives(lives: Sequence[Life]) -> tuple[dict[str, list[Any]], Record]:
    """The rounds of a run as columns, and its summary."""
    told = _told(lives)
    first = {r: min(rows, key=lambda row: row["committed_at"]) for r, rows in told.items()}
    rounds = {name: [first[r][name] for r in sorted(first)] for name in COLUMNS}
    ends = [life.end for life in lives if life.end]
    losses = [loss for loss in rounds["loss"][-WINDOW:] if loss is not None]
    summary = {
        "rounds": max((end["round"] for end in ends), default=len(first)),
        "loss": float(np.mean(losses)) if losses else None,
        "heldout": next((end["heldout"] for end in ends if end["heldout"]), {}),
        "final_digests": sorted({end["digest"] for end in ends}),
        "rounds_apart": sorted(
            r for r, rows in told.items() if len({row["digest"] for row in rows}) > 1
        ),
        "longest_gap_seconds": _longest_gap(lives, rounds["committed_at"]),
        "seconds": round(_lived(lives), 3),
        "message_bits": next((end["message_bits"] for end in ends), None),
        "excluded": dict(
            Counter(reason for row in first.values() for reason in row["excluded"].values())
        ),
        "refused": _most(end["refused"] for end in ends),
        "workers": {
            str(worker): _of_worker(lives, worker)
            for worker in sorted({life.worker for life in lives})
        },
    }
    return rounds, summary


def _told(lives: Sequence[Life]) -> dict[int, list[Row]]:
    """What is told of each round, without what did not last.

    A run that went on from older checkpoints passed some rounds twice: what a process begun later
    took up again is no longer valid. And who commits and dies before anyone hears of it leaves the
    round to the rest, so that the last round of a life cut short counts only if nobody else tells
    of it.
    """
    told: dict[int, list[Row]] = {}
    unheard: list[Row] = []
    for life in lives:
        again = [other for other in lives if other.rows and other.begun > life.begun]
        rows = [row for row in life.rows if not any(_taken_up(row, other) for other in again)]
        if rows and not life.end and rows[-1] is life.rows[-1]:
            unheard.append(rows.pop())
        for row in rows:
            told.setdefault(row["round"], []).append(row)
    for row in unheard:
        told.setdefault(row["round"], [row])
    return told


def _taken_up(row: Row, other: Life) -> bool:
    return other.begun > row["committed_at"] and other.rows[0]["round"] <= row["round"]


def _longest_gap(lives: Sequence[Life], times: Sequence[float]) -> float | None:
    """The longest time between two commits of anyone, while anyone lived through it."""
    pairs = itertools.pairwise(sorted(times))
    lived = [
        b - a for a, b in pairs if any(life.begun <= a and b <= life.last_seen for life in lives)
    ]
    return max(lived, default=None)


def _lived(lives: Sequence[Life]) -> float:
    """Seconds in which anyone was there."""
    total, until = 0.0, -np.inf
    for life in sorted(lives, key=lambda life: life.begun):
        total += max(0.0, life.last_seen - max(life.begun, until))
        until = max(until, life.last_seen)
    return float(total)


def _most(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """By reason the most that any process counted: all of them see the same strangers."""
    found: Counter[str] = Counter()
    for one in counts:
        found |= Counter(one)
    return dict(found)


def _of_worker(lives: Sequence[Life], worker: int) -> Record:
    own = [life for life in lives if life.worker == worker]
    rows = [row for life in own for row in life.rows]
    seconds: Counter[str] = Counter()
    for row in rows:
        seconds.update(row["seconds"])
    return {
        "rounds": len(rows),
        "starts": len(own),
        "finished": any(life.end for life in own),
        "healed": sum(row["healed"] for row in rows),
        "gathered_again": sum(row["attempts"] - 1 for row in rows),
        "sent": sum(row["sent"] for row in rows),
        "received": sum(row["received"] for row in rows),
        "seconds": {name: round(value, 6) for name, value in seconds.items()},
    }


# --- what is shown --------------------------------------------------------------------------------


def loss_panel(records: Sequence[Record]) -> Panel:
    """Train loss against rounds."""
    losses: dict[int, float] = {}
    for record in of_kind(records, "rounds"):
        losses |= dict(zip(record["round"], record["loss"], strict=True))
    x = np.array(sorted(losses), float)
    y = np.array([losses[r] for r in sorted(losses)], float)  # None is NaN
    label = drawable(records[0]["config"]["optimizer"])
    curve = Curve(label, Style(COLOURS[0], (), ""), x, y, np.zeros_like(y), diverged=False)
    title = f"{drawable(records[0]['task']['name'])}, {label}"
    return Panel("loss", title, "communication rounds", "train loss", (curve,))


def loss_curve(records: Sequence[Record], path: Path) -> None:
    """The same as a PNG."""
    atomic.write_bytes(path, figures.png_bytes(figures.titled_figure(loss_panel(records))))


def training_facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The settings that matter, and what came out."""
    config, end = records[0]["config"], of_kind(records, "summary")[-1]
    sizes = f"K = {config['workers']}, H = {config['local_steps']}, B = {config['batch']}"
    facts = [
        (
            "task",
            f"{records[0]['task']['name']}, {count(records[0]['task']['parameters'])} parameters",
        ),
        (
            "optimizer",
            config["optimizer"]
            + ("" if config["compress"] == "dense" else f", {config['compress']}"),
        ),
        ("workers, local steps, batch", f"{sizes}, engine: {records[0]['engine']}"),
        ("rounds", f"{count(end['rounds'])} in {duration(end['seconds'])}"),
        ("train loss", f"{number(end['loss'])} (mean of the last {WINDOW} rounds)"),
    ]
    facts += [
        (f"test {name}", (percent if name == "accuracy" else number)(x))
        for name, x in end["heldout"].items()
    ]
    many = len(end["workers"]) > 1
    return [*facts, ("state", agreement(end)), *(_costs(end) if many else []), *_refusals(end)]


def agreement(end: Record) -> str:
    """Whether all who took part held the same state, in words."""
    if len(end["final_digests"]) > 1:
        return f"DIFFERENT at the end: {', '.join(digest[:12] for digest in end['final_digests'])}"
    if end["rounds_apart"]:
        return f"equal at the end, different after {count(len(end['rounds_apart']))} rounds"
    name = end["final_digests"][0][:12] if end["final_digests"] else "unknown"
    if len(end["workers"]) == 1:
        return name
    finished = sum(worker["finished"] for worker in end["workers"].values())
    return f"{name} on {finished} of {len(end['workers'])} workers; hashes equal after every round"


def _costs(end: Record) -> list[tuple[str, str]]:
    workers = end["workers"].values()
    starts, healed = sum(w["starts"] - 1 for w in workers), sum(w["healed"] for w in workers)
    gap = end["longest_gap_seconds"]
    sent = max((w["sent"] / w["rounds"] for w in workers if w["rounds"]), default=0.0)
    facts = [("longest time without a commit", "–" if gap is None else f"{gap:.2f} s")]
    if sent:
        message = end["message_bits"] / 8
        facts.append(("sent a round and worker", f"{sent:,.0f} bytes; a message is {message:,.0f}"))
    if starts or healed:
        facts.append(("started again", f"{starts}; caught up from a peer: {healed}"))
    return facts


def _refusals(end: Record) -> list[tuple[str, str]]:
    found = (("messages left out", end["excluded"]), ("refused", end["refused"]))
    return [
        (what, ", ".join(f"{count(n)} × {why}" for why, n in counts.items()))
        for what, counts in found
        if counts
    ]
