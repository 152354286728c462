"""A finished training for people, from what its processes wrote.

- `Life`, `of_lives`: the reports of several processes put together, as records.
- `facts`: settings, outcome and costs in words. `panels`, `write_curves`: its curves.
- `look_lines`: one look at held-out data in words.
- `blocks`: all of it for a page.

All processes report the same loss of a round; bytes and seconds are their own. A life is one
process from its start to its end or death.
"""

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laconic.show import figures
from laconic.show import page as html
from laconic.show.curves import Panel, Record, drawable, of_kind, plain_curve, style
from laconic.show.metrics import WATCHED, stopped_early
from laconic.show.table import MISSING, count, duration, number, percent
from laconic.store import atomic

Row = dict[str, Any]
WINDOW = 10  # rounds that the final loss is a mean of
COLUMNS = ("round", "loss", "quorum", "digest", "committed_at")
CLOCKS_APART = 5.0  # seconds from which on two machines' clocks are said to differ
LOOK = "heldout"  # the column of metrics on held-out data after some of the rounds
FIRST = ("valid_loss", "loss", "accuracy")  # of such metrics; one's own follow


@dataclass
class Life:
    """One process: its worker (the first, if it held all), its start, its rounds, its end."""

    worker: int
    begun: float
    rows: list[Row]
    end: Record

    @property
    def last_seen(self) -> float:
        """When it committed for the last time; its start, if it never did."""
        return self.rows[-1]["committed_at"] if self.rows else self.begun

    def moved(self, ahead: float) -> "Life":
        """The same by a clock that is right, if its own is so many seconds ahead."""
        if not ahead:
            return self
        rows = [row | {"committed_at": row["committed_at"] - ahead} for row in self.rows]
        return Life(self.worker, self.begun - ahead, rows, self.end)


def clocks_ahead(lives: Sequence[Life]) -> dict[int, float]:
    """By how many seconds the clocks of some workers are ahead of the lowest worker's, or behind
    it: of those that are far off.

    All commit a round within a moment. So the median over the states that both report tells,
    whoever was late for some of them.
    """
    seen: dict[int, dict[tuple[int, str], float]] = {}
    for life in lives:
        times = {(row["round"], row["digest"]): row["committed_at"] for row in life.rows}
        seen.setdefault(life.worker, {}).update(times)
    first = seen.get(min(seen, default=0), {})
    found = {}
    for worker, times in sorted(seen.items()):
        apart = [times[state] - first[state] for state in times.keys() & first.keys()]
        if apart and abs(ahead := float(np.median(apart))) > CLOCKS_APART:
            found[worker] = ahead
    return found


def of_lives(lives: Sequence[Life]) -> tuple[dict[str, list[Any]], Record]:
    """The rounds of a run as columns, and its summary."""
    ahead = clocks_ahead(lives)
    lives = [life.moved(ahead.get(life.worker, 0.0)) for life in lives]
    reported = _reported(lives)
    first = {r: min(rows, key=lambda row: row["committed_at"]) for r, rows in reported.items()}
    rounds = {name: [first[r][name] for r in sorted(first)] for name in COLUMNS}
    looks = [next((row[LOOK] for row in reported[r] if row.get(LOOK)), None) for r in sorted(first)]
    if any(looks):
        rounds[LOOK] = looks
    ends = [life.end for life in lives if life.end]
    losses = [loss for loss in rounds["loss"][-WINDOW:] if loss is not None]
    summary = {
        "rounds": max((end["round"] for end in ends), default=len(first)),
        "loss": float(np.mean(losses)) if losses else None,
        "heldout": next((end["heldout"] for end in ends if end["heldout"]), {}),
        **next(({"early": end["early"]} for end in ends if "early" in end), {}),
        "final_digests": sorted({end["digest"] for end in ends}),
        "rounds_apart": sorted(
            r for r, rows in reported.items() if len({row["digest"] for row in rows}) > 1
        ),
        "longest_gap_seconds": _longest_gap(lives),
        "seconds": round(_lived(lives), 3),
        "message_bits": next((end["message_bits"] for end in ends), None),
        "excluded": dict(
            Counter(reason for row in first.values() for reason in row["excluded"].values())
        ),
        "refused": _most(end["refused"] for end in ends),
        **({"clocks_ahead": {str(w): round(s, 3) for w, s in ahead.items()}} if ahead else {}),
        "workers": {
            str(worker): _of_worker(lives, worker)
            for worker in sorted({life.worker for life in lives})
        },
    }
    return rounds, summary


def _reported(lives: Sequence[Life]) -> dict[int, list[Row]]:
    """The rows of each round, without those that did not last.

    A run resumed from older checkpoints passed some rounds twice: rows of rounds that a later
    process repeated are dropped, and no others, so that no round gets lost. A worker that dies
    right after a commit may have been the only one to see it, so the last round of a life cut short
    counts only if no other process reports it.
    """
    found: dict[int, list[Row]] = {}
    unheard: list[Row] = []
    repeats: dict[int, list[float]] = {}  # when those who committed a round had begun
    for life in lives:
        for row in life.rows:
            repeats.setdefault(row["round"], []).append(life.begun)
    last = {now: max(begun) for now, begun in repeats.items()}
    for life in lives:
        rows = [row for row in life.rows if last[row["round"]] <= row["committed_at"]]
        if rows and not life.end and rows[-1] is life.rows[-1]:
            unheard.append(rows.pop())
        for row in rows:
            found.setdefault(row["round"], []).append(row)
    for row in unheard:
        found.setdefault(row["round"], [row])
    return found


def _longest_gap(lives: Sequence[Life]) -> float | None:
    """The longest time without progress, between the first commit and the last.

    Pauses in which no process lived are part of it. A round counts when the first process commits
    it, and once more when processes that began later had to repeat it.
    """
    commits: dict[int, list[tuple[float, float]]] = {}
    for life in lives:
        for row in life.rows:
            commits.setdefault(row["round"], []).append((row["committed_at"], life.begun))
    times = sorted(
        at
        for same in commits.values()
        for at, begun in same
        if not any(begun <= other < at for other, _ in same)
    )
    return max((b - a for a, b in itertools.pairwise(times)), default=None)


def _lived(lives: Sequence[Life]) -> float:
    """Seconds in which any process lived."""
    total = 0.0
    until = -np.inf
    for life in sorted(lives, key=lambda life: life.begun):
        total += max(0.0, life.last_seen - max(life.begun, until))
        until = max(until, life.last_seen)
    return float(total)


def _most(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """By reason the most that any process counted: all of them refuse the same messages."""
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


def blocks(records: Sequence[Record]) -> list[html.Block]:
    """What a page shows of a training."""
    return [html.Facts(facts(records)), html.Panels(panels(records))]


def panels(records: Sequence[Record]) -> list[Panel]:
    """Train loss, and each metric that was looked at on held-out data, against rounds."""
    train: dict[int, float | None] = {}
    looks: dict[str, dict[int, float | None]] = {}
    for record in of_kind(records, "rounds"):
        train |= dict(zip(record["round"], record["loss"], strict=True))
        for r, look in zip(record["round"], record.get(LOOK, ()), strict=False):
            for metric, value in _ordered(look or {}).items():
                looks.setdefault(metric, {})[r] = value
    label = drawable(records[0]["config"]["optimizer"])
    title = f"{drawable(records[0]['task']['name'])}, {label}"

    def panel(name: str, y_label: str, values: dict[int, float | None], loss: bool) -> Panel:
        rounds = sorted(values)
        y = np.array([values[r] for r in rounds], float)
        if name == "heldout accuracy":
            y_label, y = f"{y_label}, %", 100 * y
        words = name, title, "communication rounds", y_label
        curve = plain_curve(label, style(0), rounds, y)
        return Panel(*words, (curve,), log_y=loss, ceiling=loss)

    heldout = [
        panel(f"heldout {m}", _heldout_name(m), values, m in WATCHED) for m, values in looks.items()
    ]
    return [panel("loss", "train loss", train, loss=True), *heldout]


def _ordered(look: Record) -> Record:
    """Metrics on held-out data, those that all tasks may have first."""
    return {name: look[name] for name in dict.fromkeys([*FIRST, *look]) if name in look}


def _heldout_name(metric: str) -> str:
    return WATCHED.get(metric, f"test {drawable(metric)}")


def _heldout_facts(look: Record) -> list[tuple[str, str]]:
    """Each metric on held-out data and its value, in words."""
    return [(_heldout_name(metric), _value(metric, x)) for metric, x in _ordered(look).items()]


def _value(metric: str, value: float | None) -> str:
    return percent(value) if metric == "accuracy" else number(value)


def look_lines(look: Record, width: int) -> list[str]:
    """A look at held-out data in words, in lines of at most so many characters that break between
    two metrics. All that follow the test loss are of the test split."""
    values = {metric: _value(metric, value) for metric, value in _ordered(look).items()}
    found = [f"{WATCHED.get(metric) or drawable(metric)} {x}" for metric, x in values.items()]
    text = ", ".join(each.replace(" ", "\xa0") for each in found)
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def write_curves(records: Sequence[Record], path: Path) -> None:
    """`panels` as a PNG."""
    atomic.write_bytes(path, figures.png_bytes(figures.grid_figure(panels(records))))


def facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The settings that matter, and what came out."""
    config = records[0]["config"]
    task = records[0]["task"]
    end = of_kind(records, "summary")[-1]
    sizes = f"K = {config['workers']}, H = {config['local_steps']}, B = {config['batch']}"
    compress = "" if config["compress"] == "dense" else f", {config['compress']}"
    found = [
        ("task", f"{task['name']}, {count(task['parameters'])} parameters"),
        ("optimizer", config["optimizer"] + compress),
        ("workers, local steps, batch", f"{sizes}, engine: {records[0]['engine']}"),
        ("rounds", f"{count(end['rounds'])} in {duration(end['seconds'])}"),
        ("train loss", f"{number(end['loss'])} (mean of the last {WINDOW} rounds)"),
    ]
    found += _heldout_facts(end["heldout"])
    if "early" in end:
        found.append(("early stopping", _early(end["early"])))
    found.append(("state", agreement(end)))
    if len(end["workers"]) > 1:
        found += _costs(end)
    for what, counts in (("messages left out", end["excluded"]), ("refused", end["refused"])):
        if counts:
            found.append((what, ", ".join(f"{count(n)} × {why}" for why, n in counts.items())))
    return found


def _early(early: Record) -> str:
    """Where a training stopped and why, or its best round if it did not."""
    if early["stopped"]:
        return stopped_early(early)
    name = WATCHED[early["watched"]]
    if early["best_round"] is None:
        return f"{name} was never finite"
    return f"{name} was lowest after round {early['best_round']} ({number(early['best_loss'])})"


def agreement(end: Record) -> str:
    """Whether all workers held the same state, in words."""
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
    workers, gap = end["workers"].values(), end["longest_gap_seconds"]
    restarts = sum(w["starts"] - 1 for w in workers)
    healed = sum(w["healed"] for w in workers)
    sent = max((w["sent"] / w["rounds"] for w in workers if w["rounds"]), default=0.0)
    found = [("longest time without a commit", MISSING if gap is None else f"{gap:.2f} s")]
    if sent:
        message = end["message_bits"] / 8
        found.append(("sent a round and worker", f"{sent:,.0f} bytes; a message is {message:,.0f}"))
    if restarts or healed:
        found.append(("restarted", f"{restarts}; caught up from a peer: {healed}"))
    return found
