"""`LearnedStrategy`: an outer optimizer of laconic as a Flower strategy.

Flower samples, sends, evaluates and counts rounds as in its own FedAvg. What is different is what
happens to the replies: each is checked before it counts, the outer optimizer steps on Δ = W_before
− W_after, and everything that a later round needs is on disk before it begins.
"""
# pyright: reportMissingImports=false

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from laconic.errors import LaconicError
from laconic.flower.metrics import aggregate, evaluations, tally
from laconic.flower.model import AVERAGED, Arrays, Model, all_finite, check_layout, check_patterns
from laconic.flower.optimizer import choose
from laconic.flower.patience import PatientGrid, check_patience
from laconic.flower.replies import Refused, Reply, arrays_of, read, record_of
from laconic.flower.saved import Saved, load, new_history, save
from laconic.flower.server import Limits, OuterServer, ServerState
from laconic.outer import OuterOptimizer

LOG = logging.getLogger("flwr")  # Flower's own, so that its handlers show what is said here

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


@final
class LearnedStrategy(FedAvg):
    """An outer optimizer on the server: `LearnedStrategy("lopt-a-general")`.

    optimizer:    a name of the zoo, a .safetensors file, a hand-designed one as `laconic compare` spells it
                  ("slowmo:beta=0.9"), or an `OuterOptimizer`
    layout:       "torch" for weights as torch.nn keeps them, [out, in] and [out, in, …], or "as-is" for [in, out]
    averaged:     patterns of names of arrays that are no parameters: they are averaged; whole numbers always are
    checkpoint:   a file that is replaced after every round; if it is there at the start, the run
    goes on from it norm_limit:   how many times the usual norm a client's change may have before it
    is dropped weight_limit: how many times the median weight of a round a client may claim before
    it is dropped
    patience:     how many times as long as the median client to wait for the rest; None: as Flower does, which notices
                  a dead client after about a minute, or at the `timeout` of `start`

    The other arguments are FedAvg's. An optimizer that looks at each client's change (LAgg-A)
    samples exactly the K clients it was made for, so `fraction_train` is not for it. Dropped and
    failed clients are counted in the metrics.
    """

    def __init__(
        self,
        optimizer: str | os.PathLike[str] | OuterOptimizer = "lopt-a-general",
        *,
        layout: str = "torch",
        averaged: Sequence[str] = AVERAGED,
        checkpoint: str | os.PathLike[str] | None = None,
        norm_limit: float = Limits().norm,
        weight_limit: float = Limits().weight,
        patience: float | None = None,
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
        check_layout(layout)
        check_patterns(averaged)
        check_patience(patience)
        chosen = choose(optimizer, min_train_nodes, fraction_train)
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
        self.label, self.layout, self.averaged, self.patience = (
            chosen.label,
            layout,
            tuple(averaged),
            patience,
        )
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self._server = OuterServer(chosen.outer, Limits(norm_limit, weight_limit))
        self._forget()

    def _forget(self) -> None:
        self._model: Model | None = None
        self._state: ServerState | None = None
        self._before: Arrays = {}
        self._asked: list[int] = []
        self._done, self._history = 0, new_history()

    def summary(self) -> None:
        """Log what the strategy is made of."""
        clients = self._server.outer.workers
        LOG.info(
            "\t├──> Outer optimizer: %s%s",
            self.label,
            "" if clients is None else f", {clients} clients a round",
        )
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
        """Flower's own loop over rounds; those that the checkpoint holds already pass without
        asking anybody."""
        self._forget()
        model, state = self._begin(initial_arrays)
        if self.checkpoint is not None and self.checkpoint.exists():
            self._resume(load(self.checkpoint, self.label, model, self._before, state), num_rounds)
        horizon = self._server.outer.horizon
        if horizon is not None and num_rounds > horizon:
            LOG.warning(
                "%s was meta-trained for %d rounds, not for %d.", self.label, horizon, num_rounds
            )

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if server_round < self._done:
                return self._past("server", server_round)
            return self._note(
                "server", server_round, evaluate_fn(server_round, arrays) if evaluate_fn else None
            )

        given = None if evaluate_fn is None else evaluated
        grid = grid if self.patience is None else PatientGrid(grid, self.patience)
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
        """Take the outer step on the replies that may count; with none that may, the model stays as
        it is."""
        if server_round <= self._done:
            arrays = record_of(self._before) if server_round == self._done else None
            return arrays, self._past("train", server_round)
        if not self._asked:
            return None, None
        assert self._model is not None  # both are there once somebody was asked
        assert self._state is not None
        good, bad = self._read(replies, self._model)
        good, far, state = self._server.judge(self._state, good)
        bad += far
        for one in bad:
            LOG.warning(
                "aggregate_train: node %d is left out: %s (%s)", one.node, one.reason, one.detail
            )
        after, self._state = self._server.step(state, self._model, self._before, good, self._asked)
        self._before = self._sound(server_round, after)
        LOG.info("aggregate_train: %d of %d clients count", len(good), len(self._asked))
        metrics = aggregate(
            [reply.content for reply in good], self.weighted_by_key, self.train_metrics_aggr_fn
        )
        metrics = self._note("train", server_round, tally(metrics, self._asked, good, bad))
        if self.checkpoint is not None:
            saved = Saved(server_round, self._before, self._state, self._history)
            save(self.checkpoint, self.label, self._model, saved)
        return record_of(self._before), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg does. The last round of a checkpoint is evaluated again: it was written before
        its evaluation."""
        return (
            []
            if server_round < self._done
            else super().configure_evaluate(server_round, arrays, config, grid)
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As FedAvg does, without replies that could not be averaged."""
        if server_round < self._done:
            return self._past("evaluate", server_round)
        contents, bad = evaluations(replies, self.weighted_by_key)
        for one in bad:
            LOG.warning(
                "aggregate_evaluate: node %d is left out: %s (%s)", one.node, one.reason, one.detail
            )
        metrics = aggregate(contents, self.weighted_by_key, self.evaluate_metrics_aggr_fn)
        return self._note("evaluate", server_round, metrics)

    def _begin(self, arrays: ArrayRecord) -> tuple[Model, ServerState]:
        """Take these weights as where a round starts from; the first ones say what the model is."""
        self._before = arrays_of(arrays)
        if self._model is None or self._state is None:
            self._model = Model.of(self._before, self.averaged, self.layout)
            self._state = self._server.init(self._model.params(self._before))
        return self._model, self._state

    def _resume(self, saved: Saved, num_rounds: int) -> None:
        if saved.round > num_rounds:
            raise LaconicError(
                f"{self.checkpoint} holds {saved.round} rounds and {num_rounds} were asked for: "
                "ask for more."
            )
        self._done, self._before, self._state, self._history = saved
        LOG.info("Going on after round %d of %d, from %s", self._done, num_rounds, self.checkpoint)

    def _read(self, replies: Iterable[Message], model: Model) -> tuple[list[Reply], list[Refused]]:
        """The replies of the right form in the order of node ids, and the others; of one node the
        first counts."""
        good: dict[int, Reply] = {}
        bad: list[Refused] = []
        for message in replies:
            one = read(message, model, self._before, self.weighted_by_key)
            if message.has_error() and one.node not in self._asked:
                # The SuperLink's own word for a node that it lost, which is counted as one that
                # kept silent.
                LOG.warning("aggregate_train: somebody is lost: %s", message.error.reason)
            elif one.node not in self._asked or one.node in good:
                bad.append(
                    Refused(one.node, "stranger", "nobody asked it, or it has answered already")
                )
            elif isinstance(one, Reply):
                good[one.node] = one
            else:
                bad.append(one)
        return [good[node] for node in sorted(good)], bad

    def _sound(self, server_round: int, arrays: Arrays) -> Arrays:
        """The model after a step, unless it is one from which nobody could go on."""
        if not all_finite(arrays):
            raise LaconicError(
                f"after round {server_round} the model holds NaN or infinity, though no reply did: "
                f"{self.label} has "
                "diverged. Lower the clients' rate or the optimizer's own; a checkpoint still "
                "holds the round before."
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
