"""A grid of one method's hyper-parameters on one task, as one compiled program.

`vmap` over seeds and over a chunk of grid points, `scan` over rounds of `communication_round`.
Hyper-parameters are traced numbers and every chunk has the same shape (the last is padded), so the
whole grid compiles once. All points of a seed share its initial weights and minibatches, those
`laconic compare` would give it, and so one gather of the data.

Legend: P points of a chunk, S seeds, T rounds, C rounds of a segment, K workers, H local steps.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.compress import DENSE, Compressor
from laconic.data.feed import Resident
from laconic.errors import LaconicError
from laconic.federated.population import Population, draw_population
from laconic.means import RobustMean
from laconic.method import Method, Point, Setting, check_workers
from laconic.methods import parse_swept
from laconic.outer.base import told
from laconic.round import RoundState, Server, communication_round, draw_items, init_round, mean_loss
from laconic.runs.estimate import Program, Trial, compiled, seconds_of
from laconic.runs.measure import all_finite, heldout_metrics
from laconic.runs.simulate import check_control, keys_of, population_for
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
    """One method on one task, ready to run chunks of points; all points share the compressor and
    the mean."""

    def __init__(
        self,
        task: Task,
        method: str,
        setting: Setting,
        compressor: Compressor = DENSE,
        aggregate: RobustMean | None = None,
    ):
        self.definition = parse_swept(method)
        client, outer = self.definition.build(setting.workers, {})  # checks K
        if not isinstance(task.feed, Resident):
            raise LaconicError(
                f"{task.name} streams its data, but the points of a sweep share draws from "
                "resident data."
            )
        if setting.fragments.active:
            raise LaconicError(
                "a sweep's rounds exchange the whole model: leave fragments out, and compare the "
                "best points in fragments."
            )
        self.task = jax.device_put(task)
        self.method = method
        self.setting = setting
        self.compressor = compressor
        self.aggregate = aggregate
        default = Method(method, client, outer, compressor, aggregate=aggregate)
        check_workers(default, setting.workers)
        check_control(default, task)
        self.plan, self._population = population_for(task, default, setting)
        self._start = jax.jit(self._init)
        self._look = jax.jit(self._seen)
        self._advance = jax.jit(self._segment, static_argnames="length")

    def _parts(self, task: Task, numbers: Any) -> tuple[Simulated, Server]:
        client, outer = self.definition.build(self.setting.workers, numbers)
        H = self.setting.local_steps if self.plan is None else self.plan.local_steps
        outer = told(outer, self.setting.workers, H, self.setting.rounds)
        share = 1.0 if self.plan is None else self.plan.share
        workers = Simulated(client(task), self.compressor, self.aggregate)
        return workers, Server(outer, share_of_clients=share)

    def _init(self, task: Task, numbers_P: Any, keys_S: jax.Array) -> RoundState:
        def one(key: jax.Array, numbers: Any) -> RoundState:
            clients = self.setting.workers if self.plan is None else self.plan.clients
            return init_round(task, *self._parts(task, numbers), clients, key)

        return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(keys_S, numbers_P)

    def _items(self, task: Any, state: RoundState, population: Population | None) -> Any:
        if self.plan is not None and population is not None:
            return draw_population(self.plan, population, state)
        sizes = (self.setting.workers, self.setting.local_steps, self.setting.batch)
        return draw_items(task.feed, state, *sizes)

    def _segment(
        self,
        task: Any,
        numbers_P: Any,
        state_SP: RoundState,
        population_S: Population | None,
        length: int,
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
            # key and round are the same for every point of a seed
            now = state_P._replace(key=state_P.key[0], round=state_P.round[0])
            rounds_C = now.round + jnp.arange(length)
            draw = lambda r: self._items(task, now._replace(round=r), population)
            items_C = jax.vmap(draw)(rounds_C)
            return jax.vmap(one_point, in_axes=(0, 0, None))(numbers_P, state_P, items_C)

        return jax.vmap(one_seed)(state_SP, population_S)

    def _seen(self, task: Task, state_SP: RoundState) -> dict[str, jax.Array]:
        def one(state: RoundState) -> dict[str, jax.Array]:
            valid = heldout_metrics(task, state.shared, "valid")
            return {"finite": all_finite(state.shared), **valid}

        return jax.vmap(jax.vmap(one))(state_SP)

    def run(
        self,
        points: Sequence[Point],
        size: int,
        tick: Callable[[int, float], None] | None = None,
        ready: Callable[[Program, Trial], None] | None = None,
    ) -> Outcome:
        """All rounds of at most `size` points; fewer are padded to `size` with copies of the last.

        `tick(rounds done, lowest loss)` is called after each segment and may raise to stop. `ready`
        is called before the first with the compiled program, and with a function that tries one
        round and gives its seconds.
        """
        padded = [*points, *[points[-1]] * (size - len(points))]
        names = self.definition.named_in(points[0])
        numbers_P = {name: jnp.asarray([p[name] for p in padded], jnp.float32) for name in names}
        state = self._start(self.task, numbers_P, keys_of(self.setting.seeds))
        segments = []
        done = 0
        for length in self.setting.chunks:
            given = (self.task, numbers_P, state, self._population)
            if ready is not None:
                program = compiled(self._advance, *given, length=length)
                ready(program, partial(self._trial, given))
                ready = None
            state, losses_SPC = self._advance(*given, length=length)
            segments.append(np.asarray(losses_SPC)[:, : len(points)])
            done += length
            if tick is not None:
                tick(done, _lowest(segments[-1]))
        looked = self._look(self.task, state)
        seen = {name: np.asarray(x).T[: len(points)] for name, x in looked.items()}
        curves_PST = np.moveaxis(np.concatenate(segments, axis=2), 0, 1)
        bad = np.logical_or.accumulate(~np.isfinite(curves_PST), axis=2)
        return Outcome(np.where(bad, np.float32(np.nan), curves_PST), seen.pop("finite"), seen)

    def _trial(self, given: tuple[Any, ...]) -> tuple[float, float]:
        """Compile and try one round, nothing of which is kept → its seconds, none for a look."""
        compiled(self._advance, *given, length=1)
        return seconds_of(self._advance, *given, length=1), 0.0


def _lowest(losses_SPC: np.ndarray) -> float:
    """The lowest last loss of any point, as a sign of life; NaN if no point has one."""
    last_P = losses_SPC[:, :, -1].astype(np.float64).mean(axis=0)
    finite = last_P[np.isfinite(last_P)]
    return float(finite.min()) if finite.size else math.nan


# --- grids as text --------------------------------------------------------------------------------


def parse_grid(texts: Sequence[str]) -> list[Point]:
    """All points of a grid given as `name=value,value` each; a value may be divided by an earlier
    name: `0.5/gamma`."""
    columns: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise LaconicError(f"the grid's {text!r} gives no values; write name=value,value.")
        if name in columns:
            raise LaconicError(f"the grid gives {name} twice; put all its values in one list.")
        columns[name] = values.split(",")
    if not columns:
        raise LaconicError(
            "the grid is empty; give every hyper-parameter its values, as name=value,value."
        )
    return [
        _point(dict(zip(columns, chosen, strict=True)))
        for chosen in itertools.product(*columns.values())
    ]


def _point(chosen: dict[str, str]) -> Point:
    point: Point = {}
    for name, text in chosen.items():
        value, slash, divisor = text.partition("/")
        if slash and divisor not in point:
            raise LaconicError(
                f"{name}={text}: {divisor!r} is not a hyper-parameter given before {name}."
            )
        try:
            point[name] = float(value) / (point[divisor] if slash else 1.0)
        except (ValueError, ZeroDivisionError):
            raise LaconicError(f"{name} must be a number or number/name, got {text!r}.") from None
    return point


def without_repeats(points: Sequence[Point]) -> list[Point]:
    """The points, each at its first place only."""
    return [point for i, point in enumerate(points) if point not in points[:i]]
