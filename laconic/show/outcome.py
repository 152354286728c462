"""What a comparison comes to: the row of every method, from its record and the definitions in
`metrics`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from laconic.show import metrics
from laconic.show.timing import Link, Traffic, seconds_to_loss


def curves_of(record: dict[str, Any]) -> np.ndarray:
    """A method record's train loss [S, T], with NaN where it was not finite."""
    return np.array(record["train"], dtype=float)


def summarise(
    methods: Sequence[dict[str, Any]], target_loss: float | None = None, link: Link | None = None
) -> dict[str, Any]:
    """The table: every figure from the records and the definitions in `metrics`."""
    reference = reference_of(methods)
    if target_loss is None and reference is not None:
        target_loss = metrics.minimum_loss(curves_of(reference))
    rows = [_row(record, reference, target_loss, link) for record in methods]
    return {"target_loss": target_loss, "reference": reference and reference["label"], "rows": rows}


def reference_of(methods: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Local SGD (or FedAvg, its other name) with dense messages, the yardstick; of several the
    lowest loss."""
    plain = [
        r for r in methods if r["method"] in ("local-sgd", "fedavg") and r["compressor"] == "dense"
    ]
    candidates = [r for r in plain if not any(r["diverged"])]
    return min(candidates, key=lambda r: metrics.minimum_loss(curves_of(r)), default=None)


def _row(
    record: dict[str, Any], reference: Any, target: float | None, link: Link | None
) -> dict[str, Any]:
    curves = curves_of(record)
    last = {
        name: np.array(values, dtype=float)[:, -1] for name, values in record["heldout"].items()
    }
    last = (
        {} if any(record["diverged"]) else last
    )  # the mean would be over weights that are no longer numbers
    rounds = None if target is None else metrics.rounds_to_loss(curves, target)
    traffic = Traffic(**record["traffic"])
    seconds = None
    if rounds is not None and link is not None and record["step_seconds"] is not None:
        seconds = seconds_to_loss(
            rounds, link, traffic, record["local_steps"], record["step_seconds"]
        )
    return {
        "label": record["label"],
        "final_train": metrics.final_loss(curves),
        "final_train_error": _last_error(curves),
        "test_loss": _mean(last.get("loss")),
        "test_accuracy": _mean(last.get("accuracy")),
        "rounds_to_target": rounds,
        "speedup": None if reference is None else metrics.speedup(curves_of(reference), curves),
        "speedup_error": None
        if reference is None
        else metrics.speedup_error(curves_of(reference), curves),
        "sent_megabytes": traffic.sent_bits * curves.shape[1] / 8e6,
        "received_megabytes": traffic.received_bits * curves.shape[1] / 8e6,
        "seconds_to_target": seconds,
        "diverged": int(np.sum(record["diverged"])),
    }


def _last_error(curves: np.ndarray) -> float:
    smooth = np.stack([metrics.smoothed(curve) for curve in curves])
    return float(metrics.standard_error(smooth)[-1])


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(np.mean(values))
