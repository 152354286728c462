"""From a meta-training run to a file others can load: the weights and a card that says how they
came about."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from laconic.errors import LaconicError
from laconic.federated.options import in_words
from laconic.meta.problem import Inner
from laconic.outer.learned import LearnedOptimizer, Theta
from laconic.runs.meta_config import MetaConfig, described
from laconic.store.records import RECORDS, read
from laconic.zoo import Card, load, publish

LICENSE = "Apache-2.0"


def publish_run(
    path: Path,
    config: MetaConfig,
    header: dict[str, Any],
    theta: Theta,
    step: int,
    seconds: float,
    inners: Sequence[Inner] | None = None,
) -> None:
    """Write φ after `step` outer steps of the run that `header` began; results and limits come
    later, if ever.

    `inners` are the config's, with the H that the data of populations came to.
    """
    learned, inners, origin = config.learned(), inners or config.inners(), header["provenance"]
    trained_on = [
        {
            "task": described(inner),
            "workers": inner.workers,
            "local_steps": inner.local_steps,
            "batch": inner.batch,
            "compress": inner.compress,
            "dropout": inner.dropout or inner.federated.dropout,
        }
        for inner in inners
    ]
    without = ""
    if isinstance(learned, LearnedOptimizer) and learned.blind:
        # zeros in φ are all that the file needs to say of it
        theta = learned.seen(theta)
        without = f" without {', '.join(learned.blind)}"
        learned = replace(learned, blind=())
    trained = ", ".join(map(described, inners))
    card = Card(
        name=path.stem,
        summary=f"{config.architecture}{without} meta-trained on {trained}",
        architecture=config.architecture,
        workers=learned.workers,
        local=asdict(inners[0].local),
        trained_on=trained_on,
        estimator=config.estimator,
        outer_steps=step,
        pairs=config.pairs,
        truncation=config.truncation,
        horizon=[config.shortest, config.longest],
        meta_seed=config.seed,
        seconds=round(seconds, 1),
        device=origin["device"]["kind"],
        commit=origin["commit"] or "unknown",
        versions=origin["versions"],
        results=[],
        limits=[],
        license=LICENSE,
        created=origin["started"][:10],
    )
    publish(path, learned, theta, card)


def ship(
    source: Path,
    path: Path,
    summary: str,
    results: list[dict[str, Any]],
    limits: list[str],
    before: Path | None = None,
) -> Card:
    """A run's φ under its final name (the file's), with measured results and known limits on its
    card.

    `before` is the φ that the run began from: its outer steps and seconds are counted in.
    """
    found = load(str(source))
    card = replace(found.card, name=path.stem, summary=summary, results=results, limits=limits)
    if before is not None:
        first = load(str(before)).card
        card = replace(
            card,
            outer_steps=card.outer_steps + first.outer_steps,
            seconds=card.seconds + first.seconds,
        )
    publish(path, found.learned, found.theta, card)
    return card


def results_of(folder: Path, label: str) -> list[dict[str, Any]]:
    """What a comparison's records say about one of its methods, for a card; `folder` lies below
    results/."""
    records = read(folder / RECORDS)
    config, summary = records[0]["config"], records[-1]
    row = next((r for r in summary["rows"] if r["label"] == label), None)
    if row is None:
        raise LaconicError(f"{folder} has no method labelled {label!r}.")
    sent = "" if config["compress"] == "dense" else f"messages {config['compress']}, "
    setting = (
        f"K = {config['workers']}, H = {config['local_steps']}, B = "
        f"{config['batch']}{in_words(config)}, {sent}"
        f"{config['rounds']} rounds, {config['seeds']} seeds from {config['first_seed']}"
    )
    target = summary["target_loss"]
    reference = summary["reference"]  # none where local SGD diverged or was left out
    measured = {
        **({} if target is None else {f"rounds to train loss {target:g}": row["rounds_to_target"]}),
        **({} if reference is None else {f"speedup over {reference}": row["speedup"]}),
        "final train loss": row["final_train"],
        **_heldout(_method(records, label)["heldout"]),
        "seeds that diverged": row["diverged"],
    }
    rounded = {
        k: v if v is None or isinstance(v, int) else float(f"{v:.4g}") for k, v in measured.items()
    }
    record = "/".join([*_below_results(folder), RECORDS])
    return [
        {
            "task": config["task"],
            "setting": setting,
            "metric": metric,
            "value": value,
            "record": record,
        }
        for metric, value in rounded.items()
    ]


def _heldout(curves: dict[str, Any]) -> dict[str, float]:
    """The best of the mean over seeds: of accuracy, else of loss; nothing without test data."""
    for metric, best in (("accuracy", np.max), ("loss", np.min)):
        if metric in curves:
            curve = np.mean(np.asarray(curves[metric], float), axis=0)
            return {f"best test {metric} over rounds": float(best(curve))}
    return {}


def _method(records: list[dict[str, Any]], label: str) -> dict[str, Any]:
    return next(r for r in records if r["kind"] == "method" and r["label"] == label)


def _below_results(folder: Path) -> tuple[str, ...]:
    parts = folder.resolve().parts
    after = [i + 1 for i, part in enumerate(parts[:-1]) if part == "results"]
    return parts[after[-1] :] if after else parts[-1:]
