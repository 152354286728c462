"""Other methods for a comparison that has begun: what is done stays, and only what is new or
changed is run.

A method that is run later than the others says so in its own record, as in any comparison that is
taken up again; one whose values, or whose published optimizer, are no longer the same moves to
`replaced.jsonl`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.methods import parse_method
from laconic.reproduce.folder import bare
from laconic.runs.compare import CompareConfig, check
from laconic.runs.folder import CHECKPOINT, command_line, is_another
from laconic.show.curves import of_kind
from laconic.store import atomic
from laconic.store.records import RECORDS, plain, read, rewrite

REPLACED = "replaced.jsonl"
Record = dict[str, Any]


def amend(folder: Path, config: CompareConfig) -> str | None:
    """Give the comparison in `folder` the methods of `config` → what that comes to, None if it has
    them.

    A method that is done and not among them, one under way, and what could not be run are refused,
    before anything is written.
    """
    header, *rest = read(folder / RECORDS, gaps=True)
    theirs = [bare(spec) for spec in header["config"]["optimizers"]]
    done = of_kind(rest, "method")
    others = _run_by_others(done, config)
    if theirs == [bare(spec) for spec in config.optimizers] and not others:
        return None
    ours = dict(zip(check(config, folder, header), map(bare, config.optimizers), strict=True))
    gone = [method["label"] for method in done if method["label"] not in ours]
    if gone:
        raise LaconicError(
            f"{folder} was begun with other optimizers, among them {', '.join(gone)}; move it away "
            "to have it run "
            "anew without, or choose another --out."
        )
    if (folder / CHECKPOINT).exists():
        why = (
            f"has {', '.join(sorted(others))} by others of that name"
            if others
            else "was begun with other optimizers"
        )
        raise LaconicError(
            f"{folder} {why} and one of its methods under way; finish that first, with "
            f"laconic compare --resume {folder}, or delete {CHECKPOINT} there."
        )
    stays = [
        method
        for method in done
        if ours[method["label"]] in theirs and method["label"] not in others
    ]
    _set_aside(folder, [method for method in done if method not in stays], header)
    command = command_line("compare", replace(config, out=folder))
    config = replace(config, out=folder, local_steps=header["config"]["local_steps"])
    rewrite(folder / RECORDS, [{**header, "config": plain(config), "command": command}, *stays])
    atomic.write_text(folder / "command.txt", command + "\n")
    labels = [method["label"] for method in stays]
    new = [label for label in ours if label not in labels]
    return (
        f"kept in {folder}: {', '.join(labels) or 'nothing'}; to be run: "
        f"{', '.join(new) or 'nothing'}."
    )


def _run_by_others(done: list[Record], config: CompareConfig) -> set[str]:
    """The labels of methods that are done by another optimizer than has its name now."""
    known = {record["label"]: record for record in done if record.get("optimizer_sha256")}
    now = [parse_method(spec, config.workers) for spec in config.optimizers] if known else []
    return {
        method.label
        for method in now
        if is_another(known.get(method.label, {}), method.optimizer_sha256)
    }


def _set_aside(folder: Path, methods: list[Record], header: Record) -> None:
    """Keep what is no longer part of the comparison, with what made it."""
    before = read(folder / REPLACED) if (folder / REPLACED).exists() else []
    stamped = [
        {**method, "provenance": method.get("provenance", header["provenance"])}
        for method in methods
    ]
    more = [
        method for method in stamped if method not in before
    ]  # there already if killed before the rest
    if more:
        rewrite(folder / REPLACED, [*before, *more])
