"""The folder of a meta-training: its header and settings, records, the checkpoint and the files of
φ.

Of several processes the first one writes; the others only read what a resumed run goes on from.
"""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import jax
import numpy as np

from laconic.errors import LaconicError
from laconic.federated.population import read_federated
from laconic.runs.compare import CHECKPOINT, RECORDS
from laconic.runs.folder import new_folder, read_run
from laconic.runs.meta_config import MetaConfig
from laconic.runs.meta_run import Best, MetaRun, kept
from laconic.runs.processes import by_the_first
from laconic.runs.publish import publish_run
from laconic.show.meta import write_learning_curve
from laconic.store import checkpoint
from laconic.store.runlog import RunLog, provenance, read, rewrite

ADDED = ("deepest",)  # settings that there were none of in earlier records


def begin_folder(config: MetaConfig, name: str, command: str | None, sources: list[str]) -> Path:
    """A new folder with the run's header; in processes after the first the one that was asked for,
    untouched."""

    def begin() -> Path:
        folder = new_folder(config.out, f"meta-{name}")
        RunLog(folder / RECORDS).append(
            "run",
            recipe=name,
            config={**asdict(config), "tasks": list(config.tasks), "out": str(folder)},
            command=command or f"laconic meta-train {name}",
            sources=sources,
            provenance=provenance(),
        )
        return folder

    return by_the_first(begin) or config.out or Path("runs")


def read_header(folder: Path) -> dict[str, Any]:
    """The first record of a folder, once it is known to be of a meta-training."""
    path, records = folder / RECORDS, read_run(folder)
    shape = {"config": dict, "sources": list, "provenance": dict}
    ours = bool(records) and records[0].get("kind") == "run"
    if not ours or not all(isinstance(records[0].get(key), kind) for key, kind in shape.items()):
        raise LaconicError(
            f"{path} holds no records of meta-training by this version; it cannot be resumed."
        )
    return records[0]


def read_config(header: dict[str, Any], folder: Path) -> MetaConfig:
    """The settings that a folder's run was begun with."""
    added = {name: getattr(MetaConfig(), name) for name in ADDED}
    values, known = (
        added | read_federated(header["config"], str(folder)),
        {f.name for f in fields(MetaConfig)},
    )
    if set(values) != known:
        wrong = ", ".join(sorted(set(values) ^ known))
        raise LaconicError(
            f"the settings in {folder} differ from this version's in {wrong}; start anew."
        )
    for name in known:
        default, value = getattr(MetaConfig(), name), values[name]
        kinds = {float: (float, int), tuple: list}.get(type(default), type(default))
        if default is not None and not isinstance(value, kinds):
            raise LaconicError(
                f"the settings in {folder} have a {name} of the wrong type; start anew."
            )
    return MetaConfig(**{**values, "tasks": tuple(values["tasks"]), "out": folder})


def append(run: MetaRun, kind: str, **values: Any) -> None:
    """Add a record."""
    by_the_first(lambda: RunLog(run.folder / RECORDS).append(kind, **values))


def save(run: MetaRun) -> None:
    """Progress since the last time as a record, then the checkpoint."""
    if run.done > run.recorded:
        fresh = slice(run.recorded, run.done)
        append(
            run,
            "progress",
            begin=run.recorded,
            end=run.done,
            loss=np.stack(run.losses[fresh]),
            norm=np.stack(run.norms[fresh]),
            seconds=round(run.seconds, 3),
        )
        run.recorded = run.done
    state = run.trainer.collect(run.state)
    tree = {
        "state": state,
        "best": run.best.theta,
        "loss": np.stack(run.losses),
        "norm": np.stack(run.norms),
    }
    meta = {"done": run.done, "seconds": run.seconds, "best_step": run.best.step}
    meta["best_score"] = run.best.score if np.isfinite(run.best.score) else None
    by_the_first(lambda: checkpoint.save(run.folder / CHECKPOINT, tree, meta))


def forget_after(folder: Path, done: int) -> None:
    """Drop the records of outer steps after `done`: a run that was killed goes on from there and
    writes them again."""

    def write() -> None:
        records = read(folder / RECORDS)
        kept = [record for record in records if record.get("end", record.get("step", 0)) <= done]
        if len(kept) < len(records):
            rewrite(folder / RECORDS, kept)

    by_the_first(write)


def restore(run: MetaRun) -> None:
    """Go back to where the folder's checkpoint is."""
    path = run.folder / CHECKPOINT
    meta = checkpoint.peek(path)
    history = jax.ShapeDtypeStruct((meta["done"], len(run.config.tasks)), np.float32)
    like = {"state": run.state, "best": run.best.theta, "loss": history, "norm": history}
    tree, meta = checkpoint.load(path, jax.eval_shape(lambda: like))
    run.state = run.trainer.place(tree["state"])
    value = float("inf") if meta["best_score"] is None else meta["best_score"]
    run.best = Best(kept(tree["best"]), value, meta["best_step"])
    run.losses, run.norms = list(np.asarray(tree["loss"])), list(np.asarray(tree["norm"]))
    run.done = run.recorded = meta["done"]
    run.seconds = meta["seconds"]


def publish(run: MetaRun) -> None:
    """The best and the latest φ as files that `laconic.load` reads."""

    def write() -> None:
        header = read(run.folder / RECORDS)[0]
        for which, theta, step in (
            ("best", run.best.theta, run.best.step),
            ("last", kept(run.state.theta), run.done),
        ):
            inners = run.trainer.inners
            publish_run(
                run.folder / f"{which}.safetensors",
                run.config,
                header,
                theta,
                step,
                run.seconds,
                inners,
            )

    by_the_first(write)


def finish(run: MetaRun) -> list[dict[str, Any]]:
    """φ, the summary and the learning curve → all records; none in processes after the first."""
    publish(run)

    def write() -> list[dict[str, Any]]:
        log, records = RunLog(run.folder / RECORDS), read(run.folder / RECORDS)
        if records[-1]["kind"] != "summary":
            rounds = run.done * run.trainer.rounds_per_step
            log.append(
                "summary",
                steps=run.done,
                seconds=round(run.seconds, 3),
                rounds_per_second=round(rounds / max(run.seconds, 1e-9), 1),
                best_step=run.best.step,
                best_score=run.best.score,
            )
            records = read(run.folder / RECORDS)
        write_learning_curve(records, run.folder / "learning-curve.png")
        return records

    return by_the_first(write) or []
