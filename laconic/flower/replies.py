"""What clients sent back, read with suspicion: a reply has the model's own form or is refused.

How large its numbers may be is the guard's part, which needs everyone's replies. The clients' own
metrics are averaged by Flower.
"""
# pyright: reportMissingImports=false

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from laconic.data.files import Header, read_header
from laconic.flower.model import Arrays, Form, Model

SHOWN = 3  # how many names a reason lists
LOG = logging.getLogger("flwr")  # Flower's own, so that its handlers show what is said here


class Reply(NamedTuple):
    """A reply of the right form: its sender, Δ, statistics, weight, and all of its content."""

    node: int
    delta: Arrays
    averaged: Arrays
    weight: float
    content: RecordDict


class Refused(NamedTuple):
    """A reply that does not count: its sender, the kind of fault, and the fault in words."""

    node: int
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"node {self.node} is left out: {self.reason} ({self.detail})"


class Fault(Exception):
    """Why a reply is refused."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def read_all(
    messages: Iterable[Message], asked: Sequence[int], model: Model, before: Arrays, weight_key: str
) -> tuple[list[Reply], list[Refused]]:
    """The good replies to a training in the order of node ids, one a node, and the bad ones."""
    good: dict[int, Reply] = {}
    bad: list[Refused] = []
    for message in messages:
        one = read(message, model, before, weight_key)
        if message.has_error() and one.node not in asked:
            # The SuperLink's own reply for a node that it lost, which counts as silent.
            LOG.warning("aggregate_train: a node is lost: %s", message.error.reason)
        elif one.node not in asked or one.node in good:
            detail = "it was not asked, or it has answered already"
            bad.append(Refused(one.node, "stranger", detail))
        elif isinstance(one, Reply):
            good[one.node] = one
        else:
            bad.append(one)
    return [good[node] for node in sorted(good)], bad


def read(message: Message, model: Model, before: Arrays, weighted_by: str) -> Reply | Refused:
    """One reply to a training message that sent the weights `before`."""
    node = message.metadata.src_node_id
    try:
        content = _content(message)
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise Fault("records", "a reply has exactly one ArrayRecord and one MetricRecord")
        weight = _weight(content, weighted_by)
        (record,) = content.array_records.values()
        after = _arrays(record, model)
        averaged = {name: after[name] for name in model.averaged}
        return Reply(node, model.delta(before, after), averaged, weight, content)
    except Fault as fault:
        return Refused(node, fault.reason, fault.detail)


def _content(message: Message) -> RecordDict:
    if message.has_error():
        raise Fault("failed", message.error.reason or "the client failed without saying why")
    return message.content


def _weight(content: RecordDict, weighted_by: str) -> float:
    """The weight of a reply with one MetricRecord."""
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
    """The array, not copied, if its header and its size are those of the form."""
    try:
        (shape, column_major, dtype), data = _parse(array)
    except Exception as error:  # whatever a stranger's bytes make the parser raise
        raise Fault("garbage", f"{name} is no NumPy array ({type(error).__name__})") from error
    if shape != form.shape:
        raise Fault("shape", f"{name} is {shape}, not {form.shape}")
    if dtype != form.dtype:
        detail = f"{name} is {dtype}, not {form.dtype}: send the dtype that was received"
        raise Fault("dtype", detail)
    if len(data) != form.dtype.itemsize * math.prod(form.shape):
        detail = f"{name} has {len(data)} bytes of data, which its shape does not take"
        raise Fault("garbage", detail)
    return np.frombuffer(data, form.dtype).reshape(form.shape, order="F" if column_major else "C")


def _parse(array: Array) -> tuple[Header, memoryview]:
    if array.stype != "numpy.ndarray":
        raise ValueError(array.stype)
    stream = BytesIO(array.data)
    return read_header(stream), memoryview(array.data)[stream.tell() :]


# --- metrics --------------------------------------------------------------------------------------


def aggregate(
    contents: Sequence[RecordDict],
    weighted_by: str,
    how: Callable[[list[RecordDict], str], MetricRecord],
) -> MetricRecord | None:
    """The mean metrics of the replies whose metrics have the usual form; None without any.

    Metrics with other names or lengths than most, or not finite where others' are, are left out.
    """
    heavy = [content for content in contents if _weight(content, weighted_by) > 0]
    if not heavy:
        return None
    (usual, _), *_ = Counter(map(_form, heavy)).most_common(1)
    alike = [content for content in heavy if _form(content) == usual]
    return how([content for content in alike if _finite(content)] or alike, weighted_by)


def scores(replies: Iterable[Message], weighted_by: str) -> tuple[list[RecordDict], list[Refused]]:
    """The contents of good replies to an evaluation, in the order of node ids, and the bad ones."""
    good, bad = {}, []
    for message in replies:
        node = message.metadata.src_node_id
        try:
            content = _content(message)
            if len(content.metric_records) != 1:
                raise Fault("records", "a reply has exactly one MetricRecord")
            _weight(content, weighted_by)
            good[node] = content
        except Fault as fault:
            bad.append(Refused(node, fault.reason, fault.detail))
    return [good[node] for node in sorted(good)], bad


def tally(
    metrics: MetricRecord | None,
    asked: Sequence[int],
    good: Sequence[Reply],
    bad: Sequence[Refused],
    bounded: int,
) -> MetricRecord:
    """The metrics and how many clients counted (and with less weight than they claimed, if any),
    were dropped (and why), failed or kept silent."""
    reasons = Counter(one.reason for one in bad)
    failed = reasons.pop("failed", 0)
    silent = len(asked) - len({one.node for one in (*good, *bad)} & set(asked))
    counts: dict[str, Any] = {
        "clients-counted": len(good),
        "clients-dropped": sum(reasons.values()),
        "clients-failed": failed + silent,
    }
    counts |= {
        f"dropped-{reason.replace(' ', '-')}": count for reason, count in sorted(reasons.items())
    }
    counts |= {"clients-bounded": bounded} if bounded else {}
    return MetricRecord({**(metrics or {}), **counts})


def _numbers(content: RecordDict) -> dict[str, Any]:
    (metrics,) = content.metric_records.values()
    return dict(metrics)


def _form(content: RecordDict) -> tuple[tuple[str, int], ...]:
    length = lambda value: len(value) if isinstance(value, list) else -1
    return tuple(sorted((key, length(value)) for key, value in _numbers(content).items()))


def _finite(content: RecordDict) -> bool:
    values = _numbers(content).values()
    return all(bool(np.isfinite(value).all()) for value in values)
