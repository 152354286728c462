"""A grid of clients that live in this process, and the simulator's run of the same clients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import laconic
from laconic.flower import LearnedStrategy
from tests.flower.app import waves


class FakeGrid(Grid):
    """`clients` maps node ids to functions of (round, weights) that give a RecordDict, an Error, or
    None: no answer."""

    run = None

    def __init__(self, clients: dict[int, Any]):
        self.clients, self.asked = clients, []
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
            1,
            1,
            1,
        )  # what a ServerApp's process has

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    create_message = set_run

    def get_node_ids(self):
        return list(self.clients)

    def send_and_receive(self, messages, *, timeout=None):
        return self.answers(list(messages))

    def push_messages(self, messages):
        self.sent = list(messages)
        return [f"m{message.metadata.dst_node_id}" for message in self.sent]

    def pull_messages(self, message_ids):
        found = self.answers(self.sent)
        for reply in found:
            reply.metadata.__dict__["_reply_to_message_id"] = f"m{reply.metadata.src_node_id}"
        return found

    def answers(self, messages):
        replies = []
        for message in reversed(messages):  # in an order of their own
            round_ = int(message.content["config"]["server-round"])
            self.asked.append((message.metadata.message_type, round_))
            weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
            found = self.clients[message.metadata.dst_node_id](round_, weights)
            for one in found if isinstance(found, list) else [found]:
                if one is not None:
                    replies.append(Message(one, reply_to=message))
        return replies


def record(weights: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord(
        {name: w if isinstance(w, Array) else Array(np.asarray(w)) for name, w in weights.items()}
    )


def answer(weights: dict[str, Any], count: Any = 10, **metrics: Any) -> RecordDict:
    return RecordDict(
        {"arrays": record(weights), "metrics": MetricRecord({"num-examples": count, **metrics})}
    )


def honest(client: int, count: int = 10) -> Any:
    return lambda round_, weights: answer(
        waves.train(weights, round_, client), count, round=float(round_)
    )


def fit(
    strategy: LearnedStrategy, clients: dict[int, Any], rounds: int = 3, weights: Any = None
) -> Any:
    """Train → the result, as arrays and metrics by round."""
    weights = waves.new_weights() if weights is None else weights
    result = strategy.start(FakeGrid(clients), record(weights), num_rounds=rounds)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    return arrays, {r: dict(metrics) for r, metrics in result.train_metrics_clientapp.items()}


def simulated(optimizer: str, K: int, rounds: int) -> dict[str, np.ndarray]:
    """The model after the same rounds in the simulator."""

    def batches():
        for r in range(1, rounds + 1):
            for k in range(K):
                for h in range(waves.H):
                    x, y = waves.batch(r, k, h)
                    yield {"x": x, "y": y}

    def loss(params, batch):
        hidden = jnp.tanh(batch["x"] @ params["w"] + params["b"][None])
        return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)

    init = lambda key: jax.tree.map(jnp.asarray, waves.new_weights())
    task = laconic.plain_task("waves", init, loss, laconic.Streamed({}, batches))
    setting = laconic.Setting(K, waves.H, waves.B, rounds, evaluate_every=rounds)
    simulation = laconic.Simulation(task, laconic.parse_method(optimizer, K), setting)
    (chunk,) = simulation.run(simulation.start())
    return {name: np.asarray(x[0]) for name, x in chunk.state.shared.params.items()}
