"""The simulator: one method on one task with K workers, `vmap` over seeds and `scan` over rounds.

One jit serves a chunk of rounds. All state is handed out between chunks, so that a person sees
progress and a run can stop there, and the same chunk from the same state gives the same bits.

Legend: S seeds, C rounds of a chunk, K workers, H local steps, B examples.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from laconic.client import Controlled, Shared, gradient_client
from laconic.compress import tree_bits
from laconic.data.feed import Streamed
from laconic.errors import CannotBegin, LaconicError
from laconic.federated.population import (
    RUNS,
    Plan,
    Population,
    check_rows,
    draw_population,
    plan_for,
    settle,
)
from laconic.fragments import fragment_bits, fragmented_round, init_fragments
from laconic.method import Method, Setting, check_workers
from laconic.round import (
    Items,
    RoundState,
    Server,
    communication_round,
    draw_items,
    draw_present,
    init_round,
    mean_losses,
    worker_keys,
)
from laconic.runs.early import look
from laconic.runs.estimate import (
    Program,
    TooLarge,
    Trial,
    compiled,
    operations,
    seconds_of,
    step_operations,
)
from laconic.runs.measure import (
    all_finite,
    broken_metric,
    check_fresh_statistics,
    heldout_metrics,
    one_item,
    with_fresh_statistics,
)
from laconic.show.timing import (
    Traffic,
    all_gather_traffic,
    ring_all_reduce_traffic,
    server_traffic,
)
from laconic.tasks.base import Task
from laconic.workers import Meshed, Simulated, Workers, check_divides, check_robust

STATISTICS = (1 << 20) + 2  # the stream of minibatches for statistics; workers' ids are smaller
TOPOLOGIES = ("server", "all-gather", "ring")


class Chunk(NamedTuple):
    """What some rounds gave.

    done: rounds so far · losses: [S, C, K], means of the H local ones · finite: [S], whether the
    weights still are · heldout: metrics [S] on the test split
    """

    done: int
    losses: np.ndarray
    finite: np.ndarray
    heldout: dict[str, np.ndarray]
    state: RoundState


class Diverged(LaconicError):
    """A loss or metric became NaN or infinite; `before` is the state the bad chunk began from,
    `done` its rounds, `advice` what to do."""

    def __init__(self, message: str, before: RoundState, done: int, advice: str):
        super().__init__(message)
        self.before = before
        self.done = done
        self.advice = advice


class Simulation:
    """One method on one task, ready to run; its state has a leading axis for seeds.

    Args:
        task: what is trained.
        method: how, as `parse_method` or `local_method` give it.
        setting: K, H, B, rounds and seeds.
        mesh: spreads the workers over its devices; without one they share the default device.
        population: who has which data, leaves [S, …], in place of one drawn by
            `setting.federated`.

    Example::

        simulation = Simulation(make_task("digits-mlp"), parse_method("slowmo", 4), Setting(4))
        for chunk in simulation.run(simulation.start()):
            print(chunk.done, chunk.losses.mean(), chunk.heldout["accuracy"])
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        setting: Setting,
        mesh: Mesh | None = None,
        population: Population | None = None,
    ):
        self.K, self.H = method.budget(setting.workers, setting.local_steps)
        self.plan, self._population = population_for(task, method, setting, population)
        if self.plan is not None:
            self.H = self.plan.local_steps
        check_workers(method, self.K)
        check_control(method, task)
        if setting.missing >= self.K:
            raise LaconicError(
                f"{method.label} trains on {self.K} worker, so {setting.missing} cannot be "
                "missing: leave it out."
            )
        if setting.fragments.active and method.budget(setting.workers, 1) != (setting.workers, 1):
            raise LaconicError(
                f"{method.label} works on all data in one place, so it exchanges no fragments: "
                "leave it out."
            )
        self._peers = method.client(task).peers
        if self._peers is not None and self._peers.instead:
            check_apart(method, setting)
        if setting.fresh_statistics:
            check_fresh_statistics(task)
        self.task = jax.device_put(task)
        self.method = method.told(self.K, self.H, setting.rounds)
        self.setting = setting
        self._mesh = None if self.K == 1 else mesh  # one worker lives on one device
        if self._mesh is not None:
            check_divides(self.K, self._mesh)
        self._start = jax.jit(self._init)
        self._advance = jax.jit(self._chunk, static_argnames="length")
        self._stream: Generator[Any, None, None] | None = None
        if setting.fragments.active:  # what cannot be cut is refused before anything is computed
            jax.eval_shape(self._init, self.task, keys_of(setting.seeds[:1]))

    def _parts(self, task: Task) -> tuple[Workers, Server]:
        client = self.method.client(task)
        if self._mesh is None:
            workers: Workers = Simulated(client, self.method.compressor, self.method.aggregate)
        else:
            parts = (self.method.compressor, self._mesh, self.method.aggregate)
            workers = Meshed(client, *parts)
        share = 1.0 if self.plan is None else self.plan.share
        return workers, Server(self.method.outer, share_of_clients=share)

    def _init(self, task: Task, keys_S: jax.Array) -> RoundState:
        workers, server = self._parts(task)
        clients = self.K if self.plan is None else self.plan.clients
        fragments = self.setting.fragments

        def one(key: jax.Array) -> RoundState:
            if fragments.active:
                return init_fragments(task, workers, server, fragments, clients, key)
            return init_round(task, workers, server, clients, key)

        return jax.vmap(one)(keys_S)

    def start(self) -> RoundState:
        """The state before the first round, one for each seed."""
        return self._start(self.task, keys_of(self.setting.seeds))

    def _chunk(
        self,
        task: Task,
        state: RoundState,
        streamed: Any,
        population: Population | None,
        length: int,
    ) -> tuple[RoundState, jax.Array, Any]:
        workers, server = self._parts(task)
        fragments = self.setting.fragments
        whole_round = communication_round
        if fragments.active:
            whole_round = lambda *given: fragmented_round(*given, fragments=fragments)

        def items_of(state: RoundState, batches: Any, population: Population | None) -> Items:
            if self.plan is not None and population is not None:
                return draw_population(self.plan, population, state)
            if isinstance(task.feed, Streamed):
                items = Items(batches, worker_keys(state, jnp.arange(self.K)))
            else:
                items = draw_items(task.feed, state, self.K, self.H, self.setting.batch)
            if self.setting.missing:
                items = items._replace(present=draw_present(state, self.K, self.setting.missing))
            return items

        def one_round(state: RoundState, items: Items) -> tuple[RoundState, jax.Array]:
            state, losses_KH = whole_round(workers, server, state, items)
            return state, mean_losses(losses_KH, items.present)

        def one_seed(
            state: RoundState, streamed: Any, own: Population | None
        ) -> tuple[RoundState, jax.Array, Any]:
            # Draw the items of all rounds at once: many small draws inside the scan are slow.
            rounds_C = state.round + jnp.arange(length)
            items_C = jax.vmap(lambda r, batches: items_of(state._replace(round=r), batches, own))(
                rounds_C, streamed
            )
            state, losses_CK = jax.lax.scan(one_round, state, items_C)
            metrics = heldout_metrics if self.setting.patience is None else look
            seen = {"finite": all_finite(state.shared), **metrics(task, self._seen(task, state))}
            return state, losses_CK, seen

        each = over_seeds(one_seed, len(self.setting.seeds), self.setting.seeds_at_once)
        return each(state, streamed, population)

    def _seen(self, task: Task, state: RoundState) -> Shared:
        """The model that is looked at."""
        count = self.setting.fresh_statistics
        if not count:
            return state.shared
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), STATISTICS)
        return with_fresh_statistics(task, state.shared, key, count, self.setting.batch)

    def _take_stream(self, done: int, length: int) -> Any:
        """The next `length` rounds of a stream for every seed, [S, length, K, H, B, …]; None for
        resident data."""
        feed = self.task.feed
        seeds = len(self.setting.seeds)
        if not isinstance(feed, Streamed):
            return None
        if self._stream is None:
            self._stream = feed.rounds(seeds * self.K, self.H, skip=done)
        rounds = [r for _, r in zip(range(length), self._stream, strict=False)]
        if len(rounds) < length:
            raise LaconicError(
                f"the stream of {self.task.name!r} ended after {done + len(rounds)} of "
                f"{self.setting.rounds} rounds; each takes {seeds * self.K * self.H} batches. Ask "
                "for fewer rounds or let the stream repeat its data."
            )
        B = jax.tree.leaves(rounds[0])[0].shape[2]
        if self.setting.batch != B:
            raise LaconicError(
                f"the stream's batches have {B} examples, but the setting says "
                f"{self.setting.batch}."
            )
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *rounds)
        return jax.tree.map(
            lambda x: jnp.moveaxis(x.reshape(length, seeds, self.K, *x.shape[2:]), 1, 0), stacked
        )

    def run(
        self,
        state: RoundState,
        done: int = 0,
        keep_going: bool = False,
        ready: Callable[[Program, Trial], None] | None = None,
    ) -> Iterator[Chunk]:
        """From `state` after `done` rounds to the end, one `Chunk` at a time.

        Raises `Diverged` at the first non-finite loss unless told to keep going. Close the iterator
        to stop early. `ready` is called before the first chunk with the compiled program, and with
        a function that tries one round and gives its seconds.
        """
        try:
            for length in _remaining(self.setting.chunks, done):
                given = (self.task, state, self._take_stream(done, length), self._population)
                if ready is not None:
                    program = compiled(self._advance, *given, length=length)
                    ready(program, partial(self._trial, given))
                    ready = None
                new, losses, seen = self._advance(*given, length=length)
                losses = np.asarray(losses)
                heldout = {name: np.asarray(value) for name, value in seen.items()}
                finite_S = heldout.pop("finite")
                if not keep_going:
                    self._check(losses, finite_S, heldout, state, done)
                state = new
                done += length
                yield Chunk(done, losses, finite_S, heldout, state)
        finally:
            if self._stream is not None:
                self._stream.close()
                self._stream = None

    def compile_first(self) -> None:
        """Compile the program of the first rounds, which `run` then finds compiled."""
        if isinstance(self.task.feed, Streamed):  # its batches are not known yet
            return
        length = self.setting.chunks[0]
        state = jax.eval_shape(self._init, self.task, keys_of(self.setting.seeds))
        compiled(self._advance, self.task, state, None, self._population, length=length)

    def _trial(self, given: tuple[Any, ...]) -> tuple[float, float]:
        """Compile and try one round, nothing of which is kept → its seconds, and those of a look at
        held-out data."""
        task, state, streamed, population = given
        streamed = jax.tree.map(lambda x: x[:, :1], streamed)
        compiled(self._advance, task, state, streamed, population, length=1)
        both = seconds_of(self._advance, task, state, streamed, population, length=1)
        looked_at = task.feed.size("test") if "test" in task.feed.splits else 0
        trained_on = 3 * self.K * self.H * self.setting.batch  # a gradient is worth three losses
        look = both * looked_at / (trained_on + looked_at)
        return both - look, look

    def operations(self) -> float:
        """The floating-point operations of a round of all seeds."""
        S = len(self.setting.seeds)
        streamed = None
        if isinstance(self.task.feed, Streamed):
            sizes = (S, 1, self.K, self.H)
            shape = lambda x: jax.ShapeDtypeStruct((*sizes, *x.shape), x.dtype)
            streamed = jax.tree.map(shape, one_item(self.task, self.setting.batch))
        state = jax.eval_shape(self._init, self.task, keys_of(self.setting.seeds))
        given = (self.task, state, streamed, self._population)
        step = step_operations(self.task, self.setting.batch)
        others = S * self.K * (self.H - 1) * step  # a loop's body is counted once
        return others + operations(self._advance.lower(*given, length=1))

    def _check(
        self,
        losses_SCK: np.ndarray,
        finite_S: np.ndarray,
        heldout: dict[str, np.ndarray],
        before: RoundState,
        done: int,
    ) -> None:
        end = done + losses_SCK.shape[1]
        bad = np.argwhere(~np.isfinite(losses_SCK)).tolist()
        if bad:
            s, c, k = min(bad, key=lambda sck: sck[1])
            what = f"the loss of worker {k} is {losses_SCK[s, c, k]} in round {done + c + 1}"
        elif not finite_S.all():
            s = int(np.argmin(finite_S))
            what = f"the weights are not finite after round {end}"
        elif broken := broken_metric(heldout):
            message = f"{self.method.label}: {broken} after round {end}, though losses are finite."
            raise Diverged(message, before, done, "Mend the metric")
        else:
            return
        message = f"{self.method.label}: {what} (seed {self.setting.seeds[s]})."
        raise Diverged(message, before, done, "Lower the learning rate")

    def traffic(self, topology: str = "server") -> Traffic:
        """Bits that each worker sends and receives in a round."""
        shared = jax.eval_shape(lambda task: Shared(*task.init(jax.random.key(0))), self.task)
        begun = jax.eval_shape(self.method.client(self.task).begin, shared)
        # statistics and control variates travel beside the weights
        extra = tree_bits(begun) - tree_bits(shared.params)
        count = self.setting.fragments.count
        message = fragment_bits(self.method.compressor, shared.params, count) + extra
        if self.K == 1:
            return Traffic(0, 0, "one worker")
        if self._peers is not None:
            among = self._peers.bits(shared)
            if self._peers.instead:
                return Traffic(among, among, "pairs")
            message += among
            extra += among
        if topology == "server":
            return server_traffic(message, tree_bits(shared.params) + extra)
        if topology == "all-gather":
            return all_gather_traffic(message, self.K)
        gathers = self.method.outer.combine == "gather" or self.method.aggregate is not None
        if self.method.compressor.name != "dense" or gathers:
            raise LaconicError(
                f"{self.method.label}: a ring sums as it goes, so it can neither carry compressed "
                "messages nor gather, as robust means do; use the topology 'server' or "
                "'all-gather'."
            )
        return ring_all_reduce_traffic(message, self.K)


def _remaining(chunks: list[int], done: int) -> list[int]:
    ends = np.cumsum(chunks)
    if done and done not in ends:
        raise LaconicError(
            f"{done} rounds do not end a chunk; resume with the settings the run was begun with."
        )
    return [length for length, end in zip(chunks, ends, strict=True) if end > done]


def population_for(
    task: Task, method: Method, setting: Setting, population: Population | None = None
) -> tuple[Plan | None, Population | None]:
    """The plan and the partitions [S, …] of a setting with a population; None for both without."""
    options = setting.federated
    K = setting.workers
    if population is None and not options.active:
        return None, None
    if setting.missing:
        raise LaconicError(
            "clients of a population drop out by --federated.dropout; leave --missing out."
        )
    if method.budget(K, 1) != (K, 1):
        raise LaconicError(
            f"{method.label} works on all data in one place, so it has no part in a population."
        )
    if population is None:
        plan, population = settle(options, task, K, setting.batch, RUNS, setting.seeds)
    else:
        check_rows(population, task)
        plan = plan_for(options, population, K, setting.batch)
        if population.rows.shape[0] != len(setting.seeds):
            raise LaconicError(
                f"{population.rows.shape[0]} partitions for {len(setting.seeds)} seeds: give one "
                "each."
            )
    if plan.uneven and method.client is gradient_client:
        raise LaconicError(
            f"{method.label} takes no local steps, so its clients cannot take different numbers of "
            "them."
        )
    return plan, jax.device_put(population)


def check_control(method: Method, task: Task) -> None:
    """Refuse a robust mean beside which control variates are summed, before anything runs."""
    if method.aggregate is None:
        return
    client = method.client(task)
    shared = jax.eval_shape(lambda: Shared(*task.init(jax.random.key(0))))
    begun = jax.eval_shape(client.begin, shared)
    control = begun.control if isinstance(begun, Controlled) else ()
    check_robust(method.aggregate, method.outer.combine, control)


def check_apart(method: Method, setting: Setting) -> None:
    """Refuse what needs messages to a server, where workers only meet each other."""
    wrong = {
        "its messages are not sent, so there is nothing to compress: leave compress out": (
            method.compressor.name != "dense"
        ),
        "no mean is taken over all workers: leave aggregate out": method.aggregate is not None,
        "every worker keeps weights of its own, so all must stay: leave out missing workers and "
        "the population": bool(setting.missing) or setting.federated.active,
    }
    for why, found in wrong.items():
        if found:
            raise LaconicError(f"{method.label}: {why}.")


def keys_of(seeds: Sequence[int]) -> jax.Array:
    """The random keys of the seeds [S]."""
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def over_seeds(one_seed: Callable[..., Any], seeds: int, at_once: int) -> Callable[..., Any]:
    """`one_seed` over the first axis of its arguments, `at_once` of them side by side; 0: all."""
    if at_once == 0 or at_once >= seeds:
        return jax.vmap(one_seed)
    # alone, a seed is not batched by one: a convolution would become a grouped one
    batch_size = None if at_once == 1 else at_once
    return lambda *arguments: jax.lax.map(
        lambda each: one_seed(*each), arguments, batch_size=batch_size
    )


Found = TypeVar("Found")


def out_of_memory(error: Exception) -> bool:
    """Whether XLA ran out of memory, or would."""
    return isinstance(error, TooLarge) or "RESOURCE_EXHAUSTED" in str(error)


def in_parts(
    run: Callable[[int], Found], at_once: int, note: Callable[[int], None], refusal: str
) -> Found:
    """`run(at_once)`, repeated with half as many as long as memory is too small.

    `note` gets each smaller number. If even one does not fit, the error is `refusal` and advice.
    """
    while True:
        try:
            return run(at_once)
        except (jax.errors.JaxRuntimeError, TooLarge) as error:
            if not out_of_memory(error):
                raise
            needed = f" ({error})" if isinstance(error, TooLarge) else ""
        if at_once == 1:
            raise CannotBegin(
                f"{refusal}, or a task's options that save memory, such as compute=bf16{needed}."
            )
        at_once = -(-at_once // 2)
        note(at_once)
