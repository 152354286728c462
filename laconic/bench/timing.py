"""Timing of compiled steps that overwrite their own state, and the records of what was timed."""

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.errors import LaconicError
from laconic.show.figures import plot_style, png_bytes
from laconic.store import atomic
from laconic.store.records import plain, provenance, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tick = Callable[[str], None]  # called with the name of what has been timed
LEAST = 0.05  # seconds a timing lasts at least, by repeated calls
MOST = 200  # calls in a timing
TOLERANCE = 0.05  # relative difference up to which two times count as the same


class Step(NamedTuple):
    """A compiled `state, *rest → state` that donates its state; a call takes `inner` steps."""

    call: Callable[..., Any]
    state: Any
    rest: tuple[Any, ...]
    temporary_bytes: int | None
    inner: int = 1


def compiled(function: Callable[..., Any], state: Any, *rest: Any, inner: int = 1) -> Step:
    """Compile `function(state, *rest)`; the first call consumes the given state.

    With `inner` a call takes that many steps in a loop on the device: passing a thousand arrays
    from Python takes about as long as a step on a large GPU. The barrier ties `rest` to the state,
    so that nothing is computed once, ahead of the loop.
    """

    def several(state: Any, *rest: Any) -> Any:
        def one(_: Any, state: Any) -> Any:
            state, held = jax.lax.optimization_barrier((state, rest))
            return function(state, *held)

        return jax.lax.fori_loop(0, inner, one, state)

    jitted = jax.jit(several if inner > 1 else function, donate_argnums=0)
    program = jitted.lower(state, *rest).compile()
    memory = program.memory_analysis()
    return Step(program, state, rest, None if memory is None else memory.temp_size_in_bytes, inner)


def medians(
    steps: Mapping[str, Step], repeats: int, tick: Tick = lambda name: None
) -> dict[str, float]:
    """Median seconds of a step of each, alternating, after a warm-up that sets the call counts."""
    states, calls = {}, {}
    times = {name: [] for name in steps}
    for name, step in steps.items():
        state = jax.block_until_ready(step.call(step.state, *step.rest))
        begin = time.perf_counter()
        states[name] = jax.block_until_ready(step.call(state, *step.rest))
        calls[name] = min(MOST, max(1, math.ceil(LEAST / max(time.perf_counter() - begin, 1e-6))))
    for _ in range(repeats):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(calls[name]):
                states[name] = step.call(states[name], *step.rest)
            jax.block_until_ready(states[name])
            times[name].append((time.perf_counter() - begin) / (calls[name] * step.inner))
            tick(name)
    return {name: statistics.median(values) for name, values in times.items()}


def bandwidth(parameters: int = 1 << 26, repeats: int = 5) -> float:
    """Bytes a second that this device reads and writes, by adding one to a large array."""
    step = compiled(lambda x: x + 1.0, jnp.zeros(parameters), inner=10)
    return 8 * parameters / medians({"copy": step}, repeats)["copy"]


# --- records --------------------------------------------------------------------------------------


def make_record(benchmark: str, config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured (its "figures" by name, each with "seconds"), how, and where."""
    return {"benchmark": benchmark, "config": config, **found, **provenance()}


def save(
    folder: Path, record: dict[str, Any], draw: Callable[[dict[str, Any]], "Figure"] | None = None
) -> list[Path]:
    """`NAME.json` and `NAME.png` in the folder; the picture is bars, unless drawn otherwise."""
    name = record["benchmark"]
    paths = [folder / f"{name}.json", folder / f"{name}.png"]
    write_json(paths[0], record)
    atomic.write_bytes(paths[1], png_bytes((draw or picture)(record)))
    return paths


def load_record(path: Path) -> dict[str, Any]:
    """A record written by `save`."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LaconicError(
            f"cannot read {path} as a benchmark's record: {error}. Give a JSON file of ours."
        ) from None
    figures = record.get("figures") if isinstance(record, dict) else None
    if not isinstance(figures, dict) or "benchmark" not in record:
        raise LaconicError(
            f"{path} is JSON, but no record of `laconic bench`: it has no figures. Give another "
            "file."
        )
    for name, figure in figures.items():
        seconds = figure.get("seconds") if isinstance(figure, dict) else "missing"
        if not isinstance(seconds, int | float | None):
            raise LaconicError(
                f"{path} has no seconds in its figure {name!r}. Give a record of `laconic bench`."
            )
    return record


def compare(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[tuple[str, float, float, str]]:
    """(name, seconds before, seconds now, "slower", "faster" or "same") of each common figure."""
    if new["benchmark"] != old["benchmark"]:
        raise LaconicError(
            f"a record of {old['benchmark']!r} cannot be compared with {new['benchmark']!r}."
        )
    rows = []
    for name, now in new["figures"].items():
        before = old["figures"].get(name, {}).get("seconds")
        if before and now.get("seconds"):
            ratio = now["seconds"] / before
            verdict = "same"
            if not 1 - TOLERANCE <= ratio <= 1 + TOLERANCE:
                verdict = "slower" if ratio > 1 else "faster"
            rows.append((name, before, now["seconds"], verdict))
    if not rows:
        raise LaconicError(
            "the two records have no figure in common: measure the same sizes, tasks or methods."
        )
    return rows


def different(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(what, before, now) of device, versions and common settings that differ."""
    rows = [(what, old.get(what), new.get(what)) for what in ("device", "versions")]
    before, now = _settings(old), _settings(new)
    rows += [(what, before[what], value) for what, value in now.items() if what in before]
    return [row for row in rows if row[1] != row[2]]


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record's settings as in JSON, and beside them the kernels' tuning under its own names."""
    found = {}
    for part in (record.get("config"), record.get("tuning")):
        if isinstance(part, Mapping):
            found |= {name: plain(value) for name, value in part.items() if name != "tuning"}
    return found


def picture(record: Mapping[str, Any]) -> "Figure":
    """A bar for each figure, on a logarithmic axis of milliseconds."""
    from matplotlib.figure import Figure

    timed = {name: found.get("seconds") for name, found in record["figures"].items()}
    times = {name: 1e3 * seconds for name, seconds in timed.items() if seconds}
    beside = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    with plot_style():
        figure = Figure(figsize=(6.4, 1.2 + 0.28 * len(times)), layout="constrained")
        axes = figure.subplots()
        axes.barh(range(len(times)), list(times.values()), color="#4477aa")
        axes.set_yticks(range(len(times)), list(times))
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("milliseconds")
        for i, value in enumerate(times.values()):
            axes.annotate(f"{value:.3g}", (value, i), **beside)
        figure.suptitle(f"{record['benchmark']} on {record['device']['kind']}", fontsize=10)
    return figure
