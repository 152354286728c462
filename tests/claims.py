"""Every published number by claim, computed from the records under results/.

A claim is a name, such as `results/fmnist-learned: lopt-a-fmnist: speedup`, and a number. The
arithmetic here is NumPy of its own: of the package it uses only the two readers imported below, so
that it can tell whether a change of the package changed a number. Definitions are those of the
package: curves are smoothed by a trailing mean over 10 rounds, and NaN stands for "never reached".

The second half reads the numbers printed in Markdown tables of README.md and docs/.

    python -m tests.claims            show what differs from tests/pinned.jsonl.xz
    python -m tests.claims --write    write that file anew
"""

import argparse
import itertools
import json
import lzma
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from laconic.store.records import read
from laconic.zoo import cards

ROOT = Path(__file__).parents[1]
PINNED = Path(__file__).with_name("pinned.jsonl.xz")
WINDOW = 10  # rounds of smoothing
LOOKS = (100, 200, 500)  # rounds at which a curve itself is pinned
TOP = 5  # points of a sweep
UNPINNED = ("walks",)  # measured anew after each change, and so are their pages

Record = dict[str, Any]
Curves = np.ndarray  # [seeds, rounds]
Claims = Iterator[tuple[str, float | None]]
Row = tuple[str, str, tuple[str, ...]]  # header, first cell, numbers


# --- records ------------------------------------------------------------------------------------


def folders() -> list[Path]:
    """Every folder under results/ with records."""
    return sorted({path.parent for path in (ROOT / "results").rglob("records.jsonl*")})


def records_of(folder: Path) -> list[Record]:
    """The records of a folder, as the package reads them."""
    (path,) = folder.glob("records.jsonl*")
    return read(path)


def of_kind(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def all_claims() -> dict[str, float]:
    """Every claim by name; a name is given once only."""
    found: dict[str, float] = {}
    parts = [_folder_claims(folder) for folder in folders()]
    for name, value in itertools.chain(*parts, _benchmark_claims(), _card_claims()):
        if name in found:
            raise ValueError(f"two claims are called {name!r}")
        value = value.item() if isinstance(value, np.generic) else value
        found[name] = math.nan if value is None else value
    return found


def _folder_claims(folder: Path) -> Claims:
    records = records_of(folder)
    kinds = {record["kind"] for record in records}
    of = {
        "method": _comparison,
        "point": _sweep,
        "experiment": _experiment,
        "timing": _timing,
        "progress": _meta_training,
    }
    makers = [make for kind, make in of.items() if kind in kinds]
    if len(makers) != 1:
        raise ValueError(f"{folder} has records of the kinds {sorted(kinds)}: what are they of?")
    place = folder.relative_to(ROOT).as_posix()
    for name, value in makers[0](records):
        yield f"{place}: {name}", value


def _leaves(value: Any, name: str) -> Claims:
    """Every number within a JSON value; null counts as one, texts and booleans do not."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}/{index}")
    elif not isinstance(value, bool | str):
        yield name, value


# --- comparisons --------------------------------------------------------------------------------


def _comparison(records: list[Record]) -> Claims:
    config = records[0]["config"]
    methods = of_kind(records, "method")
    reference = _reference(methods)
    target = config["target_loss"]
    if target is None and reference is not None:
        target = _minimum(reference)
    yield "target loss", target
    yield "parameters", records[0]["task"]["parameters"]
    for method in methods:
        for name, value in _method(method, reference, target, config["link"]):
            yield f"{method['label']}: {name}", value


def _method(method: Record, reference: Curves | None, target: float | None, link: str) -> Claims:
    curves = np.array(method["train"], float)
    seeds, rounds = curves.shape
    last = np.array([_smoothed(curve)[-1] for curve in curves])
    sent, received = method["traffic"]["sent_bits"], method["traffic"]["received_bits"]
    reached = math.nan if target is None else _rounds_to(curves, target)
    yield "final train loss", last.mean()
    yield "final train loss, s.e.", last.std(ddof=1) / math.sqrt(seeds) if seeds > 1 else 0.0
    yield "minimum train loss", _minimum(curves)
    yield "train loss, mean over rounds", _mean(curves)  # changes with any number of the curves
    smooth = _smoothed(curves.mean(axis=0))
    for look in LOOKS:
        if look <= rounds:
            yield f"train loss at round {look}", smooth[look - min(WINDOW, rounds)]
    yield f"rounds to {target}", reached
    yield f"bits to {target}", reached * (sent + received)
    yield f"seconds to {target}", reached * _round_seconds(method, link)
    if reference is not None:
        yield "speedup", _speedup(reference, curves)
        yield "speedup, s.e.", _speedup_error(reference, curves)
    for metric, values in method["heldout"].items():
        curve = np.array(values, float).mean(axis=0)
        best = _finite(curve).argmin() if metric == "loss" else _finite(-curve).argmin()
        yield f"test {metric}, mean over rounds", _mean(values)
        yield f"final test {metric}", math.nan if any(method["diverged"]) else curve[-1]
        yield f"best test {metric}", curve[best]
        yield f"best test {metric}, round", method["evaluated_at"][best]
    yield "bits sent", sent * rounds
    yield "bits received", received * rounds
    yield "diverged seeds", sum(method["diverged"])


def _reference(methods: list[Record]) -> Curves | None:
    """Curves of dense local SGD or FedAvg; of several, those with the lowest minimum."""
    plain = [m for m in methods if m["method"] in ("local-sgd", "fedavg")]
    plain = [m for m in plain if m["compressor"] == "dense" and not any(m["diverged"])]
    return min((np.array(m["train"], float) for m in plain), key=_minimum, default=None)


def _smoothed(curve: np.ndarray) -> np.ndarray:
    """The mean over each full window; a curve shorter than the window has one."""
    window = min(WINDOW, curve.size)
    return np.lib.stride_tricks.sliding_window_view(curve, window).mean(axis=1)


def _mean(values: Any) -> float:
    """The mean of what is finite; NaN of nothing."""
    numbers = np.array(values, float)
    known = numbers[np.isfinite(numbers)]
    return float(known.mean()) if known.size else math.nan


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.inf)


def _minimum(curves: Curves) -> float:
    lowest = _finite(_smoothed(curves.mean(axis=0))).min()
    return float(lowest) if np.isfinite(lowest) else math.nan


def _rounds_to(curves: Curves, target: float) -> float:
    reached = np.flatnonzero(_smoothed(curves.mean(axis=0)) <= target)
    return float(reached[0] + min(WINDOW, curves.shape[1])) if reached.size else math.nan


def _speedup(reference: Curves, curves: Curves) -> float:
    target = _minimum(reference)
    return _rounds_to(reference, target) / _rounds_to(curves, target)


def _speedup_error(reference: Curves, curves: Curves) -> float:
    """The jackknife over seeds: the same seed is left out of both."""
    seeds = len(curves)
    if seeds < 2:
        return math.nan
    without = [np.delete(np.arange(seeds), seed) for seed in range(seeds)]
    ratios = np.array([_speedup(reference[kept], curves[kept]) for kept in without])
    return math.sqrt((seeds - 1) / seeds * ((ratios - ratios.mean()) ** 2).sum())


def _round_seconds(method: Record, link: str | None) -> float:
    """Seconds of a round over a link like 100Mbit/20ms; NaN where no link was given."""
    if link is None or method["step_seconds"] is None:
        return math.nan
    megabits, milliseconds = map(float, re.fullmatch(r"(\d+)Mbit/(\d+)ms", link).groups())
    bits = method["traffic"]["sent_bits"] + method["traffic"]["received_bits"]
    latency = 2 * milliseconds / 1e3 if bits else 0.0
    return method["local_steps"] * method["step_seconds"] + latency + bits / (megabits * 1e6)


# --- sweeps, meta-trainings, experiments, benchmarks, cards -------------------------------------


def _sweep(records: list[Record]) -> Claims:
    """The best points in order: the hyper-parameters of each, and what it reached."""
    by = of_kind(records, "ranking")[-1]["by"]

    def order(point: Record) -> tuple:
        value = point["valid"].get("loss") if by == "valid" else point[by]
        lowest = math.inf if point["minimum"] is None else point["minimum"]
        return any(point["diverged"]), value is None, value or 0.0, lowest, point["index"]

    points = sorted(of_kind(records, "point"), key=order)
    yield "points", len(points)
    yield "diverged points", sum(any(point["diverged"]) for point in points)
    yield "minimum, mean over points", _mean([point["minimum"] for point in points])
    for place, point in enumerate(points[:TOP], start=1):
        reached = {key: point[key] for key in ("numbers", "minimum", "final", "valid")}
        yield from _leaves(reached, f"no. {place}")


def _meta_training(records: list[Record]) -> Claims:
    progress = of_kind(records, "progress")
    judged = of_kind(records, "judged")
    yield "outer steps", max(record["end"] for record in progress)
    for summary in of_kind(records, "summary"):
        yield "seconds", summary["seconds"]
        yield "rounds per second", summary["rounds_per_second"]
    if judged:
        best = min(judged, key=lambda record: record["score"])
        yield "best judged loss", best["score"]
        yield "best judged loss, step", best["step"]
        yield from _leaves(best["final_losses"], "best judged loss, final losses")
        for task, losses in enumerate(judged[-1]["losses"]):
            for at, loss in zip(judged[-1]["at"], losses, strict=True):
                yield f"last judged: task {task}: loss at round {at}", loss


def _experiment(records: list[Record]) -> Claims:
    """Every row as last recorded: our number, the paper's, their errors and difference."""
    for row in of_kind(records, "experiment")[-1]["rows"]:
        name = f"{row['panel']}: {row['label']}: {row['metric']}"
        yield from _leaves(row, name if "H" not in row else f"{name} at H = {row['H']}")


def _timing(records: list[Record]) -> Claims:
    timing = of_kind(records, "timing")[-1]
    for key in ("parameters", "parts_seconds", "figures"):
        yield from _leaves(timing[key], key)


def _benchmark_claims() -> Claims:
    for path in sorted((ROOT / "results" / "benchmarks").glob("*.json*")):
        if path.stem not in UNPINNED:
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            for index, line in enumerate(lines):
                yield from _leaves(json.loads(line), f"benchmarks/{path.name}: {index}")


def _card_claims() -> Claims:
    told = ("workers", "local", "trained_on", "outer_steps", "pairs", "truncation", "horizon")
    for name, card in cards().items():
        for key in (*told, "meta_seed", "seconds"):
            yield from _leaves(getattr(card, key), f"cards/{name}: {key}")
        for result in card.results:
            place = Path(result["record"]).parent.as_posix()
            yield f"cards/{name}: {place}: {result['metric']}", result["value"]


# --- numbers as printed -------------------------------------------------------------------------

NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?")


def printed_rows() -> set[Row]:
    """Rows of numbers in the tables of README.md and docs/, in whichever file they are."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {row for page in pages if page.stem not in UNPINNED for row in rows_in(page.read_text())}


def rows_in(text: str) -> Iterator[Row]:
    """The rows of a page's tables in which a cell after the first begins with a number."""
    header = previous = ""
    for line in text.splitlines():
        if not line.startswith("|"):
            header = ""
        elif re.fullmatch(r"[|\s:-]+", line):
            header = " | ".join(_cells(previous))
        elif header:
            first, *others = _cells(line)
            if any(NUMBER.match(cell) for cell in others):
                yield header, first, tuple(numbers_in(" | ".join(others)))
        previous = line


def numbers_in(text: str) -> list[str]:
    """The numbers of a text, sorted, without thousands separators and plus signs."""
    return sorted(n.replace(",", "").replace("−", "-").lstrip("+") for n in NUMBER.findall(text))


def _cells(line: str) -> list[str]:
    """The cells of a row as plain text: neither link targets nor emphasis, which may change, and
    words instead of the labels that stand for them."""
    line = re.sub(r'<abbr title="([^"]*)">.*?</abbr>', r"\1", line.strip())
    text = re.sub(r"\]\([^)]*\)", "", line).replace("[", "")
    cells = re.split(r"(?<!\\)\|", re.sub(r"[*`]", "", text))
    return [" ".join(cell.split()) for cell in cells[1:-1]]


# --- what is pinned -----------------------------------------------------------------------------


def write(path: Path, claims: dict[str, float], rows: set[Row]) -> None:
    """One JSON line a claim and a row, compressed."""
    lines: list[Record] = []
    for name, value in claims.items():
        lines.append({"claim": name, "value": None if math.isnan(value) else value})
    for header, first, numbers in sorted(rows):
        lines.append({"header": header, "row": first, "numbers": numbers})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def pinned(path: Path = PINNED) -> tuple[dict[str, float], set[Row]]:
    """The claims and rows that `write` wrote."""
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    claims = {line["claim"]: line["value"] for line in lines if "claim" in line}
    rows = [line for line in lines if "row" in line]
    shown = {(row["header"], row["row"], tuple(row["numbers"])) for row in rows}
    return {name: math.nan if value is None else value for name, value in claims.items()}, shown


def differences(before: dict[str, float], now: dict[str, float]) -> list[str]:
    """What is claimed no more, anew, or with another number (beyond 1e-12 of it)."""
    lines = [f"missing: {name} was {before[name]}" for name in before if name not in now]
    lines += [f"additional: {name} is {now[name]}" for name in now if name not in before]
    for name in before.keys() & now.keys():
        one, other = before[name], now[name]
        same = math.isclose(one, other, rel_tol=1e-12) or (math.isnan(one) and math.isnan(other))
        if not same:
            lines.append(f"differs: {name} was {one}, is {other}")
    return sorted(lines, reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the pinned numbers anew")
    claims, rows = all_claims(), printed_rows()
    if parser.parse_args().write:
        write(PINNED, claims, rows)
    before, rows_before = pinned()
    for line in (*differences(before, claims), *(f"no row: {row}" for row in rows_before - rows)):
        print(line)
    print(f"{len(claims):,} claims, {len(rows):,} rows, {PINNED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
