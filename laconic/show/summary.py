"""A comparison's outcome for people: the one home of how numbers are written, the table of methods,
and the verdict."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from laconic.show.curves import Record, of_kind
from laconic.show.table import (  # noqa: F401
    MISSING,
    UNITS,
    count,
    duration,
    number,
    percent,
    with_error,
)

Row = dict[str, Any]


def workers_of(config: Record) -> str:
    """How many workers a comparison has, and how many of them are not there."""
    missing = config.get("missing", 0)  # older records do not say
    return f"{config['workers']} workers" + (
        f", {missing} missing from each round" if missing else ""
    )


# --- the table ------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the summary: its name, how a row's cell reads, the field that ranks rows, and
    which end is best."""

    name: str
    cell: Callable[[Row], str]
    field: str = ""
    best: Callable[..., float] | None = None


def columns(summary: Record, link_given: bool) -> list[Column]:
    """The columns that have something to say about these rows."""
    rows, target = summary["rows"], summary["target_loss"]
    goal = number(target)

    def any_of(field: str) -> bool:
        return any(row[field] is not None for row in rows)

    possible = [
        (True, Column("method", lambda r: r["label"])),
        (
            target is not None,
            Column(
                f"rounds to {goal}", lambda r: count(r["rounds_to_target"]), "rounds_to_target", min
            ),
        ),
        (
            summary["reference"] is not None,
            Column(
                "speedup",
                lambda r: with_error(r["speedup"], r["speedup_error"], "×"),
                "speedup",
                max,
            ),
        ),
        (
            link_given and target is not None,
            Column(
                f"time to {goal}",
                lambda r: duration(r["seconds_to_target"]),
                "seconds_to_target",
                min,
            ),
        ),
        (
            True,
            Column(
                "final train loss",
                lambda r: with_error(r["final_train"], r["final_train_error"]),
                "final_train",
                min,
            ),
        ),
        (
            any_of("test_accuracy"),
            Column("test accuracy", lambda r: percent(r["test_accuracy"]), "test_accuracy", max),
        ),
        (
            any_of("test_loss"),
            Column("test loss", lambda r: number(r["test_loss"]), "test_loss", min),
        ),
        (True, Column("MB sent", lambda r: number(r["sent_megabytes"]), "sent_megabytes", min)),
        (
            True,
            Column(
                "MB received", lambda r: number(r["received_megabytes"]), "received_megabytes", min
            ),
        ),
        (
            any(row["diverged"] for row in rows),
            Column("diverged seeds", lambda r: count(r["diverged"])),
        ),
    ]
    return [column for shown, column in possible if shown]


def table_rows(summary: Record, link_given: bool) -> tuple[list[str], list[list[str]]]:
    """The summary as text → (headers, one row of cells a method), the same for terminal, page and
    Markdown."""
    shown = columns(summary, link_given)
    return [column.name for column in shown], [
        [column.cell(row) for column in shown] for row in summary["rows"]
    ]


def best_cells(
    summary: Record, link_given: bool, out_of_competition: frozenset[str]
) -> frozenset[tuple[int, int]]:
    """The (row, column) places of the best value of each column; none where all rows are equal."""
    places: set[tuple[int, int]] = set()
    for j, column in enumerate(columns(summary, link_given)):
        ranked = [
            r for r in summary["rows"] if r["label"] not in out_of_competition and not r["diverged"]
        ]
        values = [
            row[column.field] for row in ranked if column.field and row[column.field] is not None
        ]
        if (
            column.best is None
            or not values
            or (len(set(values)) == 1 and len(values) == len(ranked))
        ):
            continue
        best = column.best(values)
        places |= {
            (i, j)
            for i, row in enumerate(summary["rows"])
            if row in ranked and row[column.field] == best
        }
    return frozenset(places)


def bounds(records: Sequence[Record]) -> frozenset[str]:
    """Labels of methods that use one worker where there are several: they send nothing, so they are
    no rivals."""
    workers = of_kind(records, "run")[0]["config"]["workers"]
    return frozenset(m["label"] for m in of_kind(records, "method") if m["workers"] == 1 < workers)


def markdown_table(records: Sequence[Record]) -> str:
    """The summary as a Markdown table, the best values in bold."""
    summary, link_given = (
        of_kind(records, "summary")[-1],
        of_kind(records, "run")[0]["config"]["link"] is not None,
    )
    headers, rows = table_rows(summary, link_given)
    best = best_cells(summary, link_given, bounds(records))
    lines = [headers, ["---", *("---:" for _ in headers[1:])]]
    for i, (label, *cells) in enumerate(rows):
        name = (
            "`" + " ".join(label.split()).replace("`", "'").replace("|", "\\|") + "`"
        )  # as code: nothing in it is markup
        lines.append(
            [
                name,
                *(
                    f"**{cell}**" if (i, j) in best else cell
                    for j, cell in enumerate(cells, start=1)
                ),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- the verdict ----------------------------------------------------------------------------------


def verdict(records: Sequence[Record]) -> str:
    """One sentence in plain words: who won, by how much, or that nobody did."""
    run, summary = of_kind(records, "run")[0], of_kind(records, "summary")[-1]
    rounds, target = run["config"]["rounds"], summary["target_loss"]
    rivals = [row for row in summary["rows"] if row["label"] not in bounds(records)] or summary[
        "rows"
    ]
    reference = next((row for row in rivals if row["label"] == summary["reference"]), None)
    if target is None or len(rivals) == 1:
        return _lowest_loss(rivals, rounds)
    own = reference is not None and run["config"]["target_loss"] is None
    goal = f"{reference['label']}'s best training loss" if own else "the target training loss"  # type: ignore[index]
    goal += f" ({number(target)})"
    arrived = sorted(
        (row for row in rivals if row["rounds_to_target"]), key=lambda row: row["rounds_to_target"]
    )
    if not arrived:
        return f"No method reached {goal} in {count(rounds)} rounds. {_lowest_loss(rivals, rounds)}"
    first = arrived[0]
    taken, name = first["rounds_to_target"], first["label"]
    if reference is not None and reference["rounds_to_target"] == taken:
        return (
            f"No method reached {goal} in fewer rounds than {reference['label']}, which took "
            f"{count(taken)}."
        )
    if reference is not None and reference["rounds_to_target"] is not None:
        theirs = reference["rounds_to_target"]
        gain = (
            f"{name} reached {goal} in {count(taken)} rounds instead of {count(theirs)}: "
            f"{_fewer(taken, theirs)}"
        )
        return gain + _doubt(first if own else {}) + "."
    if reference is not None:
        return (
            f"{name} reached {goal} in {count(taken)} rounds; {reference['label']} did not in "
            f"{count(rounds)}."
        )
    if len(arrived) == 1:
        return f"Only {name} reached {goal}, in {count(taken)} rounds of {count(rounds)}."
    second = arrived[1]
    return (
        f"{name} reached {goal} first, in {count(taken)} rounds; the next, {second['label']}, "
        f"took {count(second['rounds_to_target'])}."
    )


def _fewer(ours: int, theirs: int) -> str:
    if theirs >= 1.95 * ours:
        return f"{theirs / ours:.1f} times fewer"
    share = 100 * (1 - ours / theirs)
    return f"{share:.0f} % fewer" if share >= 1 else f"{theirs - ours} fewer"


def _doubt(row: Row) -> str:
    """Two standard errors that reach down to "no gain" belong into the sentence that claims one."""
    speedup, error = row.get("speedup"), row.get("speedup_error")
    if speedup is None or not error or speedup - 2 * error > 1:
        return ""
    return (
        f", though the error of that speedup (± {error:.2g}) leaves open whether it is a gain at "
        "all"
    )


def _lowest_loss(rows: Sequence[Row], rounds: int) -> str:
    known = [row for row in rows if row["final_train"] is not None]
    if not known:
        return "Every method diverged."
    best = min(known, key=lambda row: row["final_train"])
    if len(rows) == 1:
        return (
            f"{best['label']} ended at a training loss of {number(best['final_train'])} after "
            f"{count(rounds)} rounds."
        )
    return (
        f"After {count(rounds)} rounds {best['label']} has the lowest training loss, "
        f"{number(best['final_train'])}."
    )


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader must know beside the verdict: seeds, divergence, bounds, and the gain in time
    on the link."""
    config, summary = of_kind(records, "run")[0]["config"], of_kind(records, "summary")[-1]
    methods, found = of_kind(records, "method"), []
    timed = {
        row["label"]: row["seconds_to_target"]
        for row in summary["rows"]
        if row["label"] not in bounds(records)
    }
    known = {label: seconds for label, seconds in timed.items() if seconds is not None}
    if len(known) > 1:
        fastest, slowest = min(known, key=known.__getitem__), summary["reference"]
        if slowest in known and slowest != fastest:
            found.append(
                f"On a {config['link']} link that takes {fastest} {duration(known[fastest])} and "
                f"{slowest} {duration(known[slowest])}."
            )
    seeds = max(len(method["train"]) for method in methods)
    if seeds == 1:
        found.append(
            "One seed was run: small differences may be chance. Run several seeds to see an error."
        )
    for method in methods:
        if any(method["diverged"]):
            found.append(
                f"{method['label']} diverged in {sum(method['diverged'])} of "
                f"{len(method['diverged'])} seeds."
            )
    for label in sorted(bounds(records)):
        found.append(f"{label} runs on one worker and sends nothing: a bound, not a rival.")
    return found
