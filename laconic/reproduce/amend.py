"""Other methods for a comparison that has begun: what is done stays, and only what is new or changed is run.

Each method that stays says in its own record where and when it was run; one whose values are no longer the same moves
to `replaced.jsonl`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from laconic.compress import parse_compressor
from laconic.errors import LaconicError
from laconic.evaluate.compare import CHECKPOINT, RECORDS
from laconic.evaluate.panels import of_kind
from laconic.recipes.config import CompareConfig, command_of
from laconic.recipes.methods import parse_method
from laconic.reproduce.folder import bare
from laconic.store.runlog import plain, provenance, read, rewrite

REPLACED = "replaced.jsonl"
Record = dict[str, Any]


def amend(folder: Path, config: CompareConfig) -> str | None:
    """Give the comparison in `folder` the methods of `config` → what that comes to, None if it has them.

    A method that is done and not among them, or one under way, is refused: nothing gets lost by the way.
    """
    header, *rest = read(folder / RECORDS)
    theirs = {bare(spec) for spec in header["config"]["optimizers"]}
    if list(map(bare, header["config"]["optimizers"])) == list(map(bare, config.optimizers)):
        return None
    compressor = parse_compressor(config.compress)
    ours = {parse_method(spec, config.workers, compressor).label: bare(spec) for spec in config.optimizers}
    done = [{**method, "provenance": _origin(method, header)} for method in of_kind(rest, "method")]
    gone = [method["label"] for method in done if method["label"] not in ours]
    if gone:
        raise LaconicError(
            f"{folder} was begun with another optimizers, among them {', '.join(gone)}; move it away to have it run "
            "anew without, or choose another --out."
        )
    if (folder / CHECKPOINT).exists():
        raise LaconicError(
            f"{folder} was begun with another optimizers and has one of them under way; finish that first, with "
            f"laconic compare --resume {folder}, or delete {CHECKPOINT} there."
        )
    stays = [method for method in done if ours[method["label"]] in theirs]
    _set_aside(folder, [method for method in done if method not in stays])
    config = replace(config, out=folder, local_steps=header["config"]["local_steps"])
    about = {"config": plain(config), "command": command_of(config), "provenance": provenance()}
    rewrite(folder / RECORDS, [{**header, **about}, *stays])
    new = [label for label in ours if label not in {method["label"] for method in stays}]
    kept = ", ".join(method["label"] for method in stays) or "nothing"
    return f"kept in {folder}: {kept}; to be run: {', '.join(new) or 'nothing'}."


def _set_aside(folder: Path, methods: list[Record]) -> None:
    before = read(folder / REPLACED) if (folder / REPLACED).exists() else []
    more = [method for method in methods if method not in before]  # there already if killed before the rest
    if more:
        rewrite(folder / REPLACED, [*before, *more])


def _origin(method: Record, header: Record) -> Record:
    return method.get("provenance", header["provenance"])
