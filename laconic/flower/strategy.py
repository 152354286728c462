"""`LearnedStrategy`: an outer optimizer of laconic as a Flower strategy.

Flower samples, sends, evaluates and counts rounds as in its own FedAvg. Only replies are treated
differently: each is checked before it counts, the outer optimizer steps on Δ = W_before − W_after,
and everything that a later round needs is on disk before it begins.
"""
# pyright: reportMissingImports=false

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from laconic.errors import LaconicError
from laconic.flower import server
from laconic.flower.model import AVERAGED, Arrays, Model, all_finite, check_form
from laconic.flower.replies import LOG, aggregate, arrays_of, read_all, record_of, scores, tally
from laconic.means import MEAN, parse_aggregate
from laconic.outer import OuterOptimizer

PAUSE = 0.5  # seconds between two looks for replies
LEAST = 5.0  # seconds that every client gets, however quick the others are

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


class PatientGrid:
    """A grid that waits for late clients only `patience` times as long as the median one took.

    Flower waits for a client that died until its heartbeats are missed, about a minute, or until
    the round's timeout.
    """

    def __init__(
        self,
        grid: Grid,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = grid
        self._patience = patience
        self._clock = clock
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        """Everything else is the other grid's."""
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, and wait for all replies, or for `timeout`, or until patience is over."""
        waiting, replies, times = set(self._grid.push_messages(messages)), [], []
        asked, begun = len(waiting), self._clock()
        while waiting:
            found = list(self._grid.pull_messages(waiting))
            spent = self._clock() - begun
            replies += found
            times += [spent] * len(found)
            waiting -= {message.metadata.reply_to_message_id for message in found}
            tired = 2 * len(times) >= asked and spent > max(LEAST, self._patience * median(times))
            if not waiting or tired or (timeout is not None and spent >= timeout):
                break
            self._sleep(PAUSE)
        return replies


@final
class LearnedStrategy(FedAvg):
    """An outer optimizer on the server: `LearnedStrategy("lopt-r")`.

    Args:
        optimizer: a name of the zoo, a .safetensors file, a hand-designed one as `laconic compare`
            spells it ("slowmo:beta=0.9"), or an `OuterOptimizer`.
        layout: "torch" for weights as torch.nn keeps them, [out, in] and [out, in, …], or "as-is"
            for [in, out].
        averaged: patterns of names of arrays that are averaged instead of trained, as statistics
            are; whole numbers are never trained.
        checkpoint: a file that is replaced after every round; if it exists at the start, the run
            resumes from it.
        aggregate: how replies become one: "mean", or a robust mean as `laconic compare` spells it:
            "median", "trimmed:0.2", "krum:f=1", "multi-krum:f=1", "clip:1", "centred-clip:1".
        norm_limit: a client is dropped if the norm of its change, or of an averaged array, is more
            than this many times the usual one; one whose weight × norm is more than this many times
            the usual counts with less weight.
        weight_limit: a client is dropped if its weight is more than this many times the round's
            median.
        patience: how many times as long as the median client to wait for the rest; None: as Flower
            does, which notices a dead client after about a minute, or at the `timeout` of `start`.
        local_steps: H, the steps a client takes, for an optimizer that can use it (lopt-r).

    The other arguments are FedAvg's. An optimizer that looks at each client's change (LAgg-A)
    samples exactly the K clients it was made for, and refuses `fraction_train`. Dropped and failed
    clients are counted in the metrics.

    Example::

        LearnedStrategy("lopt-r").start(grid, initial_arrays, num_rounds=100)
    """

    def __init__(
        self,
        optimizer: str | os.PathLike[str] | OuterOptimizer = "lopt-r",
        *,
        layout: str = "torch",
        averaged: Sequence[str] = AVERAGED,
        checkpoint: str | os.PathLike[str] | None = None,
        aggregate: str = MEAN,
        norm_limit: float = server.Limits().norm,
        weight_limit: float = server.Limits().weight,
        patience: float | None = None,
        local_steps: int | None = None,
        fraction_train: float | None = None,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
    ) -> None:
        check_form(layout, averaged)
        if patience is not None and not patience >= 1:
            raise LaconicError(
                "patience says how many times as long as the median client to wait, at least 1, "
                f"got {patience}."
            )
        chosen = server.choose(optimizer, min_train_nodes, fraction_train)
        super().__init__(
            chosen.fraction,
            fraction_evaluate,
            chosen.minimum,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
        )
        self.label = chosen.label
        self.layout = layout
        self.averaged = tuple(averaged)
        self.patience = patience
        self.local_steps = local_steps
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.aggregate = aggregate
        limits = server.Limits(norm_limit, weight_limit)
        self._server = server.OuterServer(chosen.outer, limits, parse_aggregate(aggregate))
        self._forget()

    def _forget(self) -> None:
        self._model: Model | None = None
        self._state: server.ServerState | None = None
        self._before: Arrays = {}
        self._asked: list[int] = []
        self._done = 0
        self._history: server.History = {"train": {}, "evaluate": {}, "server": {}}

    def summary(self) -> None:
        """Log what the strategy is made of."""
        clients = self._server.outer.workers
        sampled = "" if clients is None else f", {clients} clients a round"
        LOG.info("\t├──> Outer optimizer: %s%s", self.label, sampled)
        LOG.info("\t├──> Robust mean: %s", self.aggregate if self._server.aggregate else "none")
        LOG.info("\t├──> Checkpoint: %s", self.checkpoint or "none")
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop over rounds; rounds in the checkpoint are not run again."""
        self._forget()
        self._server = self._server.told(self.local_steps, num_rounds)
        model, state = self._begin(initial_arrays)
        if self.checkpoint is not None and self.checkpoint.exists():
            about = server.About(self.label, self.aggregate, model)
            saved = server.load_round(self.checkpoint, about, self._before, state)
            self._resume(saved, num_rounds)
        horizon = self._server.outer.horizon
        if horizon is not None and num_rounds > horizon:
            LOG.warning(
                "%s was meta-trained for %d rounds, not for %d.", self.label, horizon, num_rounds
            )

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if server_round < self._done:
                return self._past("server", server_round)
            metrics = evaluate_fn(server_round, arrays) if evaluate_fn else None
            return self._note("server", server_round, metrics)

        given = None if evaluate_fn is None else evaluated
        if self.patience is not None:
            grid = cast(Grid, PatientGrid(grid, self.patience))
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, given
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients as FedAvg does, and remember whom and from which weights they start."""
        if server_round <= self._done:
            LOG.info("configure_train: round %d is in the checkpoint already", server_round)
            return []
        self._begin(arrays)
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._asked = sorted(message.metadata.dst_node_id for message in messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the outer step on the replies that count; without any the model stays as it is."""
        if server_round <= self._done:
            arrays = record_of(self._before) if server_round == self._done else None
            return arrays, self._past("train", server_round)
        if not self._asked:
            return None, None
        assert self._model is not None  # both are there once somebody was asked
        assert self._state is not None
        key = self.weighted_by_key
        good, bad = read_all(replies, self._asked, self._model, self._before, key)
        claimed = {reply.node: reply.weight for reply in good}
        good, far, state = self._server.judge(self._state, self._model, self._before, good)
        bad += far
        for one in bad:
            LOG.warning("aggregate_train: %s", one)
        bounded = [reply for reply in good if reply.weight < claimed[reply.node]]
        for one in bounded:
            said = "aggregate_train: node %s counts with weight %g instead of %g"
            LOG.warning(said, one.node, one.weight, claimed[one.node])
        self._warn_of_few(len(good))
        after, self._state = self._server.step(state, self._model, self._before, good, self._asked)
        self._before = self._sound(server_round, after)
        LOG.info("aggregate_train: %d of %d clients count", len(good), len(self._asked))
        contents = [reply.content for reply in good]
        metrics = aggregate(contents, key, self.train_metrics_aggr_fn)
        counts = tally(metrics, self._asked, good, bad, len(bounded))
        metrics = self._note("train", server_round, counts)
        if self.checkpoint is not None:
            saved = server.Saved(server_round, self._before, self._state, self._history)
            about = server.About(self.label, self.aggregate, self._model)
            server.save_round(self.checkpoint, about, saved)
        return record_of(self._before), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg does; a checkpoint is written before its last round is evaluated."""
        if server_round < self._done:
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As FedAvg does, without replies that could not be averaged."""
        if server_round < self._done:
            return self._past("evaluate", server_round)
        contents, bad = scores(replies, self.weighted_by_key)
        for one in bad:
            LOG.warning("aggregate_evaluate: %s", one)
        metrics = aggregate(contents, self.weighted_by_key, self.evaluate_metrics_aggr_fn)
        return self._note("evaluate", server_round, metrics)

    def _begin(self, arrays: ArrayRecord) -> tuple[Model, server.ServerState]:
        """Start a round from these weights; the first ones define the model."""
        self._before = arrays_of(arrays)
        if self._model is None or self._state is None:
            self._model = Model.of(self._before, self.averaged, self.layout)
            self._state = self._server.init(self._model, self._before)
        return self._model, self._state

    def _warn_of_few(self, counted: int) -> None:
        """A robust mean of fewer replies than it needs withstands fewer attackers than it says."""
        robust = self._server.aggregate
        if robust is not None and counted < robust.least:
            said = "aggregate_train: %s needs %d replies to withstand its attackers, and %d count"
            LOG.warning(said, robust.name, robust.least, counted)

    def _resume(self, saved: server.Saved, num_rounds: int) -> None:
        if saved.round > num_rounds:
            raise LaconicError(
                f"{self.checkpoint} holds {saved.round} rounds and {num_rounds} were asked for: "
                "ask for more."
            )
        self._done, self._before, self._state, self._history = saved
        LOG.info("Going on after round %d of %d, from %s", self._done, num_rounds, self.checkpoint)

    def _sound(self, server_round: int, arrays: Arrays) -> Arrays:
        """The model after a step, refused if it is not finite."""
        if not all_finite(arrays):
            raise LaconicError(
                f"after round {server_round} the model holds NaN or infinity, though no reply did: "
                f"{self.label} has diverged. Lower the clients' rate or the optimizer's own; a "
                "checkpoint still holds the round before."
            )
        return arrays

    def _past(self, kind: str, server_round: int) -> MetricRecord | None:
        found = self._history[kind].get(server_round)
        return None if found is None else MetricRecord(found)

    def _note(
        self, kind: str, server_round: int, metrics: MetricRecord | None
    ) -> MetricRecord | None:
        if metrics is not None:
            self._history[kind][server_round] = dict(metrics)
        return metrics
