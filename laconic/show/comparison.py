"""A comparison for people, made only from its records: table, verdict, figures, report page.

- `summarise`: the "summary" record of method records, by the definitions in `metrics`.
- `summary_table`, `verdict`, `notes`: what came out. `panels`, `curves_figure`: its curves.
- `blocks`: all of it for a page; `write_report`: curves.png, curves.svg and report.html.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from laconic.errors import LaconicError
from laconic.federated.population import in_words, read_federated
from laconic.fragments import fragments_in_words
from laconic.methods import TUNED
from laconic.show import figures, metrics
from laconic.show import page as html
from laconic.show.curves import (
    Curve,
    Panel,
    Record,
    Style,
    drawable,
    heldout_curve,
    method_styles,
    of_kind,
    round_values,
    train_curve,
)
from laconic.show.labels import labels_of, numbers_meant
from laconic.show.table import (
    MISSING,
    Table,
    count,
    duration,
    number,
    percent,
    plural,
    with_error,
)
from laconic.show.timing import Link, Traffic, parse_link, round_seconds, seconds_to_loss
from laconic.store import atomic
from laconic.zoo import cards

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
USUAL = ("accuracy", "loss", "valid_loss")  # of any task; others are a user's own
LADDER = 5  # round losses in the table of times, beside the target
LONGEST = 44  # characters of a label in a legend
SPARE = ("speedup", "MB sent", "MB received")  # columns that a narrow terminal leaves out


# --- the summary ----------------------------------------------------------------------------------


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
    rounds = None if target is None else metrics.rounds_to_loss(curves, target)
    traffic = Traffic(**record["traffic"])
    seconds = speedup = speedup_error = None
    if link is not None and record["step_seconds"] is not None:
        costs = record["local_steps"], record["step_seconds"]
        seconds = seconds_to_loss(rounds, link, traffic, *costs)
    if reference is not None:
        speedup = metrics.speedup(curves_of(reference), curves)
        speedup_error = metrics.speedup_error(curves_of(reference), curves)
    return {
        "label": record["label"],
        "final_train": metrics.final_loss(curves),
        "final_train_error": float(metrics.standard_error(smooth)[-1]),
        "test_loss": test.get("loss"),
        "test_accuracy": test.get("accuracy"),
        **({"test_metrics": more} if more else {}),
        "rounds_to_target": rounds,
        "speedup": speedup,
        "speedup_error": speedup_error,
        "sent_megabytes": traffic.sent_bits * curves.shape[1] / 8e6,
        "received_megabytes": traffic.received_bits * curves.shape[1] / 8e6,
        "seconds_to_target": seconds,
        "diverged": int(np.sum(record["diverged"])),
        **_best_look(record),
    }


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


# --- records with labels that people read ---------------------------------------------------------


def methods_of(records: Sequence[Record]) -> list[Record]:
    """The methods under the labels that people read; `word` is what each was given as."""
    methods = of_kind(records, "method")
    shown = labels_of(method["label"] for method in methods)
    return [{**m, "word": m["label"], "label": shown[m["label"]]} for m in methods]


def summary_of(records: Sequence[Record]) -> Record:
    """The "summary" record that counts, the last, under the labels of `methods_of`."""
    summary = of_kind(records, "summary")[-1]
    shown = {m["word"]: m["label"] for m in methods_of(records)}
    rows = [{**row, "label": shown.get(row["label"], row["label"])} for row in summary["rows"]]
    reference = summary["reference"]
    return {**summary, "rows": rows, "reference": shown.get(reference, reference)}


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
        found.append(Column(name, lambda r: count(r["rounds_to_target"]), "rounds_to_target", min))
    if summary["reference"] is not None:
        ratio = lambda r: with_error(r["speedup"], r["speedup_error"], "×")
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


def _best_columns(rows: Sequence[Row]) -> list[Column]:
    """The lowest held-out losses, where methods may stop early."""
    if "best_round" not in rows[0]:
        return []
    at = lambda r: "" if r["best_round"] is None else f" (round {count(r['best_round'])})"
    best = lambda r: number(r["best_loss"]) + at(r)
    if rows[0]["watched"] == "loss":
        return [Column("best test loss", best, "best_loss", min)]
    there = lambda r: number(r["best_test_loss"])
    return [
        Column("best valid. loss", best, "best_loss", min),
        Column("test loss there", there, "best_test_loss", min),
    ]


def summary_table(records: Sequence[Record]) -> Table:
    """The row of every method, best values marked: the same in terminal, page and Markdown."""
    summary = summary_of(records)
    link_given = of_kind(records, "run")[0]["config"]["link"] is not None
    methods, looks = _methods(records)
    by_label = {m["label"]: (look, m["word"]) for m, look in zip(methods, looks, strict=True)}
    note = f"Bold marks the best of a column{_left_out(records)}; "
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
    return word in TUNED[task] or (
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
        values = [row[field] for row in rivals if field and row[field] is not None]
        tied = len(set(values)) == 1 and len(values) == len(rivals)
        if better is not None and values and not tied:
            won = [row["label"] for row in rivals if row[field] == better(values)]
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


def _left_out(records: Sequence[Record]) -> str:
    return f" ({', '.join(sorted(bounds(records)))} left out)" if bounds(records) else ""


# --- the verdict ----------------------------------------------------------------------------------


def verdict(records: Sequence[Record]) -> str:
    """One sentence in plain words: which method won, by how much, or that none did."""
    config, summary = of_kind(records, "run")[0]["config"], summary_of(records)
    rounds = count(config["rounds"])
    if config.get("patience"):
        rounds = f"at most {rounds}"
    target = summary["target_loss"]
    left_out = bounds(records)
    if len(left_out) == len(summary["rows"]):
        left_out = frozenset()
    rivals = rivals_of(summary["rows"], left_out)
    if not rivals:
        return "Every method diverged."
    reference = next((row for row in rivals if row["label"] == summary["reference"]), None)
    if target is None or len(summary["rows"]) - len(left_out) == 1:
        return _lowest_loss(rivals, rounds)
    own = reference is not None and config["target_loss"] is None
    whose = f"{reference['label']}'s best" if own else "the target"  # type: ignore[index]
    goal = f"{whose} training loss ({number(target)})"
    arrived = [row for row in rivals if row["rounds_to_target"]]
    arrived.sort(key=lambda row: row["rounds_to_target"])
    if not arrived:
        return f"No method reached {goal} in {rounds} rounds. {_lowest_loss(rivals, rounds)}"
    taken = arrived[0]["rounds_to_target"]
    name = arrived[0]["label"]
    if reference is not None:
        theirs = reference["rounds_to_target"]
        if theirs is None:
            told = f"{reference['label']} did not in {rounds}"
            return f"{name} reached {goal} in {count(taken)} rounds; {told}."
        if theirs == taken:
            told = f"{reference['label']}, which took {count(taken)}"
            return f"No method reached {goal} in fewer rounds than {told}."
        gain = f"{count(taken)} rounds instead of {count(theirs)}: {_fewer(taken, theirs)}"
        return f"{name} reached {goal} in {gain}{_doubt(arrived[0] if own else {})}."
    if len(arrived) == 1:
        return f"Only {name} reached {goal}, in {count(taken)} rounds of {rounds}."
    second = f"{arrived[1]['label']}, took {count(arrived[1]['rounds_to_target'])}"
    return f"{name} reached {goal} first, in {count(taken)} rounds; the next, {second}."


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
    doubt = f"the error of that speedup (± {error:.2g}) leaves open whether it is a gain at all"
    return f", though {doubt}"


def _lowest_loss(rows: Sequence[Row], rounds: str) -> str:
    known = [row for row in rows if row["final_train"] is not None]
    if not known:
        return "Every method diverged."
    best = min(known, key=lambda row: row["final_train"])
    loss = number(best["final_train"])
    if len(rows) == 1:
        return f"{best['label']} ended at a training loss of {loss} after {rounds} rounds."
    return f"After {rounds} rounds {best['label']} has the lowest training loss, {loss}."


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader must know beside the verdict: time on the link, seeds, divergence, bounds."""
    config, summary = of_kind(records, "run")[0]["config"], summary_of(records)
    methods, found = methods_of(records), []
    rivals = rivals_of(summary["rows"], bounds(records))
    timed = {r["label"]: s for r in rivals if (s := r["seconds_to_target"]) is not None}
    fastest = min(timed, key=timed.__getitem__, default=None)
    reference = summary["reference"]
    if fastest is not None and reference in timed and reference != fastest:
        times = [f"{label} {duration(timed[label])}" for label in (fastest, reference)]
        found.append(f"On a {config['link']} link that takes {' and '.join(times)}.")
    if max(len(method["train"]) for method in methods) == 1:
        chance = "One seed was run: small differences may be chance."
        found.append(f"{chance} Run several seeds to see an error.")
    for method in methods:
        bad, seeds = sum(method["diverged"]), len(method["diverged"])
        if bad:
            found.append(f"{method['label']} diverged in {bad} of {seeds} seeds.")
    stops = [method for method in methods if method.get("early", {}).get("stopped")]
    found += [f"{method['label']} {metrics.stopped_early(method['early'])}." for method in stops]
    bound = "runs on one worker and sends nothing: a bound, not a rival."
    return found + [f"{label} {bound}" for label in sorted(bounds(records))]


# --- curves ---------------------------------------------------------------------------------------


def _methods(records: Sequence[Record]) -> tuple[list[Record], list[Style]]:
    """The methods, and one style for each."""
    methods = methods_of(records)
    return methods, method_styles([m["label"] for m in methods], summary_of(records)["reference"])


def legend(records: Sequence[Record]) -> list[tuple[Style, str]]:
    """Each method's style and label, shortened if need be, with how many seeds diverged."""
    found = []
    for method, look in zip(*_methods(records), strict=True):
        label, bad, seeds = drawable(method["label"]), sum(method["diverged"]), len(method["train"])
        if len(label) > LONGEST:
            label = label[: LONGEST - 1] + "…"
        if bad:
            label += " (diverged)" if bad == seeds else f" (diverged: {bad} of {seeds} seeds)"
        found.append((look, label))
    return found


def panels(records: Sequence[Record]) -> list[Panel]:
    """Train loss against rounds, the test metric, and train loss against seconds on a link."""
    methods = methods_of(records)
    labels = "Training loss", "communication rounds"
    found = [_train_panel(records, "rounds", labels, [1.0] * len(methods), log_x=False)]
    found += _heldout_panels(records)
    seconds = seconds_per_round(records)
    if any(seconds):
        link = of_kind(records, "run")[0]["config"]["link"]
        labels = "Training loss over time", f"seconds on a {link} link"
        found.append(_train_panel(records, "seconds", labels, seconds))
    return found


def bits_panel(records: Sequence[Record]) -> Panel:
    """Train loss against megabytes sent; a method that sends nothing has no place on a log axis."""
    megabytes = [method["traffic"]["sent_bits"] / 8e6 for method in methods_of(records)]
    labels = "Training loss over traffic", "megabytes sent per worker"
    return _train_panel(records, "bits", labels, megabytes)


def traffic_differs(records: Sequence[Record]) -> bool:
    """Whether methods that send anything send different amounts, so that rounds alone mislead."""
    return len({m["traffic"]["sent_bits"] for m in methods_of(records)} - {0}) > 1


def seconds_per_round(records: Sequence[Record]) -> list[float | None]:
    """Seconds of a round of each method on the run's link; None without a link or a step time."""
    methods, text = methods_of(records), of_kind(records, "run")[0]["config"]["link"]
    if text is None:
        return [None] * len(methods)
    link = parse_link(text)
    found: list[float | None] = []
    for m in methods:
        costs = Traffic(**m["traffic"]), m["local_steps"], m["step_seconds"]
        found.append(None if costs[-1] is None else round_seconds(link, *costs))
    return found


def _train_panel(
    records: Sequence[Record],
    name: str,
    labels: tuple[str, str],
    per_round: Sequence[float | None],
    log_x: bool = True,
) -> Panel:
    """Smoothed loss at rounds × `per_round`, for the methods where that is neither 0 nor None."""
    curves: list[Curve] = []
    methods, looks = _methods(records)
    for method, look, cost in zip(methods, looks, per_round, strict=True):
        if cost:
            curve = train_curve(method, look)
            curves.append(replace(curve, x=curve.x * cost))
    window = min(metrics.WINDOW, max(len(method["train"][0]) for method in methods))
    target = summary_of(records)["target_loss"]
    y_label = f"train loss (trailing {window}-round mean)"
    return Panel(name, *labels, y_label, tuple(curves), log_x=log_x, target=target)


def _heldout_panels(records: Sequence[Record]) -> list[Panel]:
    """Against rounds: test accuracy, or test loss where there is none, and a user's own metrics."""
    methods, looks = _methods(records)
    names = dict.fromkeys(name for method in methods for name in method["heldout"])
    found = []
    for metric in [*[name for name in USUAL if name in names][:1], *sorted({*names} - {*USUAL})]:
        made = [heldout_curve(m, metric, look) for m, look in zip(methods, looks, strict=True)]
        curves = tuple(curve for curve in made if curve is not None)
        title = f"Test {drawable(metric)}"
        y_label = "test accuracy, %" if metric == "accuracy" else title.lower()
        name = "heldout" if metric in USUAL else f"heldout {metric}"
        words = name, title, "communication rounds", y_label
        found.append(Panel(*words, curves, log_y=metric == "loss", ceiling=metric in USUAL))
    return found


def curves_figure(records: Sequence[Record]) -> "Figure":
    """All panels, three side by side, with one legend below them."""
    shown = panels(records)
    entries = legend(records)
    target = shown[0].target
    if target is not None:
        entries.append((figures.TARGET, f"target {number(target)}"))
    return figures.grid_figure(shown, entries)


# --- pages ----------------------------------------------------------------------------------------


def sizes_of(config: Record) -> str:
    """Workers, local steps and batch, then missing workers, fragments and the population, if there
    are any."""
    missing = f" ({config['missing']} missing from each round)" if config.get("missing") else ""
    sizes = f"K = {config['workers']}{missing}, H = {config['local_steps']}, B = {config['batch']}"
    return sizes + fragments_in_words(config) + in_words(config)


def setting_of(records: Sequence[Record]) -> str:
    """The task and the sizes of a comparison, on one line."""
    run = of_kind(records, "run")[0]
    config = run["config"]
    task = run["task"]
    run_for = f"{count(config['rounds'])} rounds, {plural(config['seeds'], 'seed')}"
    if config.get("patience"):
        run_for = f"at most {run_for}, patience {config['patience']}"
    return (
        f"{task['name']}, {count(task['parameters'])} parameters · {sizes_of(config)} · {run_for}"
    )


def blocks(records: Sequence[Record]) -> list[html.Block]:
    """What a page shows of a comparison."""
    opening = html.Verdict(verdict(records), notes(records))
    return [html.Text(setting_of(records)), opening, summary_table(records), _curves(records)]


def _curves(records: Sequence[Record]) -> html.Panels:
    methods, target = methods_of(records), summary_of(records)["target_loss"]
    shown = panels(records)
    if traffic_differs(records):
        shown.append(bits_panel(records))
    seeds = len(methods[0]["train"])
    how = "Lines are one seed's."
    if seeds > 1:
        how = f"Lines are means over {seeds} seeds, bands ± the standard error."
    if target is not None:
        how += f" The dotted line is the target, {number(target)}."
    if any(any(m["diverged"]) for m in methods):
        how += " A cross is where a method diverged."
    lacking = []
    for panel in shown:
        there = {curve.label for curve in panel.curves}
        absent = [m["label"] for m in methods if m["label"] not in there]
        if absent:
            lacking.append((panel.name, f"Without a value here: {', '.join(absent)}."))
    return html.Panels(shown, how, legend(records), lacking)


def write_report(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Write curves.png, curves.svg and report.html into `folder` → their paths."""
    for kind in ("run", "method", "summary"):
        if not of_kind(records, kind):
            why = "so there is nothing to report; finish the run first."
            raise LaconicError(f"these records hold no {kind!r}, {why}")
    curves = curves_figure(records)
    contents = {
        "curves.png": figures.png_bytes(curves),
        "curves.svg": figures.svg_bytes(curves),
        "report.html": report_page(records).encode(errors="replace"),
    }
    for name, data in contents.items():
        atomic.write_bytes(folder / name, data)
    return [folder / name for name in contents]


def report_page(records: Sequence[Record]) -> str:
    """The whole report as one HTML file that needs nothing else."""
    run = of_kind(records, "run")[0]
    times = _times(records)
    priced = []
    if times is not None:
        heading = f"What fewer rounds are worth on a {run['config']['link']} link"
        priced = [html.section(heading, html.table(times))]
    parts = [
        html.verdict(verdict(records), notes(records)),
        html.section("Summary", html.table(summary_table(records))),
        html.section("Curves", html.html([_curves(records)])),
        *priced,
        html.section("How the numbers are defined", html.pairs(metrics.DEFINITIONS, "terms")),
        html.section("The command", html.command(run["command"])),
        html.section("How each method was run", html.table(_costs(records))),
        html.section("Settings, data and machine", _provenance(records)),
    ]
    name = run["task"]["name"]
    by = "laconic compare"
    return html.document(f"{name} – {by}", by, name, "\n".join(parts), setting_of(records))


def _times(records: Sequence[Record]) -> Table | None:
    """Time to each of a few losses for every method; None without a link and step times."""
    (methods, looks), per_round = _methods(records), seconds_per_round(records)
    if not any(per_round):
        return None
    summary = summary_of(records)
    target = summary["target_loss"]
    marks = [*_ladder(methods), *([] if target is None else [float(target)])]
    losses = sorted(set(marks), reverse=True)
    names = [f"to {number(x)} (target)" if x == target else f"to {x:g}" for x in losses]
    seconds: list[list[float | None]] = []
    for method, cost in zip(methods, per_round, strict=True):
        rounds = [metrics.rounds_to_loss(method["train"], loss) for loss in losses]
        seconds.append([None if n is None or cost is None else n * cost for n in rounds])
    able = {row["label"] for row in rivals_of(summary["rows"], bounds(records))}
    rivals = [i for i, method in enumerate(methods) if method["label"] in able]
    best = set()
    for j in range(len(losses)):
        known = {i: s for i in rivals if (s := seconds[i][j]) is not None}
        if known and len(rivals) > 1:
            best |= {(i, j + 2) for i, s in known.items() if s == min(known.values())}
    found = zip(methods, per_round, seconds, strict=True)
    rows = [[m["label"], duration(cost), *map(duration, taken)] for m, cost, taken in found]
    note = "Time until the smoothed training loss is at most each of these; "
    note += f"bold marks the fastest{_left_out(records)}."
    headers = ["method", "one round", *names]
    return Table("Time to each loss", headers, rows, note, frozenset(best), styles=looks)


def _ladder(methods: Sequence[Record]) -> list[float]:
    """Round losses between the start of training and the lowest of any method, if positive."""
    smooth = [metrics.smoothed(metrics.mean_curve(method["train"])) for method in methods]
    finite = [values[np.isfinite(values)] for values in smooth if np.isfinite(values).any()]
    if not finite:
        return []
    low = float(min(values.min() for values in finite))
    high = float(np.median([values[0] for values in finite]))
    return round_values(low, high, most=LADDER) if 0 < low < high else []


def _costs(records: Sequence[Record]) -> Table:
    """What each method used: workers, steps, traffic a round, and the time it took here."""
    methods, looks = _methods(records)
    columns: dict[str, Callable[[Record], str]] = {
        "method": lambda m: m["label"],
        "given as": lambda m: m["word"],
        "workers": lambda m: count(m["workers"]),
        "local steps": lambda m: count(m["local_steps"]),
        "MB sent a round": lambda m: number(m["traffic"]["sent_bits"] / 8e6),
        "MB received a round": lambda m: number(m["traffic"]["received_bits"] / 8e6),
        "topology": lambda m: m["traffic"]["topology"],
        "local step": lambda m: duration(m["step_seconds"]),
        "wall time": lambda m: duration(m["seconds"]),
        "rounds a second": lambda m: number(m["rounds_per_second"]),
    }
    rows = [[cell(method) for cell in columns.values()] for method in methods]
    note = "Wall time and rounds a second are of the simulation here, all seeds together."
    return Table("Cost of each method", list(columns), rows, note, left=2, styles=looks)


def _provenance(records: Sequence[Record]) -> str:
    run = of_kind(records, "run")[0]
    about = [("data", run["task"]["source"]), ("classes", count(run["task"]["classes"]))]
    about += html.provenance_facts(html.provenances(records))
    seconds = sum(method["seconds"] for method in methods_of(records))
    about.append(("wall time", duration(seconds)))
    shown = {**run["config"], "federated": _population(run["config"])}
    if not shown["federated"]:
        del shown["federated"]
    settings = [(name.replace("_", " "), _setting(value)) for name, value in shown.items()]
    return f'<div class="columns">{html.pairs(settings)}{html.pairs(about)}</div>'


def _population(config: Record) -> str:
    """Every option of the population that is not at its default; "" without one."""
    options = read_federated(config, "the record")["federated"]
    dropout = f", dropout={options.dropout:g}" if options.dropout else ""
    return options.words().replace(",", ", ") + dropout


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return MISSING if value is None else str(value)
