"""The metrics of a round: the clients' own, averaged by Flower, and how many clients counted."""
# pyright: reportMissingImports=false

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict

from laconic.flower.replies import Fault, Refused, Reply, weight_of


def aggregate(
    contents: Sequence[RecordDict],
    weighted_by: str,
    how: Callable[[list[RecordDict], str], MetricRecord],
) -> MetricRecord | None:
    """The mean metrics of the replies that can be averaged with each other; None without any.

    Those whose metrics have other names or lengths than most, or are not finite where others' are,
    are left out.
    """
    heavy = [content for content in contents if weight_of(content, weighted_by) > 0]
    if not heavy:
        return None
    (usual, _), *_ = Counter(map(_form, heavy)).most_common(1)
    alike = [content for content in heavy if _form(content) == usual]
    return how([content for content in alike if _finite(content)] or alike, weighted_by)


def evaluations(
    replies: Iterable[Message], weighted_by: str
) -> tuple[list[RecordDict], list[Refused]]:
    """What replies to an evaluation hold, in the order of node ids, and which of them are of no
    use."""
    good, bad = {}, []
    for message in replies:
        node = message.metadata.src_node_id
        try:
            if message.has_error():
                raise Fault(
                    "failed", message.error.reason or "the client failed without saying why"
                )
            if len(message.content.metric_records) != 1:
                raise Fault("records", "a reply has exactly one MetricRecord")
            weight_of(message.content, weighted_by)
            good[node] = message.content
        except Fault as fault:
            bad.append(Refused(node, fault.reason, fault.detail))
    return [good[node] for node in sorted(good)], bad


def tally(
    metrics: MetricRecord | None,
    asked: Sequence[int],
    good: Sequence[Reply],
    bad: Sequence[Refused],
) -> MetricRecord:
    """The metrics with the round's counts: clients that counted, were dropped (and why), and failed
    or kept silent."""
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
    return MetricRecord({**(metrics or {}), **counts})


def _numbers(content: RecordDict) -> dict[str, Any]:
    (metrics,) = content.metric_records.values()
    return dict(metrics)


def _form(content: RecordDict) -> tuple[tuple[str, int], ...]:
    lengths = {
        key: len(value) if isinstance(value, list) else -1
        for key, value in _numbers(content).items()
    }
    return tuple(sorted(lengths.items()))


def _finite(content: RecordDict) -> bool:
    values = [
        x
        for value in _numbers(content).values()
        for x in (value if isinstance(value, list) else [value])
    ]
    return all(math.isfinite(x) for x in values)
