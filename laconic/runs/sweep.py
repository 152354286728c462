"""A grid of one family's hyper-parameters on one task, as one compiled program.

`vmap` over seeds and over a chunk of grid points, `scan` over rounds of `communication_round`.
Hyper-parameters are traced numbers and every chunk has the same shape (the last is padded), so the
whole grid compiles once. All points of a seed share its initial weights and minibatches, those
`laconic compare` would give it, and so one gather of the data.

Legend: P points of a chunk, S seeds, T rounds, C rounds of a segment, K workers, H local steps.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.compress import DENSE, Compressor
from laconic.data.feed import Resident
from laconic.errors import LaconicError, require_positive
from laconic.federated.population import RUNS, Population, draw_population, settle
from laconic.method import Point, Setting
from laconic.methods import definition_of
from laconic.round import RoundState, Server, communication_round, draw_items, init_round, mean_loss
from laconic.runs.compare import RECORDS, Interrupted, Observer, Silent
from laconic.runs.measure import all_finite, heldout_metrics
from laconic.runs.simulate import in_parts
from laconic.show.sweep import RULES, Record, Rule, point_record, ranked
from laconic.store.runlog import RunLog, read
from laconic.tasks.base import Task
from laconic.workers import Simulated

# --- the program ----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a chunk of points gave.

    curves: train loss [P, S, T], NaN from the first bad round on · finite: [P, S], whether the
    weights still are · valid: metrics [P, S] on the "valid" split after the last round, where the
    task has one
    """

    curves: np.ndarray
    finite: np.ndarray
    valid: dict[str, np.ndarray]


class Sweep:
    """One family on one task, ready to run chunks of points, `setting.evaluate_every` rounds at a
    time.

    `compressor` is that of the workers' messages, the same for every point.
    """

    def __init__(self, task: Task, method: str, setting: Setting, compressor: Compressor = DENSE):
        self.definition = definition_of(method, "sweep")
        if self.definition.published is not None:
            self.definition.published.check_workers(setting.workers)
        if not isinstance(task.feed, Resident):
            raise LaconicError(
                f"{task.name} streams its data, but the points of a sweep share draws from "
                "resident data."
            )
        self.task, self.method, self.setting, self.compressor = (
            jax.device_put(task),
            method,
            setting,
            compressor,
        )
        self.plan, self._populations = None, {}
        if setting.federated.active:
            self.plan, found = settle(
                setting.federated, task, setting.workers, setting.batch, RUNS, setting.seeds
            )
            self._populations = {"population_S": jax.device_put(found)}
        self._start, self._look = jax.jit(self._init), jax.jit(self._seen)
        self._advance = jax.jit(self._segment, static_argnames="length")

    def _parts(self, task: Task, numbers: Any) -> tuple[Simulated, Server]:
        client, outer = self.definition.build(self.setting.workers, numbers)
        return Simulated(client(task), self.compressor), Server(
            outer, share_of_clients=1.0 if self.plan is None else self.plan.share
        )

    def _init(self, task: Task, numbers_P: Any, keys_S: jax.Array) -> RoundState:
        def one(key: jax.Array, numbers: Any) -> RoundState:
            clients = self.setting.workers if self.plan is None else self.plan.clients
            return init_round(task, *self._parts(task, numbers), clients, key)

        return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(keys_S, numbers_P)

    def _items(self, task: Any, state: RoundState, population: Population | None) -> Any:
        if self.plan is not None and population is not None:
            return draw_population(self.plan, population, state)
        return draw_items(
            task.feed, state, self.setting.workers, self.setting.local_steps, self.setting.batch
        )

    def _segment(
        self,
        task: Any,
        numbers_P: Any,
        state_SP: RoundState,
        length: int,
        population_S: Population | None = None,
    ) -> tuple[RoundState, jax.Array]:
        def one_point(
            numbers: Any, state: RoundState, items_C: Any
        ) -> tuple[RoundState, jax.Array]:
            workers, server = self._parts(task, numbers)

            def one_round(state: RoundState, items: Any) -> tuple[RoundState, jax.Array]:
                state, losses_KH = communication_round(workers, server, state, items)
                return state, mean_loss(losses_KH, items.present)

            return jax.lax.scan(one_round, state, items_C)

        def one_seed(
            state_P: RoundState, population: Population | None
        ) -> tuple[RoundState, jax.Array]:
            now = state_P._replace(
                key=state_P.key[0], round=state_P.round[0]
            )  # the same for every point of a seed
            rounds_C = now.round + jnp.arange(length)
            items_C = jax.vmap(lambda r: self._items(task, now._replace(round=r), population))(
                rounds_C
            )
            return jax.vmap(one_point, in_axes=(0, 0, None))(numbers_P, state_P, items_C)

        return jax.vmap(one_seed)(state_SP, population_S)

    def _seen(self, task: Task, state_SP: RoundState) -> dict[str, jax.Array]:
        def one(state: RoundState) -> dict[str, jax.Array]:
            return {
                "finite": all_finite(state.shared),
                **heldout_metrics(task, state.shared, "valid"),
            }

        return jax.vmap(jax.vmap(one))(state_SP)

    def run(
        self, points: Sequence[Point], size: int, tick: Callable[[int, float], None] | None = None
    ) -> Outcome:
        """All rounds of at most `size` points; fewer are padded to `size` with copies of the last.

        `tick(rounds done, lowest loss)` is called after each segment and may raise to stop.
        """
        padded = [*points, *[points[-1]] * (size - len(points))]
        names = self.definition.named_in(points[0])
        numbers_P = {name: jnp.asarray([p[name] for p in padded], jnp.float32) for name in names}
        state = self._start(
            self.task, numbers_P, jnp.stack([jax.random.key(seed) for seed in self.setting.seeds])
        )
        segments, done = [], 0
        for length in self.setting.chunks:
            state, losses_SPC = self._advance(
                self.task, numbers_P, state, length=length, **self._populations
            )
            segments.append(np.asarray(losses_SPC)[:, : len(points)])
            done += length
            if tick is not None:
                tick(done, _lowest(segments[-1]))
        seen = {
            name: np.asarray(x).T[: len(points)] for name, x in self._look(self.task, state).items()
        }
        curves_PST = np.moveaxis(np.concatenate(segments, axis=2), 0, 1)
        bad = np.logical_or.accumulate(~np.isfinite(curves_PST), axis=2)
        return Outcome(np.where(bad, np.float32(np.nan), curves_PST), seen.pop("finite"), seen)


def _lowest(losses_SPC: np.ndarray) -> float:
    """The lowest last loss of any point, as a sign of life; NaN if no point has one."""
    last_P = losses_SPC[:, :, -1].astype(np.float64).mean(axis=0)
    finite = last_P[np.isfinite(last_P)]
    return float(finite.min()) if finite.size else math.nan


# --- into a folder --------------------------------------------------------------------------------


def chunks_of(points: int, at_once: int) -> list[range]:
    """As few chunks of at most `at_once` points as possible, all of one size but the last."""
    require_positive(points=points, points_at_once=at_once)
    size = -(-points // -(-points // at_once))
    return [range(start, min(start + size, points)) for start in range(0, points, size)]


def check_sweep(engine: Sweep, points: Sequence[Point], rule: Rule) -> None:
    """Refuse what cannot work before anything is computed."""
    if not points:
        raise LaconicError(f"the grid of {engine.method} has no points.")
    engine.definition.check_points(points)
    if rule.by == "valid" and "valid" not in engine.task.feed.splits:
        raise LaconicError(
            f"{engine.task.name} has no validation split to rank by; rank by {', '.join(RULES)}."
        )


def run_sweep(
    engine: Sweep,
    points: Sequence[Point],
    folder: Path,
    rule: Rule = Rule(),
    points_at_once: int = 44,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """Run every chunk that `folder` has not all the points of, then rank them → all records.

    The observer is told of rounds, of all chunks together. Stopped within a chunk, that chunk's
    points are computed anew when the sweep goes on, to the same bits. Chunks that do not fit in
    memory become smaller.
    """
    check_sweep(engine, points, rule)
    observer, at_once = observer or Silent(), len(chunks_of(len(points), points_at_once)[0])
    in_parts(
        partial(_run_chunks, engine, points, folder, rule, observer, stop),
        at_once,
        lambda fewer: observer.note(
            f"these points do not fit in the device's memory together; {fewer} at a time now."
        ),
        f"{engine.method} does not fit in the device's memory, even one point at a time. Use fewer "
        "seeds, smaller "
        "batches or fewer workers",
    )
    records = read(folder / RECORDS)
    if records[-1]["kind"] != "ranking":
        RunLog(folder / RECORDS).append("ranking", **_ranking(_points(folder), rule))
        records = read(folder / RECORDS)
    return records


def _run_chunks(
    engine: Sweep,
    points: Sequence[Point],
    folder: Path,
    rule: Rule,
    observer: Observer,
    stop: Callable[[], bool],
    points_at_once: int,
) -> None:
    """Run every chunk that is not on record."""
    log = RunLog(folder / RECORDS)
    chunks, T = chunks_of(len(points), points_at_once), engine.setting.rounds
    recorded = {record["index"] for record in _points(folder)}
    todo = [c for c, chunk in enumerate(chunks) if not recorded.issuperset(chunk)]
    passed, total = (len(chunks) - len(todo)) * T, len(chunks) * T
    if todo:
        observer.begin(engine.method, total, passed)

    def leave_if_asked() -> None:
        if stop():
            raise Interrupted(f"stopped with {len(recorded)} of {len(points)} points done.", folder)

    for c in todo:

        def tick(done: int, loss: float, passed: int = passed) -> None:
            observer.progress(engine.method, passed + done, loss)
            if done < T:  # the points of a whole chunk are written first
                leave_if_asked()

        began = time.monotonic()
        outcome = engine.run([points[i] for i in chunks[c]], len(chunks[0]), tick)
        seconds = round(time.monotonic() - began, 3)
        for p, i in enumerate(chunks[c]):
            if i not in recorded:  # some are, if a run died while it wrote this chunk
                log.append(
                    "point",
                    index=i,
                    **_record(engine, points[i], outcome, p, rule),
                    chunk=c,
                    seconds=seconds,
                )
        recorded.update(chunks[c])
        passed += T
        if passed < total:
            leave_if_asked()


def _points(folder: Path) -> list[Record]:
    return [record for record in read(folder / RECORDS) if record["kind"] == "point"]


def _record(engine: Sweep, point: Point, outcome: Outcome, p: int, rule: Rule) -> Record:
    numbers = {name: float(point[name]) for name in engine.definition.named_in(point)}
    valid = {name: value_PS[p] for name, value_PS in outcome.valid.items()}
    kept = point_record(outcome.curves[p], outcome.finite[p], valid, rule)
    label = engine.definition.spec(point, engine.compressor.name)
    return {"label": label, "numbers": numbers, "seeds": engine.setting.seeds, **kept}


def _ranking(points: Sequence[Record], rule: Rule) -> Record:
    order = ranked(points, rule.by)
    return {
        "by": rule.by,
        "target_loss": rule.target_loss,
        "best": order[0]["label"],
        "order": [point["index"] for point in order],
        "diverged": sum(any(point["diverged"]) for point in points),
        "seconds": round(
            sum(seconds for _, seconds in {(point["chunk"], point["seconds"]) for point in points}),
            3,
        ),
    }
