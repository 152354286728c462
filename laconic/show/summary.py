"""The summary of a comparison and its table, made only from records.

- `summarise`: the "summary" record of method records, by the definitions in `metrics`.
- `methods_of`, `summary_of`: records under the labels that people read.
- `summary_table`: a row for every method, the best marked.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from laconic.show import intervals, metrics
from laconic.show.curves import Record, Style, method_styles, of_kind
from laconic.show.labels import labels_of, numbers_meant
from laconic.show.table import Table, count, duration, number, percent, rounds, times, with_error
from laconic.show.timing import Link, Traffic, seconds_to_loss
from laconic.tuned import CHOSEN_BEFORE, TUNED
from laconic.zoo import cards

Row = dict[str, Any]
USUAL = ("accuracy", "loss", "valid_loss")  # of any task; others are a user's own
BEST = ("accuracy", "loss")  # test metrics whose best is shown beside the end
# columns that a narrow terminal leaves out
SPARE = ("speedup", "best accuracy (round)", "MB sent", "MB received")


def curves_of(record: Record) -> np.ndarray:
    """A method record's train loss [S, T], with NaN where it was not finite."""
    return np.array(record["train"], dtype=float)


def summarise(
    methods: Sequence[Record], target_loss: float | None = None, link: Link | None = None
) -> Record:
    """The summary of method records; without a target it is the reference's minimum loss."""
    reference = reference_of(methods)
    if target_loss is None and reference is not None:
        target_loss = metrics.minimum_loss(curves_of(reference))
    rows = [_row(record, reference, target_loss, link) for record in methods]
    return {"target_loss": target_loss, "reference": reference and reference["label"], "rows": rows}


def reference_of(methods: Sequence[Record]) -> Record | None:
    """Local SGD (or FedAvg, its other name) with dense messages; of several the lowest loss."""
    plain = [r for r in methods if r["method"] in ("local-sgd", "fedavg")]
    candidates = [r for r in plain if r["compressor"] == "dense" and not any(r["diverged"])]
    return min(candidates, key=lambda r: metrics.minimum_loss(curves_of(r)), default=None)


def _row(record: Record, reference: Any, target: float | None, link: Link | None) -> Row:
    curves = curves_of(record)
    test = {}
    if not any(record["diverged"]):  # weights that are no longer numbers have no test loss
        last = {name: np.array(v, dtype=float)[:, -1] for name, v in record["heldout"].items()}
        test = {name: float(np.mean(values)) for name, values in last.items()}
    more = {name: value for name, value in test.items() if name not in USUAL}
    smooth = np.stack([metrics.smoothed(curve) for curve in curves])
    taken = None if target is None else metrics.rounds_to_loss(curves, target)
    traffic = Traffic(**record["traffic"])
    seconds = speedup = None
    if link is not None and record["step_seconds"] is not None:
        costs = record["local_steps"], record["step_seconds"]
        seconds = seconds_to_loss(taken, link, traffic, *costs)
    if reference is not None:
        speedup = metrics.speedup(curves_of(reference), curves)
    return {
        "label": record["label"],
        "final_train": metrics.final_loss(curves),
        "final_train_error": float(metrics.standard_error(smooth)[-1]),
        "test_loss": test.get("loss"),
        "test_accuracy": test.get("accuracy"),
        **({"test_metrics": more} if more else {}),
        "rounds_to_target": taken,
        "speedup": speedup,
        "sent_megabytes": traffic.sent_bits * curves.shape[1] / 8e6,
        "received_megabytes": traffic.received_bits * curves.shape[1] / 8e6,
        "seconds_to_target": seconds,
        "diverged": int(np.sum(record["diverged"])),
        **_best_look(record),
        **_intervals(record, reference, target, speedup),
    }


def _intervals(record: Record, reference: Any, target: float | None, speedup: float | None) -> Row:
    """The intervals of rounds and speedup; None where the number itself is not known."""
    curves, found = curves_of(record), Row(rounds_interval=None, speedup_interval=None)
    if target is not None and metrics.rounds_to_loss(curves, target) is not None:
        found["rounds_interval"] = intervals.rounds_interval(curves, target)
    if speedup is not None and record is not reference:
        found["speedup_interval"] = intervals.speedup_interval(curves_of(reference), curves)
    return found


def _best_look(record: Record) -> Row:
    """Where a method may stop early: its lowest held-out loss, its round and its test loss."""
    early = record.get("early")
    if early is None:
        return {}
    there = None
    if early["best_round"] is not None and "loss" in record["heldout"]:
        look = record["evaluated_at"].index(early["best_round"])
        there = float(np.array(record["heldout"]["loss"], dtype=float)[:, look].mean())
    names = ("watched", "best_round", "best_loss", "stopped")
    return {**{name: early[name] for name in names}, "best_test_loss": there}


def best_heldout(record: Record, metric: str) -> tuple[float, int] | None:
    """The best of a test metric's mean over seeds and the round it is in; looks at which a seed has
    no number do not count."""
    values = record["heldout"].get(metric)
    if values is None:
        return None
    mean_E = np.array(values, dtype=float).mean(axis=0)
    known = np.flatnonzero(np.isfinite(mean_E))
    if not known.size:
        return None
    best = np.argmax if metric == "accuracy" else np.argmin
    at = int(known[best(mean_E[known])])
    return float(mean_E[at]), record["evaluated_at"][at]


# --- records with labels that people read ---------------------------------------------------------


def methods_of(records: Sequence[Record]) -> list[Record]:
    """The methods under the labels that people read; `word` is what each was given as."""
    methods = of_kind(records, "method")
    shown = labels_of(method["label"] for method in methods)
    return [{**m, "word": m["label"], "label": shown[m["label"]]} for m in methods]


def with_intervals(records: Sequence[Record]) -> Record:
    """The last "summary" record; an old one is given the intervals that it lacks, once."""
    summary = of_kind(records, "summary")[-1]
    methods = {m["label"]: m for m in of_kind(records, "method")}
    reference = methods.get(summary["reference"])
    for row in summary["rows"]:
        if "speedup_interval" not in row:
            known = row["speedup"]
            row |= _intervals(methods[row["label"]], reference, summary["target_loss"], known)
    return summary


def summary_of(records: Sequence[Record]) -> Record:
    """The "summary" record that counts, the last, under the labels of `methods_of`, with the best
    of every test metric and its round."""
    summary = with_intervals(records)
    methods = {m["word"]: m for m in methods_of(records)}
    rows = []
    for row in summary["rows"]:
        method = methods.get(row["label"])
        row = {**row, "label": row["label"] if method is None else method["label"]}
        if method is not None and len(method["evaluated_at"]) > 1:
            for metric in BEST:
                found = best_heldout(method, metric)
                if found is not None:
                    row |= {f"{metric}_best": found[0], f"{metric}_at": found[1]}
        rows.append(row)
    shown = {word: method["label"] for word, method in methods.items()}
    reference = summary["reference"]
    return {**summary, "rows": rows, "reference": shown.get(reference, reference)}


def styled_methods(records: Sequence[Record]) -> tuple[list[Record], list[Style]]:
    """The methods, and one style for each."""
    methods = methods_of(records)
    return methods, method_styles([m["label"] for m in methods], summary_of(records)["reference"])


# --- the table ------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column: its name, how a row's cell reads, the field that ranks rows, which end is best."""

    name: str
    cell: Callable[[Row], str]
    field: str = ""
    best: Callable[..., float] | None = None


def _columns(summary: Record, link_given: bool) -> list[Column]:
    """The columns that have something to say about these rows."""
    rows = summary["rows"]
    target = summary["target_loss"]
    found = [Column("method", lambda r: r["label"])]
    if target is not None:
        name = f"rounds to {number(target)}"
        taken = lambda r: rounds(r["rounds_to_target"], r["rounds_interval"])
        found.append(Column(name, taken, "rounds_to_target", min))
    if summary["reference"] is not None:
        ratio = lambda r: times(r["speedup"], r["speedup_interval"])
        found.append(Column("speedup", ratio, "speedup", max))
    if link_given and target is not None:
        name = f"time to {number(target)}"
        time = lambda r: duration(r["seconds_to_target"])
        found.append(Column(name, time, "seconds_to_target", min))
    loss = lambda r: with_error(r["final_train"], r["final_train_error"])
    found.append(Column("final train loss", loss, "final_train", min))
    if any(row["test_accuracy"] is not None for row in rows):
        shown = lambda r: percent(r["test_accuracy"])
        found.append(Column("test accuracy", shown, "test_accuracy", max))
    if any(row["test_loss"] is not None for row in rows):
        found.append(Column("test loss", lambda r: number(r["test_loss"]), "test_loss", min))
    found += _peaks(rows)
    for own in dict.fromkeys(name for row in rows for name in row.get("test_metrics", {})):
        value = lambda r, own=own: number(r.get("test_metrics", {}).get(own))
        found.append(Column(f"test {own}", value))
    found += _best_columns(rows)
    sent = lambda r: number(r["sent_megabytes"])
    received = lambda r: number(r["received_megabytes"])
    found.append(Column("MB sent", sent, "sent_megabytes", min))
    found.append(Column("MB received", received, "received_megabytes", min))
    if any(row["diverged"] for row in rows):
        found.append(Column("diverged seeds", lambda r: count(r["diverged"])))
    return found


def _peaks(rows: Sequence[Row]) -> list[Column]:
    """The best test loss and accuracy over all looks, each with its round."""

    def cell(metric: str, text: Callable[[Any], str]) -> Callable[[Row], str]:
        at = f"{metric}_at"
        return lambda r: f"{text(r[f'{metric}_best'])} ({count(r[at])})" if at in r else "–"

    found = []
    for metric, text, better in (("loss", number, min), ("accuracy", percent, max)):
        field = f"{metric}_best"
        if any(row.get(field) is not None for row in rows):
            name = f"best test {metric} (round)" if metric == "loss" else "best accuracy (round)"
            found.append(Column(name, cell(metric, text), field, better))
    return found


def _best_columns(rows: Sequence[Row]) -> list[Column]:
    """The lowest held-out losses, where methods may stop early."""
    if "best_round" not in rows[0]:
        return []
    at = lambda r: "" if r["best_round"] is None else f" (round {count(r['best_round'])})"
    best = lambda r: number(r["best_loss"]) + at(r)
    if rows[0]["watched"] == "loss":
        return []  # it is among the peaks
    there = lambda r: number(r["best_test_loss"])
    return [
        Column("best valid. loss", best, "best_loss", min),
        Column("test loss there", there, "best_test_loss", min),
    ]


def summary_table(records: Sequence[Record]) -> Table:
    """The row of every method, best values marked: the same in terminal, page and Markdown."""
    summary = summary_of(records)
    link_given = of_kind(records, "run")[0]["config"]["link"] is not None
    methods, looks = styled_methods(records)
    by_label = {m["label"]: (look, m["word"]) for m, look in zip(methods, looks, strict=True)}
    note = f"Bold marks the best of a column{left_out_in_words(records)}; "
    note += "MB are per worker for the whole run."
    if summary["reference"] is not None:
        note += f" Speedup: to {_goal_of_speedups(records)}."
    if meant := numbers_meant(m["word"] for m in methods):
        note += f" Numbers of {meant}."
    styles, words = zip(*(by_label[row["label"]] for row in summary["rows"]), strict=True)
    table = table_of(summary, link_given, bounds(records))
    task = of_kind(records, "run")[0]["task"]["name"]
    rows = [
        [f"{row[0]} *", *row[1:]] if _chosen_on(task, word) else row
        for row, word in zip(table.rows, words, strict=True)
    ]
    if rows != table.rows:
        note += f" * Its numbers were chosen, or it was meta-trained, on {task}."
    return replace(table, rows=rows, note=note, styles=styles, words=words, spare=SPARE)


def _chosen_on(task: str, word: str) -> bool:
    """Whether a method was tuned or meta-trained on the task; told where all tuning is known."""
    if task not in TUNED:
        return False
    card = cards().get(word.partition(":")[0])
    return word in (*TUNED[task], *CHOSEN_BEFORE.get(task, ())) or (
        card is not None and task in (trained["task"] for trained in card.trained_on)
    )


def _goal_of_speedups(records: Sequence[Record]) -> str:
    """The loss that every speedup is a speedup to, in words."""
    name = summary_of(records)["reference"]
    reference = next(m for m in methods_of(records) if m["label"] == name)
    return f"{name}'s lowest training loss ({number(metrics.minimum_loss(curves_of(reference)))})"


def table_of(summary: Record, link_given: bool, left_out: frozenset[str] = frozenset()) -> Table:
    """The table of a "summary" record; methods in `left_out` are never marked as best."""
    columns = _columns(summary, link_given)
    rows = [[column.cell(row) for column in columns] for row in summary["rows"]]
    rivals = rivals_of(summary["rows"], left_out)
    best: set[tuple[int, int]] = set()
    for j, (_, _, field, better) in enumerate(columns):
        values = [row[field] for row in rivals if field and row.get(field) is not None]
        tied = len(set(values)) == 1 and len(values) == len(rivals)
        if better is not None and values and not tied:
            won = [row["label"] for row in rivals if row.get(field) == better(values)]
            best |= {(i, j) for i, row in enumerate(summary["rows"]) if row["label"] in won}
    headers = [column.name for column in columns]
    return Table("Summary of the methods", headers, rows, best=frozenset(best), code=True)


def rivals_of(rows: Sequence[Row], left_out: frozenset[str]) -> list[Row]:
    """The rows that can be the best: not in `left_out`, and no seed diverged."""
    return [row for row in rows if row["label"] not in left_out and not row["diverged"]]


def bounds(records: Sequence[Record]) -> frozenset[str]:
    """Labels of methods that use one worker where there are several: they send nothing."""
    workers = of_kind(records, "run")[0]["config"]["workers"]
    return frozenset(m["label"] for m in methods_of(records) if m["workers"] == 1 < workers)


def left_out_in_words(records: Sequence[Record]) -> str:
    """The methods that are never marked as best, in brackets; "" without any."""
    return f" ({', '.join(sorted(bounds(records)))} left out)" if bounds(records) else ""
