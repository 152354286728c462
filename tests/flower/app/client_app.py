"""Clients whose partition says who they are; one whose configuration says "bad" misbehaves, each
round differently."""

import os

import waves
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    round_ = int(message.content["config"]["server-round"])
    weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
    weights = waves.train(weights, round_, int(context.node_config["partition-id"]))
    fault = waves.FAULTS.get(round_) if context.node_config.get("bad") else None
    if fault == "raise" or (fault == "exit" and not context.run_config["exits"]):
        raise ValueError("this client is broken")
    if fault == "exit":
        os._exit(1)
    if fault is not None:
        weights = waves.spoiled(weights, fault)
    arrays = ArrayRecord({name: Array(w) for name, w in weights.items()})
    metrics = MetricRecord({"round": round_, "num-examples": 10})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
