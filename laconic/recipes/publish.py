"""From a meta-training run to a file others can load: the weights and a card that says how they came about."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from laconic.outer.learned import Theta
from laconic.recipes.meta_config import MetaConfig
from laconic.zoo import Card, load, publish

LICENSE = "Apache-2.0"


def publish_run(
    path: Path, config: MetaConfig, header: dict[str, Any], theta: Theta, step: int, seconds: float
) -> None:
    """Write φ after `step` outer steps of the run that `header` began; results and limits come later, if ever."""
    learned, inners, origin = config.learned(), config.inners(), header["provenance"]
    trained_on = [
        {
            "task": inner.task,
            "workers": inner.workers,
            "local_steps": inner.local_steps,
            "batch": inner.batch,
            "compress": inner.compress,
            "dropout": inner.dropout,
        }
        for inner in inners
    ]
    card = Card(
        name=path.stem,
        summary=f"{config.architecture} meta-trained on {', '.join(inner.task for inner in inners)}",
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


def ship(source: Path, path: Path, summary: str, results: list[dict[str, Any]], limits: list[str]) -> Card:
    """A run's φ under its final name (the file's), with measured results and known limits on its card."""
    found = load(str(source))
    card = replace(found.card, name=path.stem, summary=summary, results=results, limits=limits)
    publish(path, found.learned, found.theta, card)
    return card
