"""The clients: some SGD steps on their own digits. They import NumPy and Flower, and neither JAX
nor laconic."""
# pyright: reportMissingImports=false, reportArgumentType=false

import digits
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def _received(message: Message) -> digits.Weights:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


def _data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    node = context.node_config
    return digits.load_data(int(node["partition-id"]), int(node["num-partitions"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local steps from the weights received, in other minibatches every round."""
    weights, (x, y), config = (
        _received(message),
        _data(context),
        message.content.config_records["config"],
    )
    seed = 1000 * int(config["server-round"]) + int(context.node_config["partition-id"])
    steps, batch = int(context.run_config["local-steps"]), int(context.run_config["batch"])
    loss = digits.sgd(weights, x, y, float(config["rate"]), steps, batch, seed)
    arrays = ArrayRecord({name: Array(w) for name, w in weights.items()})
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(x)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The shared weights on one's own data."""
    x, y = _data(context)
    loss, accuracy = digits.evaluate(_received(message), x, y)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(x)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
