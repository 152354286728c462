"""What is there already: published optimizers that fit a setting, and sweeps on record."""

from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.reproduce.folder import decided_by_data, with_defaults
from laconic.runs.meta_config import MetaConfig, described
from laconic.runs.sweep import SweepConfig
from laconic.store.archive import record_files
from laconic.store.records import plain, read
from laconic.zoo import cards

SWEEPS_FOLDER = Path("results") / "sweeps"
# what two sweeps must agree in
SETTING = (
    "task",
    "method",
    "grid",
    "points",
    "workers",
    "local_steps",
    "batch",
    "rounds",
    "federated",
    "compress",
)


def matches(name: str, config: MetaConfig) -> bool:
    """Whether the published optimizer of that name was meta-trained on the tasks, K, H, … of a
    config."""
    card = cards().get(name)
    if card is None or card.architecture != config.architecture:
        return False
    theirs = [
        tuple(row[key] for key in ("task", "workers", "compress", "dropout"))
        for row in card.trained_on
    ]
    ours = [
        (described(inner), inner.workers, inner.compress, inner.dropout)
        for inner in config.inners()
    ]
    steps = zip(
        config.inners(), card.trained_on, strict=False
    )  # with a population the data decides them
    return theirs == ours and all(
        i.federated.active or i.local_steps == row["local_steps"] for i, row in steps
    )


def find_sweep(config: SweepConfig, root: Path = SWEEPS_FOLDER) -> list[dict[str, Any]] | None:
    """The records of a finished sweep below `root` with the same setting, if there is one."""
    for path in record_files(root):
        try:
            records = read(path)
        except LaconicError:  # somebody else's file is no reason to fail
            continue
        kinds = [record.get("kind") for record in records]
        if kinds[:1] == ["run"] and kinds[-1] == "ranking":
            theirs, ours = with_defaults(records[0]["config"], config), plain(config)
            decided = decided_by_data(config)
            if all(theirs[key] == ours[key] for key in SETTING if key not in decided):
                return records
    return None
