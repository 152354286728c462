"""What a client sent back, read with suspicion: a reply is whole and of the model's own form, or it
is refused.

Nothing here looks at how large numbers are; that is the guard's part, which needs everyone's
replies.
"""
# pyright: reportMissingImports=false

import math
from io import BytesIO
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from laconic.data.files import Header, read_header
from laconic.flower.model import Arrays, Form, Model

SHOWN = 3  # how many names a reason lists


class Reply(NamedTuple):
    """A reply of the right form: who sent it, its Δ, its statistics, how much it counts, and all of
    its content."""

    node: int
    delta: Arrays
    averaged: Arrays
    weight: float
    content: RecordDict


class Refused(NamedTuple):
    """A reply that does not count: who sent it, the kind of fault, and the fault in words."""

    node: int
    reason: str
    detail: str


class Fault(Exception):
    """Why a reply is refused."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def read(message: Message, model: Model, before: Arrays, weighted_by: str) -> Reply | Refused:
    """One reply to a training message that sent the weights `before`."""
    node = message.metadata.src_node_id
    if message.has_error():
        return Refused(
            node, "failed", message.error.reason or "the client failed without saying why"
        )
    try:
        content = message.content
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise Fault("records", "a reply has exactly one ArrayRecord and one MetricRecord")
        weight = weight_of(content, weighted_by)
        (record,) = content.array_records.values()
        after = _arrays(record, model)
        averaged = {name: after[name] for name in model.averaged}
        return Reply(node, model.delta(before, after), averaged, weight, content)
    except Fault as fault:
        return Refused(node, fault.reason, fault.detail)


def weight_of(content: RecordDict, weighted_by: str) -> float:
    """How much a reply with one MetricRecord counts."""
    (metrics,) = content.metric_records.values()
    weight = metrics.get(weighted_by)
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise Fault("weight", f"{weighted_by!r} must be a number of at least 0, got {weight!r}")
    return float(weight)


def arrays_of(record: ArrayRecord) -> Arrays:
    """A trusted record's arrays."""
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: Arrays) -> ArrayRecord:
    """Arrays as Flower carries them."""
    return ArrayRecord({name: Array(np.asarray(x)) for name, x in arrays.items()})


def _arrays(record: ArrayRecord, model: Model) -> Arrays:
    differing = sorted(set(record) ^ set(model.forms))
    if differing:
        raise Fault("keys", f"missing or not known: {', '.join(differing[:SHOWN])}")
    found = {}
    for name, form in model.forms.items():
        found[name] = _array(name, record[name], form)
        if form.dtype.kind == "f" and not np.isfinite(found[name]).all():
            raise Fault("not finite", f"{name} holds NaN or infinity")
    return found


def _array(name: str, array: Array, form: Form) -> np.ndarray:
    """The array without a copy, once its header says what is wanted and its bytes are as many as
    that takes."""
    try:
        (shape, column_major, dtype), data = _parse(array)
    except (
        Exception
    ) as error:  # whatever a stranger's bytes make the parser raise, the reply is at fault
        raise Fault("garbage", f"{name} is no NumPy array ({type(error).__name__})") from error
    if shape != form.shape:
        raise Fault("shape", f"{name} is {shape}, not {form.shape}")
    if dtype != form.dtype:
        raise Fault(
            "dtype", f"{name} is {dtype}, not {form.dtype}: send the dtype that was received"
        )
    if len(data) != form.dtype.itemsize * math.prod(form.shape):
        raise Fault(
            "garbage", f"{name} has {len(data)} bytes of data, which its shape does not take"
        )
    return np.frombuffer(data, form.dtype).reshape(form.shape, order="F" if column_major else "C")


def _parse(array: Array) -> tuple[Header, memoryview]:
    if array.stype != "numpy.ndarray":
        raise ValueError(array.stype)
    stream = BytesIO(array.data)
    return read_header(stream), memoryview(array.data)[stream.tell() :]
