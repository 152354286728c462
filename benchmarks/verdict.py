"""What a fault campaign found: its goals, tables for the terminal, and the page of the docs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

ONE, LINK, GROUP = 8.0, 15.0, 30.0  # seconds without a commit
CLOSE = 2.0  # seconds that a told gap may be shorter than the one seen
FAR = 0.05  # how far a struck training's loss may be from the calm one's

Record = dict[str, Any]


class Goal(NamedTuple):
    """Something asked for, what was found, and whether that is enough."""

    name: str
    found: str
    passed: bool


# --- blows ----------------------------------------------------------------------------------------


def blow_goals(trainings: Sequence[Record]) -> list[Goal]:
    """The goals of the blows, over all trainings."""
    blows = all_blows(trainings)
    ended = sum(one["ended"] for one in trainings)
    goals = [
        Goal("all trainings end", f"{ended} of {len(trainings)}", ended == len(trainings)),
        _none("no divergence", trainings, "rounds_with_two_states", "rounds with two states"),
        _alike(trainings),
        _none("no round missing from the records", trainings, "rounds_missing", "missing"),
        _none("no round twice in the records", trainings, "rounds_double", "double"),
        _none("a minority never commits", trainings, "minority_rounds", "rounds by a minority"),
    ]
    for limit, what in ((ONE, "a majority left at work, or the Lighthouse"), (GROUP, "the group")):
        of_it = [blow["gap_s"] for blow in blows if blow["limit"] == limit]
        worst = max(of_it, default=0.0)
        over = sum(gap > limit for gap in of_it)
        found = f"longest {worst:.1f} s, over it {over} of {len(of_it)}"
        goals.append(Goal(f"gap at most {limit:g} s ({what})", found, not over))
    return [*goals, _truth(trainings), _losses(trainings)]


def _none(name: str, trainings: Sequence[Record], column: str, what: str) -> Goal:
    count = sum(len(one[column]) for one in trainings)
    return Goal(name, f"{count} {what}", count == 0)


def _alike(trainings: Sequence[Record]) -> Goal:
    alike = sum(len(one["final_states"]) == 1 for one in trainings)
    found = f"in {alike} of {len(trainings)}"
    return Goal("all workers end with one state", found, alike == len(trainings))


def _truth(trainings: Sequence[Record]) -> Goal:
    """Rounds that died before they were written may make the told gap longer, nothing shorter."""
    told = [one["told_gap_s"] for one in trainings]
    pairs = zip(told, (one["seen_gap_s"] for one in trainings), strict=True)
    true = sum(gap is not None and gap >= seen - CLOSE for gap, seen in pairs)
    found = f"in {true} of {len(trainings)}"
    return Goal("the records tell the longest gap", found, true == len(trainings))


def _losses(trainings: Sequence[Record]) -> Goal:
    apart = [_apart(one) for one in trainings]
    worst = max((abs(one) for one in apart if one is not None), default=0.0)
    found = f"furthest {100 * worst:.2f} %"
    passed = None not in apart and worst <= FAR
    return Goal(f"loss within {100 * FAR:g} % of the calm training's", found, passed)


def _apart(one: Record) -> float | None:
    if not one["loss"] or not one["calm_loss"]:
        return None
    return one["loss"] / one["calm_loss"] - 1


def all_blows(trainings: Sequence[Record]) -> list[Record]:
    """The blows of all trainings."""
    return [blow for one in trainings for blow in one["blows"]]


def blow_rows(trainings: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows by kind of blow and by what may be expected of it."""
    blows = all_blows(trainings)
    rows = []
    for kind, limit in sorted({(blow["kind"], blow["limit"]) for blow in blows}):
        of_it = [blow for blow in blows if (blow["kind"], blow["limit"]) == (kind, limit)]
        gaps = sorted(blow["gap_s"] for blow in of_it)
        over = sum(gap > limit for gap in gaps)
        middle = gaps[len(gaps) // 2]
        rows.append([kind, f"{limit:g}", str(len(of_it)), f"{middle:.1f}", f"{gaps[-1]:.1f}"])
        rows[-1].append(str(over) if over else "–")
    return ["blow", "limit s", "blows", "median gap s", "longest gap s", "over"], rows


def training_rows(trainings: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows by training."""
    heads = ["training", "blows", "rounds", "seconds", "launches", "processes", "gap s", "told s"]
    heads += ["missing", "double", "two states", "by a minority", "loss", "calm", "load"]
    rows = [
        [
            str(one["training"]),
            str(len(one["blows"])),
            str(one["rounds"]),
            f"{one['seconds']:.0f}",
            str(one["launches"]),
            str(one["processes"]),
            f"{one['seen_gap_s']:.1f}",
            _number(one["told_gap_s"], ".1f"),
            *(str(len(one[name])) for name in ("rounds_missing", "rounds_double")),
            *(str(len(one[name])) for name in ("rounds_with_two_states", "minority_rounds")),
            _number(one["loss"], ".4f"),
            _number(one["calm_loss"], ".4f"),
            f"{one['load']:.0f}",
        ]
        for one in trainings
    ]
    return heads, rows


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def blow_table(trainings: Sequence[Record]) -> str:
    """Both tables, for a terminal."""
    return f"\n{plain_table(*blow_rows(trainings))}\n\n{plain_table(*training_rows(trainings))}\n"


# --- networks -------------------------------------------------------------------------------------


def network_goals(scenarios: Sequence[Record]) -> list[Goal]:
    """The goals of the scenarios that were run."""
    goals = [
        _none("no divergence", scenarios, "rounds_with_two_states", "rounds with two states"),
        _none("a minority never commits", scenarios, "minority_rounds", "rounds by a minority"),
    ]
    for one in scenarios:
        if one["longest"] is not None:
            found, good = f"{one['longest_gap_s']} s", one["longest_gap_s"] <= one["longest"]
            goals.append(Goal(f"{one['says']}: gap at most {one['longest']:g} s", found, good))
        if one["least"] is not None:
            name = f"{one['says']}: {one['least']} commits in {one['seconds']:.0f} s"
            goals.append(Goal(name, str(one["commits"]), one["commits"] >= one["least"]))
        if one["back"] is not None:
            name = f"{one['says']}: back at most {one['back']:g} s after the repair"
            took = one["back_after_s"]
            found = "not back while watched" if took is None else f"{took} s"
            goals.append(Goal(name, found, took is not None and took <= one["back"]))
    return goals


def network_rows(scenarios: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows by scenario."""
    heads = ["network", "seconds", "commits", "median round s", "longest gap s", "back after s"]
    heads += ["two states", "by a minority", "packets lost", "load"]
    rows = []
    for one in scenarios:
        packets = one["packets"]
        lost = packets["dropped"] / max(1, packets["dropped"] + packets["passed"])
        rows.append(
            [
                one["says"],
                f"{one['seconds']:.0f}",
                str(one["commits"]),
                _number(one["median_round_s"], ".2f"),
                f"{one['longest_gap_s']:.1f}",
                _number(one["back_after_s"], ".1f"),
                str(len(one["rounds_with_two_states"])),
                str(len(one["minority_rounds"])),
                f"{100 * lost:.1f} %",
                f"{one['load']:.0f}",
            ]
        )
    return heads, rows


def network_table(scenarios: Sequence[Record]) -> str:
    """The table, for a terminal."""
    return f"\n{plain_table(*network_rows(scenarios))}\n"


# --- recovery times -----------------------------------------------------------------------------

# What happens, as docs/distributed.md says it, and the blows that are it: kinds and their limit.
FAULTS: dict[str, tuple[tuple[str, ...], float]] = {
    "a worker is killed": (("kill one worker",), ONE),
    "a worker is paused": (("stop one worker",), ONE),
    "fewer are left": (("kill several workers", "stop several workers"), GROUP),
    "the Lighthouse is killed, or cannot be reached": (("kill the Lighthouse",), ONE),
    "all workers die": (("kill all workers",), GROUP),
    "`launch` dies": (("kill the supervisor", "kill everyone"), GROUP),
}
# The same for scenarios: the longest gap of each.
NETWORKS: dict[str, tuple[str, ...]] = {
    "a worker vanishes with its machine or its network": ("vanishing",),
    "packets get lost: 1 %, 5 %, 10 %": ("loss-1", "loss-5", "loss-10"),
    "a link between two workers dies that both reach the Lighthouse": ("link-cut", "one-way-cut"),
}


def recoveries(blows: Record, network: Record) -> dict[str, str]:
    """By what happens, the seconds without a commit: the median and the longest of the blows, or
    that of each scenario. After a split, those from its end on."""
    found, all_of_them = {}, all_blows(blows["trainings"])
    for name, (kinds, limit) in FAULTS.items():
        of_it = [b for b in all_of_them if b["kind"] in kinds and b["limit"] == limit]
        gaps = sorted(blow["gap_s"] for blow in of_it)
        found[name] = f"{gaps[len(gaps) // 2]:.1f} s; {gaps[-1]:.1f} s of {len(gaps)}"
    ran = {one["scenario"]: one for one in network["scenarios_run"]}
    for name, scenarios in NETWORKS.items():
        found[name] = ", ".join(f"{ran[one]['longest_gap_s']:.1f} s" for one in scenarios)
    splits = (ran[name]["back_after_s"] for name in ("partition-half", "partition-one"))
    back = ", ".join(_number(seconds, ".1f") for seconds in splits)
    found["the network splits"] = f"{back} s after it is whole"
    return found


# --- text -----------------------------------------------------------------------------------------


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first to the left."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for the docs."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(found: dict[str, Record]) -> str:
    """The page of the docs, from the records there are."""
    parts = [PAGE_HEAD]
    if "blows" in found:
        one = found["blows"]
        trainings = one["trainings"]
        blows = all_blows(trainings)
        minutes = sum(training["seconds"] for training in trainings) / 60
        parts += [
            "## Blows to processes\n",
            f"{len(blows)} blows in {minutes:.0f} minutes to {len(trainings)} trainings of "
            f"{one['options']['rounds']:,} rounds with {one['options']['workers']} workers, "
            f"{_where(one)}. `limit` is how long a gap may be: {ONE:g} s while a majority is left "
            f"at work, {GROUP:g} s otherwise.\n",
            markdown_table(*blow_rows(trainings)) + "\n",
            "Each training, as the judge saw it (`gap`) and as its own records tell it (`told`); "
            "`loss` on held-out data, beside the undisturbed training's:\n",
            markdown_table(*training_rows(trainings)) + "\n",
            _goals(one),
        ]
    if "network" in found:
        one = found["network"]
        parts += [
            "## Bad networks\n",
            f"Four workers, each in a network namespace of its own, {_where(one)}. The gap counts "
            "from the fault's beginning to the end of the watch; `back after` from the network's "
            "repair to a majority's next commit.\n",
            markdown_table(*network_rows(one["scenarios_run"])) + "\n",
            _goals(one),
        ]
    return "\n".join(parts)


PAGE_HEAD = """\
# Faults on purpose

What real trainings do when their processes are killed and stopped and their network is bad, as a
judge outside them sees it: `python benchmarks/campaign.py blows` and, as root,
`python benchmarks/campaign.py network`. The judge follows what workers write at each commit and
takes times by its own clock. A gap is a time in which no worker commits. Default settings, but for
the number of restarts. The machine did other work too: `load` is how many processes wanted one of
its cores, in the mean of the last five minutes.
[Real processes](../distributed.md#when-something-fails) says what is meant to happen.
"""


def _where(record: Record) -> str:
    commits = ", ".join((commit or "unknown")[:9] for commit in record["commits"])
    load = f"{min(record['load']):.0f} to {max(record['load']):.0f}"
    return f"on {record['host_cpus']} cores with a load of {load}, commit {commits}"


def _goals(record: Record) -> str:
    rows = [
        [goal["name"], goal["found"], "met" if goal["passed"] else "**missed**"]
        for goal in record["goals"]
    ]
    return markdown_table(["goal", "found", "verdict"], rows) + "\n"
