"""The record of a benchmark: written, drawn, and compared with an earlier one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laconic.errors import LaconicError
from laconic.show.figures import plot_style, png_bytes
from laconic.store import atomic
from laconic.store.records import plain, provenance, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOLERANCE = 0.05  # by how much a time may differ and still be the same


def make_record(benchmark: str, config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured (its "figures" by name, each with "seconds"), how, and where."""
    return {"benchmark": benchmark, "config": config, **found, **provenance()}


def save(folder: Path, record: Mapping[str, Any]) -> list[Path]:
    """`NAME.json` and `NAME.png` in the folder."""
    name = record["benchmark"]
    paths = [folder / f"{name}.json", folder / f"{name}.png"]
    write_json(paths[0], record)
    atomic.write_bytes(paths[1], png_bytes(picture(record)))
    return paths


def load_record(path: Path) -> dict[str, Any]:
    """A record written by `save`."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LaconicError(
            f"cannot read {path} as a benchmark's record: {error}. Give a JSON file of ours."
        ) from None
    if (
        not isinstance(record, dict)
        or "benchmark" not in record
        or not isinstance(record.get("figures"), dict)
    ):
        raise LaconicError(
            f"{path} is JSON, but no record of `laconic bench`: it has no figures. Give another "
            "file."
        )
    for name, figure in record["figures"].items():
        if not isinstance(figure, dict) or not isinstance(
            figure.get("seconds"), int | float | None
        ):
            raise LaconicError(
                f"{path} has no seconds in its figure {name!r}. Give a record of `laconic bench`."
            )
    return record


def compare(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[tuple[str, float, float, str]]:
    """(name, seconds before, seconds now, "slower", "faster" or "same") of every figure that both
    have."""
    if new["benchmark"] != old["benchmark"]:
        raise LaconicError(
            f"a record of {old['benchmark']!r} cannot be compared with {new['benchmark']!r}."
        )
    rows = []
    for name, now in new["figures"].items():
        before = old["figures"].get(name, {}).get("seconds")
        if before and now.get("seconds"):
            ratio = now["seconds"] / before
            verdict = (
                "slower" if ratio > 1 + TOLERANCE else "faster" if ratio < 1 - TOLERANCE else "same"
            )
            rows.append((name, before, now["seconds"], verdict))
    if not rows:
        raise LaconicError(
            "the two records have no figure in common: measure the same sizes, tasks or methods."
        )
    return rows


def different(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(what, before, now) of all that was not the same: device, versions, and the settings that
    both records have."""
    rows = [(what, old.get(what), new.get(what)) for what in ("device", "versions")]
    before, now = _settings(old), _settings(new)
    rows += [(what, before[what], value) for what, value in now.items() if what in before]
    return [row for row in rows if row[1] != row[2]]


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record's settings as in JSON; how kernels are cut stands beside them, under its own names."""
    parts = [
        part for part in (record.get("config"), record.get("tuning")) if isinstance(part, Mapping)
    ]
    return {
        name: plain(value) for part in parts for name, value in part.items() if name != "tuning"
    }


def picture(record: Mapping[str, Any]) -> "Figure":
    """A bar for each figure, on a logarithmic axis of milliseconds."""
    from matplotlib.figure import Figure

    rows = [
        (name, 1e3 * figure["seconds"])
        for name, figure in record["figures"].items()
        if figure.get("seconds")
    ]
    names, times = [name for name, _ in rows], [value for _, value in rows]
    with plot_style():
        figure = Figure(figsize=(6.4, 1.2 + 0.28 * len(rows)), layout="constrained")
        axes = figure.subplots()
        axes.barh(range(len(rows)), times, color="#4477aa")
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("milliseconds")
        for i, value in enumerate(times):
            beside = {
                "xytext": (3, 0),
                "textcoords": "offset points",
                "va": "center",
                "fontsize": 8,
            }
            axes.annotate(f"{value:.3g}", (value, i), **beside)
        figure.suptitle(f"{record['benchmark']} on {record['device']['kind']}", fontsize=10)
    return figure
