"""Running one method on one task: `vmap` over seeds, `scan` over rounds, one jit, a chunk of rounds
at a time.

Chunks exist so that a person sees progress and a run can stop and go on: all state is handed out
between chunks, and the same chunk from the same state gives the same bits.
"""

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from laconic.client import Shared
from laconic.compress import tree_bits
from laconic.data.feed import Streamed
from laconic.errors import LaconicError
from laconic.federated.population import Population, draw_population
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
from laconic.runs.heldout import all_finite, heldout_metrics
from laconic.runs.populated import populated
from laconic.runs.seeds import over_seeds
from laconic.show.timing import (
    Traffic,
    all_gather_traffic,
    ring_all_reduce_traffic,
    server_traffic,
)
from laconic.tasks.base import Task
from laconic.workers import Meshed, Simulated, Workers, check_divides

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
    """A loss became NaN or infinite; `before` is the state the bad chunk began from, `done` its
    rounds."""

    def __init__(self, message: str, before: RoundState, done: int):
        super().__init__(message)
        self.before, self.done = before, done


class Simulation:
    """One method on one task, ready to advance; `state` has a leading axis for seeds.

    With a mesh the workers are spread over its devices; otherwise they share the default one. A
    population may be given, with leaves [S, …], in the place of one that is drawn.
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
        self.plan, self._population = populated(task, method, setting, population)
        self.H = self.H if self.plan is None else self.plan.local_steps
        check_workers(method, self.K)
        if setting.missing >= self.K:
            raise LaconicError(
                f"{method.label} trains on {self.K} worker, so {setting.missing} cannot be "
                "missing: leave it out."
            )
        self.task, self.method, self.setting = jax.device_put(task), method, setting
        self._mesh = None if self.K == 1 else mesh  # one worker lives on one device
        if self._mesh is not None:
            check_divides(self.K, self._mesh)
        self._start = jax.jit(self._init)
        self._advance = jax.jit(self._chunk, static_argnames="length")
        self._stream: Generator[Any, None, None] | None = None

    def _parts(self, task: Task) -> tuple[Workers, Server]:
        client = self.method.client(task)
        if self._mesh is None:
            workers: Workers = Simulated(client, self.method.compressor)
        else:
            workers = Meshed(client, self.method.compressor, self._mesh)
        return workers, Server(
            self.method.outer, share_of_clients=1.0 if self.plan is None else self.plan.share
        )

    def _init(self, task: Task, keys_S: jax.Array) -> RoundState:
        workers, server = self._parts(task)
        clients = self.K if self.plan is None else self.plan.clients
        return jax.vmap(lambda key: init_round(task, workers, server, clients, key))(keys_S)

    def start(self) -> RoundState:
        """The state before the first round, one for each seed."""
        return self._start(
            self.task, jnp.stack([jax.random.key(seed) for seed in self.setting.seeds])
        )

    def _chunk(
        self,
        task: Task,
        state: RoundState,
        streamed: Any,
        population: Population | None,
        length: int,
    ) -> tuple[RoundState, jax.Array, Any]:
        workers, server = self._parts(task)

        def items_of(state: RoundState, batches: Any, population: Population | None) -> Items:
            if self.plan is not None and population is not None:
                return draw_population(self.plan, population, state)
            if isinstance(task.feed, Streamed):
                items = Items(batches, worker_keys(state, jnp.arange(self.K)))
            else:
                items = draw_items(task.feed, state, self.K, self.H, self.setting.batch)
            missing = self.setting.missing
            return (
                items._replace(present=draw_present(state, self.K, missing)) if missing else items
            )

        def one_round(state: RoundState, items: Items) -> tuple[RoundState, jax.Array]:
            state, losses_KH = communication_round(workers, server, state, items)
            return state, mean_losses(losses_KH, items.present)

        def one_seed(
            state: RoundState, streamed: Any, own: Population | None
        ) -> tuple[RoundState, jax.Array, Any]:
            # The items of all rounds at once: many small random draws inside the scan would cost
            # more than they weigh.
            rounds_C = state.round + jnp.arange(length)
            items_C = jax.vmap(lambda r, batches: items_of(state._replace(round=r), batches, own))(
                rounds_C, streamed
            )
            state, losses_CK = jax.lax.scan(one_round, state, items_C)
            seen = {"finite": all_finite(state.shared), **heldout_metrics(task, state.shared)}
            return state, losses_CK, seen

        each = over_seeds(one_seed, len(self.setting.seeds), self.setting.seeds_at_once)
        return each(state, streamed, population)

    def _take_stream(self, done: int, length: int) -> Any:
        """The next `length` rounds of a stream for every seed, [S, length, K, H, B, …]; None for
        resident data."""
        feed, seeds = self.task.feed, len(self.setting.seeds)
        if not isinstance(feed, Streamed):
            return None
        if self._stream is None:
            self._stream = feed.rounds(seeds * self.K, self.H, skip=done)
        rounds = [r for _, r in zip(range(length), self._stream, strict=False)]
        if len(rounds) < length:
            raise LaconicError(
                f"the stream of {self.task.name!r} ended after {done + len(rounds)} of "
                f"{self.setting.rounds} rounds; "
                f"each takes {seeds * self.K * self.H} batches. Ask for fewer rounds or let the "
                "stream repeat its data."
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

    def run(self, state: RoundState, done: int = 0, keep_going: bool = False) -> Iterator[Chunk]:
        """From `state` after `done` rounds to the end, a chunk at a time.

        Stops with `Diverged` at the first non-finite loss unless told to keep going. Close the
        iterator to stop early.
        """
        try:
            for length in _remaining(self.setting.chunks, done):
                streamed = self._take_stream(done, length)
                new, losses, seen = self._advance(
                    self.task, state, streamed, self._population, length=length
                )
                losses, heldout = (
                    np.asarray(losses),
                    {name: np.asarray(value) for name, value in seen.items()},
                )
                finite_S = heldout.pop("finite")
                if not keep_going:
                    self._check(losses, finite_S, state, done)
                state, done = new, done + length
                yield Chunk(done, losses, finite_S, heldout, state)
        finally:
            if self._stream is not None:
                self._stream.close()
                self._stream = None

    def _check(
        self, losses_SCK: np.ndarray, finite_S: np.ndarray, before: RoundState, done: int
    ) -> None:
        bad = np.argwhere(~np.isfinite(losses_SCK)).tolist()
        if bad:
            s, c, k = min(bad, key=lambda sck: sck[1])
            what = f"the loss of worker {k} is {losses_SCK[s, c, k]} in round {done + c + 1}"
        elif not finite_S.all():
            s = int(np.argmin(finite_S))
            what = f"the weights are not finite after round {done + losses_SCK.shape[1]}"
        else:
            return
        raise Diverged(f"{self.method.label}: {what} (seed {self.setting.seeds[s]}).", before, done)

    def traffic(self, topology: str = "server") -> Traffic:
        """Bits that each worker sends and receives in a round."""
        shared = jax.eval_shape(lambda task: Shared(*task.init(jax.random.key(0))), self.task)
        begun = jax.eval_shape(self.method.client(self.task).begin, shared)
        extra = tree_bits(begun) - tree_bits(
            shared.params
        )  # statistics and control variates travel beside the weights
        message = self.method.compressor.bits(shared.params) + extra
        if self.K == 1:
            return Traffic(0, 0, "one worker")
        if topology == "server":
            return server_traffic(message, tree_bits(shared.params) + extra)
        if topology == "all-gather":
            return all_gather_traffic(message, self.K)
        if self.method.compressor.name != "dense" or self.method.outer.combine == "gather":
            raise LaconicError(
                f"{self.method.label}: a ring sums as it goes, so it can neither carry compressed "
                "messages nor gather; "
                "use the topology 'server' or 'all-gather'."
            )
        return ring_all_reduce_traffic(message, self.K)


def _remaining(chunks: list[int], done: int) -> list[int]:
    ends = np.cumsum(chunks)
    if done and done not in ends:
        raise LaconicError(
            f"{done} rounds do not end a chunk; resume with the settings the run was begun with."
        )
    return [length for length, end in zip(chunks, ends, strict=True) if end > done]
