"""The trainer: one jitted outer step over all tasks, and the judge that says how good a φ is on
seeds never trained on.

An outer step estimates a gradient for each task, clips each to norm `clip` so that no task shouts
the others down, takes the mean, and makes one AdamW step (warm-up, then cosine decay). Groups of
runs may be spread over the devices of a mesh; each device estimates from its own, and the gradient,
a few thousand numbers, is averaged over devices.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from laconic.errors import LaconicError, require_counts, require_positive, unknown
from laconic.federated.population import Bank
from laconic.meta.backprop import backprop
from laconic.meta.estimator import GradientEstimator, Horizon, Metrics, restricted
from laconic.meta.pes import es, nres, pes
from laconic.meta.problem import (
    Inner,
    InnerProblem,
    Learned,
    capped,
    check_fits,
    training_problem,
)
from laconic.meta.shifts import LEAST_SHIFT, check_watchable, shifts, watched_problem
from laconic.meta.varied import varied_problem
from laconic.outer.learned import Theta
from laconic.tasks.base import Task


class Estimator(NamedTuple):
    """`make(problem, pairs=, truncation=, sigma=, horizon=, reset_diverged=)`, and one line for
    people; `heads`: the problem is `Watchable`."""

    make: Callable[..., GradientEstimator]
    summary: str
    heads: bool = False


ESTIMATORS: dict[str, Estimator] = {
    "pes": Estimator(pes, "persistent evolution strategies: unbiased over truncations"),
    "es": Estimator(
        es, "evolution strategies on each truncation alone: less variance, short-sighted"
    ),
    "nres": Estimator(
        nres, "evolution strategies with one perturbation for a whole run: unbiased, smooth losses"
    ),
    "shifts": Estimator(
        shifts,
        "evolution strategies on what lopt-r's head decides, not on its weights: little variance",
        heads=True,
    ),
    "backprop": Estimator(
        backprop, "backpropagation through each truncation: exact within it, much memory"
    ),
}


AXIS = "groups"


def group_mesh(devices: int | None = None) -> Mesh:
    """A mesh along the axis of groups: so many devices (default: all), the same number of each
    process."""
    processes, found = jax.process_count(), jax.devices()
    count = len(found) if devices is None else devices
    if not 1 <= count <= len(found):
        raise LaconicError(
            f"a mesh of {count} devices cannot be made of the {len(found)} there are."
        )
    share = [
        [d for d in found if d.process_index == i][: count // processes] for i in range(processes)
    ]
    chosen = [device for part in share for device in part]
    if len(chosen) != count:
        raise LaconicError(
            f"{processes} processes cannot give the same number of their devices to a mesh of "
            f"{count}: choose another "
            f"multiple of {processes} (--devices counts those of all processes)."
        )
    return jax.make_mesh((count,), (AXIS,), axis_types=(AxisType.Auto,), devices=chosen)


def put(tree: Any, shardings: Any) -> Any:
    """`jax.device_put` that reaches the devices of other processes too; every process gives the
    same whole tree."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    return jax.tree.map(
        lambda sharding, part: jax.tree.map(partial(_put_leaf, sharding), part), shardings, tree
    )


def _put_leaf(sharding: NamedSharding, x: Any) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _put_leaf(sharding, jax.random.key_data(x)), impl=jax.random.key_impl(x)
        )
    array = np.asarray(x)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


Data = tuple[Task, Bank | None]  # a task, and partitions of its data if it has a population
AllData = tuple[tuple[Task, ...], tuple[Bank | None, ...]]
Call = tuple[Any, tuple[Any, ...]]  # a jitted function and its arguments
JUDGED_SEEDS = 1 << 30  # seeds from here on are the judge's; people's seeds are small numbers


@dataclass(frozen=True)
class Outer:
    """How φ is trained; the meta-training recipes hold the paper's numbers and better ones.

    Args:
        steps: outer steps.
        estimator: "pes", "es", "nres", "shifts" or "backprop".
        pairs: antithetic pairs of perturbed runs, or runs for backprop.
        truncation: rounds unrolled in an outer step.
        sigma: the standard deviation of perturbations; of shifts, in units of their own.
        horizon: how long inner runs are.
        reset_diverged: whether diverged runs, at the ceiling of the loss, start anew.
        peak: AdamW's learning rate after the warm-up.
        last: its learning rate at the end of the cosine.
        warmup: outer steps of linear warm-up.
        weight_decay: AdamW's.
        clip: the norm that each task's meta-gradient is clipped to (0: off).
        average: decay of the exponential average of φ that is judged beside φ itself (0: off).
        outlying: pairs whose losses differ by more than so many medians of all pairs' differences
            count as that many (0: off).
        trained: the tensors of φ that are trained; none named: all.

    Example:
        >>> from laconic import Outer
        >>> Outer(steps=1000, pairs=4, truncation=20).estimator
        'pes'
    """

    steps: int = 5000
    estimator: str = "pes"
    pairs: int = 8
    truncation: int = 50
    sigma: float = 0.01
    horizon: Horizon = field(default_factory=Horizon)
    reset_diverged: bool = True
    peak: float = 3e-3
    last: float = 1e-4
    warmup: int = 100
    weight_decay: float = 1e-4
    clip: float = 1.0
    average: float = 0.0
    outlying: float = 0.0
    trained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(
            steps=self.steps, pairs=self.pairs, truncation=self.truncation, sigma=self.sigma
        )
        require_positive(peak=self.peak, last=self.last)
        require_counts(steps=self.steps, pairs=self.pairs, longest=self.horizon.longest)
        self.horizon.check_truncation(self.truncation)
        if self.estimator not in ESTIMATORS:
            raise unknown("estimator", self.estimator, ESTIMATORS)
        if not 0 <= self.average < 1:
            raise LaconicError(
                f"average is the decay of φ's running mean, in [0, 1); got {self.average}."
            )
        limits = (self.clip, self.weight_decay, self.warmup, self.outlying)
        if not all(0 <= x < math.inf for x in limits):
            raise LaconicError(
                "clip, weight_decay, warmup and outlying must be finite and not negative."
            )
        if self.estimator == "backprop" and (self.outlying or self.trained):
            raise LaconicError("outlying and trained are for estimators with perturbations.")
        if self.estimator == "shifts" and self.trained:
            raise LaconicError("shifts perturbs no tensor of φ: leave trained out.")
        if self.estimator == "shifts" and self.sigma < LEAST_SHIFT:
            raise LaconicError(
                f"the sigma of shifts is in units of its own, 1 or so and at least {LEAST_SHIFT}; "
                f"got {self.sigma:g}, of which losses would show little but rounding."
            )

    def adamw(self) -> optax.GradientTransformation:
        """AdamW with linear warm-up from 3e-10 and cosine decay to `last`."""
        warmup = min(self.warmup, self.steps - 1)
        schedule = optax.warmup_cosine_decay_schedule(
            3e-10, self.peak, warmup, self.steps, self.last
        )
        return optax.adamw(schedule, weight_decay=self.weight_decay)


class MetaState(NamedTuple):
    """All that meta-training carries from outer step to outer step; `key` never changes."""

    theta: Theta
    average: Theta
    adamw: Any
    estimators: tuple[Any, ...]
    step: jax.Array
    key: jax.Array


class Progress(NamedTuple):
    """What an outer step showed: mean loss [tasks], the gradients' norms before clipping [tasks],
    runs begun anew."""

    loss: jax.Array
    norm: jax.Array
    resets: jax.Array


class MetaTrainer:
    """Meta-trains one learned optimizer on one or several tasks.

    Args:
        tasks: the tasks themselves.
        learned: the architecture.
        inners: each task's setting.
        outer: how φ is trained.
        mesh: devices to spread the pairs over; None: one device.
        judged: tasks and settings to judge φ on; None: those it is trained on.

    Example::

        inner = Inner("digits-mlp", workers=2, local_steps=2, batch=8)
        outer = Outer(steps=2, pairs=1, truncation=2, horizon=Horizon(2, 4))
        learned = LearnedOptimizer("lopt-a")
        trainer = MetaTrainer([make_task("digits-mlp")], learned, [inner], outer)
        state = trainer.start(seed=0)
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        learned: Learned,
        inners: Sequence[Inner],
        outer: Outer,
        mesh: Mesh | None = None,
        judged: tuple[Sequence[Task], Sequence[Inner]] | None = None,
    ):
        judged_tasks, judged_inners = judged or (tasks, inners)
        for task, inner in zip((*tasks, *judged_tasks), (*inners, *judged_inners), strict=True):
            check_fits(task, learned, inner)
        if ESTIMATORS[outer.estimator].heads:
            check_watchable(learned, tuple(inners))
        if mesh is not None and outer.pairs % mesh.size:
            raise LaconicError(
                f"{outer.pairs} pairs do not divide over {mesh.size} devices; choose a multiple."
            )
        self.learned, self.outer, self.mesh = learned, outer, mesh
        self._adamw = outer.adamw()
        self._data, self.inners = self._settled(tasks, inners)
        self._judged = (self._data, self.inners) if judged is None else self._settled(*judged)
        self.tasks = self._data[0]
        # Families are many and each compiles for long: apart, they compile at the same time.
        self._apart = mesh is None and all(x.spread for x in (*self.inners, *self._judged[1]))
        whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._start = jax.jit(self._init, out_shardings=self._shardings())
        self._advance = jax.jit(
            self._outer_step, donate_argnums=1, out_shardings=(self._shardings(), whole)
        )
        self._judge = jax.jit(
            self._curves, static_argnames=("seeds", "rounds"), out_shardings=whole
        )
        self._families = [self._family(i) for i in range(len(self.inners))]
        self._judges = [self._judging(inner) for inner in self._judged[1]]
        self._finish = jax.jit(self._combine, donate_argnums=0)
        self._untrained: list[np.ndarray] | None = None
        self._ready: set[tuple[int, int]] = set()  # what the judge's programs are compiled for
        self._collect = jax.jit(lambda state: state, out_shardings=whole)

    @property
    def rounds_per_step(self) -> int:
        """Communication rounds unrolled in an outer step, over all tasks."""
        signs = 1 if self.outer.estimator == "backprop" else 2
        return len(self.inners) * signs * self.outer.pairs * self.outer.truncation

    def start(self, seed: int, theta: Theta | None = None) -> MetaState:
        """The state before the first outer step; φ is drawn from the seed unless given."""
        key = jax.random.key(seed)
        given = self.learned.init(jax.random.fold_in(key, 0)) if theta is None else theta
        self.learned.check(given)
        for name in self.outer.trained:
            if name not in given:
                raise unknown("tensor of φ", name, given)
        first, key = self._everywhere((given, key))
        if not self._apart:
            return self._start(self._data, first, key)
        rows = zip(self._families, zip(*self._data, strict=True), strict=True)
        begin: list[Call] = [(family.begin, (own, first, key)) for family, own in rows]
        compile_all(begin)
        states = tuple(start(*given) for start, given in begin)
        adamw, key = self._adamw.init(first), jax.random.fold_in(key, 2)
        state = MetaState(first, first, adamw, (), jnp.int32(0), key)
        # Each in memory of its own, so that a step can use the state up.
        return jax.tree.map(jnp.copy, state)._replace(estimators=states)

    def place(self, state: MetaState) -> MetaState:
        """A state read from a file, where this trainer keeps its own."""
        return state if self.mesh is None else put(state, self._shardings())

    def collect(self, state: MetaState) -> MetaState:
        """The whole state where this process can read it; of several processes all must ask for it
        together."""
        if jax.process_count() == 1:
            return state
        return jax.tree.map(lambda x: x.addressable_data(0), self._collect(state))

    def advance(self, state: MetaState) -> tuple[MetaState, Progress]:
        """One outer step. The given state is used up."""
        if not self._apart:
            return self._advance(self._data, state)
        found = [estimate(*given) for estimate, given in self._estimates(state)]
        gradients, runs, metrics = zip(*found, strict=True)
        state, progress = self._finish(state._replace(estimators=()), gradients, metrics)
        return state._replace(estimators=runs), progress

    def programs(self, state: MetaState) -> list[Call]:
        """The jitted functions of an outer step and their arguments, to compile them before it is
        taken."""
        return self._estimates(state) if self._apart else [(self._advance, (self._data, state))]

    def _estimates(self, state: MetaState) -> list[Call]:
        rows = zip(self._families, zip(*self._data, strict=True), state.estimators, strict=True)
        return [
            (family.estimate, (own, state.theta, runs, state.key, state.step))
            for family, own, runs in rows
        ]

    def judge(self, theta: Theta, seeds: int = 4, rounds: int | None = None) -> list[np.ndarray]:
        """Capped loss curves [seeds, rounds] on each task to judge on, from seeds that neither
        training nor people use."""
        rounds = rounds or self.outer.horizon.longest
        if self._apart:
            rows = zip(self._judges, zip(*self._judged[0], strict=True), strict=True)
            calls = [(judge, (own, theta)) for judge, own in rows]
            if (seeds, rounds) not in self._ready:
                compile_all(calls, seeds=seeds, rounds=rounds)
                self._ready.add((seeds, rounds))
            return [np.asarray(judge(*given, seeds=seeds, rounds=rounds)) for judge, given in calls]
        return [
            np.asarray(curves)
            for curves in self._judge(self._judged[0], theta, seeds=seeds, rounds=rounds)
        ]

    def score(self, curves: Sequence[np.ndarray]) -> float:
        """How bad the φ of these curves is, see `score`. Where settings are drawn the losses are
        logarithms, and each task has its mean difference from those of the untrained φ. The score
        is the worst of these while one is above 0, and their mean once none is: a φ that is never
        behind the untrained one comes before all others."""
        if not any(inner.spread for inner in self._judged[1]):
            return score(curves, self._judged[0][0], self.outer.horizon)
        if self._untrained is None:
            untrained = self._everywhere(self.learned.init(jax.random.key(0)))
            self._untrained = self.judge(untrained, *curves[0].shape)
        each = [float(np.mean(a - b)) for a, b in zip(curves, self._untrained, strict=True)]
        return max(each) if max(each) > 0 else float(np.mean(each))

    def _settled(
        self, tasks: Sequence[Task], inners: Sequence[Inner]
    ) -> tuple[AllData, tuple[Inner, ...]]:
        """Tasks and their partitions on the devices, and their settings."""
        banks = [inner.bank(task) for task, inner in zip(tasks, inners, strict=True)]
        found = tuple(settled(inner, bank) for inner, bank in zip(inners, banks, strict=True))
        return (self._everywhere(tuple(tasks)), self._everywhere(tuple(banks))), found

    def _problem(self, data: Data, inner: Inner) -> InnerProblem:
        if inner.spread:
            return varied_problem(data[0], self.learned, inner)
        return training_problem(data[0], self.learned, inner, data[1])

    def _everywhere(self, tree: Any) -> Any:
        return (
            jax.device_put(tree)
            if self.mesh is None
            else put(tree, NamedSharding(self.mesh, PartitionSpec()))
        )

    def _shardings(self) -> Any:
        """Estimator states are split over groups, all else is the same everywhere."""
        if self.mesh is None:
            return None
        whole: Any = NamedSharding(self.mesh, PartitionSpec())
        split = NamedSharding(self.mesh, PartitionSpec(AXIS))
        return MetaState(whole, whole, whole, (split,) * len(self.inners), whole, whole)

    def _estimator(self, data: Data, inner: Inner) -> GradientEstimator:
        o = self.outer
        more: dict[str, Any] = {"outlying": o.outlying} if o.outlying else {}
        more |= {"only": o.trained} if o.trained else {}
        make, _, heads = ESTIMATORS[o.estimator]
        own: Any = self.learned
        return make(
            watched_problem(data[0], own, inner) if heads else self._problem(data, inner),
            pairs=o.pairs,
            truncation=o.truncation,
            sigma=o.sigma,
            horizon=o.horizon,
            reset_diverged=o.reset_diverged,
            **more,
        )

    def _init(self, data: AllData, theta: Theta, key: jax.Array) -> MetaState:
        rows = enumerate(zip(*data, strict=True))
        states = tuple(self._begin(i, own, theta, key) for i, own in rows)
        return MetaState(
            theta, theta, self._adamw.init(theta), states, jnp.int32(0), jax.random.fold_in(key, 2)
        )

    def _begin(self, i: int, own: Data, theta: Theta, key: jax.Array) -> Any:
        """The runs of the i-th task before the first outer step."""
        keys = jax.random.split(jax.random.fold_in(key, 1), len(self.inners))
        return self._estimator(own, self.inners[i]).init(theta, keys[i])

    def _family(self, i: int) -> "Family":
        """The programs of the i-th task, where each has programs of its own."""

        def estimate(own: Data, theta: Theta, runs: Any, key: jax.Array, step: jax.Array) -> Any:
            keys = jax.random.split(jax.random.fold_in(key, step), len(self.inners))
            return self._gradient(own, self.inners[i], theta, runs, keys[i])

        begin = partial(self._begin, i)
        return Family(jax.jit(begin), jax.jit(estimate, donate_argnums=2))

    def _outer_step(self, data: AllData, state: MetaState) -> tuple[MetaState, Progress]:
        keys = jax.random.split(jax.random.fold_in(state.key, state.step), len(self.inners))
        rows = zip(zip(*data, strict=True), self.inners, state.estimators, keys, strict=True)
        found = [
            self._gradient(own, inner, state.theta, runs, key) for own, inner, runs, key in rows
        ]
        gradients, states, metrics = zip(*found, strict=True)
        state, progress = self._combine(state, gradients, metrics)
        return state._replace(estimators=states), progress

    def _combine(
        self, state: MetaState, gradients: tuple[Theta, ...], metrics: tuple[Metrics, ...]
    ) -> tuple[MetaState, Progress]:
        """The step of φ by every task's gradient; the tasks' runs are left as they are."""
        norms = jnp.stack([optax.tree.norm(g) for g in gradients])
        gradient = jax.tree.map(lambda *g: sum(g) / len(g), *map(self._clipped, gradients, norms))
        updates, adamw = self._adamw.update(gradient, state.adamw, state.theta)
        updates = restricted(updates, self.outer.trained)
        theta: Any = optax.apply_updates(state.theta, updates)
        keep = self.outer.average
        average = jax.tree.map(lambda a, t: keep * a + (1 - keep) * t, state.average, theta)
        resets = jnp.sum(jnp.stack([jnp.sum(m.reset) for m in metrics]))
        progress = Progress(jnp.stack([jnp.mean(m.loss) for m in metrics]), norms, resets)
        stepped = MetaState(theta, average, adamw, state.estimators, state.step + 1, state.key)
        return stepped, progress

    def _gradient(
        self, data: Data, inner: Inner, theta: Theta, state: Any, key: jax.Array
    ) -> tuple[Theta, Any, Metrics]:
        """One task's estimate; with a mesh each device makes it from its own groups, and the
        gradient is averaged."""
        if self.mesh is None:
            return self._estimator(data, inner).estimate(theta, state, key)

        def local(
            data: Data, theta: Theta, state: Any, key: jax.Array
        ) -> tuple[Theta, Any, Metrics]:
            gradient, state, metrics = self._estimator(data, inner).estimate(theta, state, key)
            return jax.lax.pmean(gradient, AXIS), state, metrics

        split, whole = PartitionSpec(AXIS), PartitionSpec()
        # With the check on, a gradient with respect to φ would arrive summed over devices instead
        # of each its own.
        run = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(whole, whole, split, whole),
            out_specs=(whole, split, split),
            check_vma=False,
        )
        return run(data, theta, state, key)

    def _clipped(self, gradient: Theta, norm: jax.Array) -> Theta:
        """At most `clip` long; a gradient that is not finite teaches nothing."""
        factor = (
            jnp.minimum(1.0, self.outer.clip / jnp.maximum(norm, 1e-30)) if self.outer.clip else 1.0
        )
        return jax.tree.map(lambda g: jnp.where(jnp.isfinite(norm), g * factor, 0), gradient)

    def _curves(self, data: AllData, theta: Theta, seeds: int, rounds: int) -> list[jax.Array]:
        rows = zip(zip(*data, strict=True), self._judged[1], strict=True)
        return [self._curves_of(inner, own, theta, seeds, rounds) for own, inner in rows]

    def _judging(self, inner: Inner) -> Any:
        """What judges φ on one task, where each has a program of its own."""
        return jax.jit(partial(self._curves_of, inner), static_argnames=("seeds", "rounds"))

    def _curves_of(
        self, inner: Inner, own: Data, theta: Theta, seeds: int, rounds: int
    ) -> jax.Array:
        problem = self._problem(own, inner)

        def run(seed: jax.Array) -> jax.Array:
            run = problem.begin(theta, jax.random.key(seed))
            run = problem.lasting(run, jnp.int32(rounds))
            _, losses_T = problem.unroll(theta, run, problem.draw(run, rounds))
            return capped(losses_T, problem.ceiling)

        return jax.vmap(run)(JUDGED_SEEDS + jnp.arange(seeds))


class Family(NamedTuple):
    """The compiled programs of one task: its runs before the first step, and its gradient."""

    begin: Any
    estimate: Any


def compile_all(calls: Sequence[Call], **static: Any) -> list[Any]:
    """Compile jitted functions for these arguments, at the same time; calls of theirs find what
    was compiled. Tracing stays in this thread, where its settings are."""
    lowered = [function.lower(*given, **static) for function, given in calls]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda each: each.compile(), lowered))


def settled(inner: Inner, bank: Bank | None) -> Inner:
    """The setting with the H that a population's data decides."""
    return inner if bank is None else replace(inner, local_steps=bank.plan.local_steps)


def score(curves: Sequence[np.ndarray], tasks: Sequence[Task], horizon: Horizon) -> float:
    """How bad φ is: the mean loss up to a horizon, over log-spaced horizons and over tasks, in
    units of ln classes.

    It is the meta-loss on the judge's seeds: early rounds count most, and a late divergence still
    shows.
    """
    ends = np.unique(np.geomspace(horizon.shortest, horizon.longest, 4).round().astype(int))
    units = [math.log(task.classes) if task.classes else 1.0 for task in tasks]
    means = [
        [c[:, :end].mean() / unit for end in ends] for c, unit in zip(curves, units, strict=True)
    ]
    return float(np.mean(means))
