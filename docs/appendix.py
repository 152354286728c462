"""Write the appendix pages of docs/results/ from the records: `python docs/appendix.py`.

Every comparison, sweep and experiment on record has its whole table on one of these pages. A test
writes the pages again and compares.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laconic.reproduce.outcome import read_outcome, tables
from laconic.reproduce.panel_show import COLUMNS
from laconic.show.summary import summary_table
from laconic.show.sweep import ranking_text
from laconic.show.table import count, with_error
from laconic.store.records import read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = ROOT / "docs" / "results"
NOTE = "<!-- Written by docs/appendix.py from the records in results/; do not edit. -->"
GENERAL_GRIDS = (
    "cifar10-cnn-slowmo",
    "cifar10-mlp2-slowmo",
    "fmnist-cnn-slowmo",
    "fmnist-mlp2-slowmo",
    "fmnist-mlp3-slowmo",
    "imagenet32-mlp2-slowmo",
)


def folders(pattern: str) -> list[Path]:
    """The folders of results/ that match the pattern and hold records."""
    found = {path.parent for path in RESULTS.glob(f"{pattern}/records.jsonl*")}
    return sorted(found)


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The records of one folder."""
    return read(folder / "records.jsonl")


def command_of(record: dict[str, Any]) -> str:
    """The command of a run as it would be typed; some records hold a Python tuple in it."""
    typed = re.sub(r"\('(.*?)',?\)", lambda m: m.group(1).replace("', '", " "), record["command"])
    return re.sub(r" --out \S+", "", typed).replace("carry/phi/", "…/")


def setting_of(record: dict[str, Any]) -> str:
    """Workers, local steps, batch, rounds, seeds and device in one line."""
    config = record["config"]
    first = config.get("first_seed", 0)
    seeds = (
        f"seeds {first}–{first + config['seeds'] - 1}" if config["seeds"] > 1 else f"seed {first}"
    )
    numbers = f"K = {config['workers']}, H = {config['local_steps']}, B = {config['batch']}"
    device = record["provenance"]["device"]["kind"]
    return f"{numbers}, {config['rounds']:,} rounds, {seeds}, {device}."


def comparison(folder: Path) -> str:
    """A comparison: its command, its setting and the table of its summary."""
    records = records_of(folder)
    name = folder.relative_to(RESULTS).as_posix()
    command = f"```\n{command_of(records[0])}\n```"
    parts = [
        f"## {name}",
        setting_of(records[0]),
        command,
        summary_table(records).markdown().strip(),
    ]
    return "\n\n".join(parts)


def sweep(folder: Path) -> str:
    """A sweep: its setting and its best ten points."""
    records = records_of(folder)
    return "\n\n".join([f"## {folder.name}", setting_of(records[0]), ranking_text(records).strip()])


def experiment_tables(folder: Path) -> list[str]:
    """The tables of an experiment of the paper as Markdown, made from its last record."""
    outcome = read_outcome(folder, records_of(folder)[-1])
    found = tables(outcome.experiment, outcome.record["rows"])
    return [markdown(table.headers, table.rows) for table in found]


def experiment_section(folder: Path) -> str:
    """An experiment of the paper: its command and its tables."""
    last = records_of(folder)[-1]
    command = f"`laconic reproduce {last['name']} --scale {last['scale']}`"
    return "\n\n".join(
        [
            f"## {last['title']}",
            f"{command}, `results/reproduce/{folder.name}`.",
            *experiment_tables(folder),
        ]
    )


def attacks() -> str:
    """A row for each mean of the replies: test accuracy in % under every attack. It stands in
    docs/flower.md."""
    record = json.loads((RESULTS / "benchmarks" / "attacks-cpu.json").read_text())
    cells: dict[str, list[str]] = {}
    heads = {}
    for row in record["rows"]:
        count = 100 * row["attackers"] // record["clients"]
        heads[f"{row['attack']}, {count} %" if count else "no attack"] = None
        mean = sum(row["accuracy"]) / len(row["accuracy"])
        cells.setdefault(row["mean"], []).append(f"{100 * mean:.1f}")
    rows = [[f"`{name}`" if name[0].islower() else name, *row] for name, row in cells.items()]
    return markdown(["`aggregate`", *heads], rows)


def meta_trainings() -> str:
    """A row for every meta-training on record."""
    rows = []
    for folder in folders("meta/*"):
        first, *_, last = records_of(folder)
        config = first["config"]
        begin = config["init"] or "–"
        clip = config.get("local_clip")
        if last["kind"] == "summary":
            steps = f"{config['steps']:,}"
            best = [f"{last['best_step']:,}", f"{last['best_score']:.4f}"]
        else:
            steps = f"{last['end']:,} (stopped)"
            best = ["–", "–"]
        numbers = [f"{config['pairs']}", f"{clip:g}" if clip else "–", f"{last['seconds']:,.0f}"]
        rows.append([folder.name, re.sub("^carry/phi/", "…/", begin), steps, *numbers, *best])
    headers = ["meta-training", "begins from", "outer steps", "pairs", "local clip", "seconds"]
    return markdown([*headers, "best φ at step", "its score"], rows)


def beside_the_paper() -> str:
    """Our numbers beside the paper's: better or worse where our 95 % interval and two of the
    paper's errors leave no overlap. It stands in docs/results/not-reproduced.md."""
    rows = []
    for name in ("table-speedup", "table-rounds", "fig-large"):
        folder = RESULTS / "reproduce" / f"{name}-full"
        outcome = read_outcome(folder, records_of(folder)[-1])
        titles = {part.name: part.title for part in outcome.experiment.parts}
        for row in outcome.record["rows"]:
            learned_or_tuned = row["label"] not in ("Local SGD", "SGD", "SGD (K·H steps)")
            if row.get("in_paper") and row["panel"] in titles and learned_or_tuned:
                unit = "×" if row["metric"] == "speedup" else ""
                theirs = with_error(row["paper"], row["paper_error"], unit)
                theirs = theirs if unit else count(row["paper"])
                own = COLUMNS[row["metric"]].text(row["ours"], row.get("interval"))
                what = f"{titles[row['panel']]}: {'speedup' if unit else 'rounds to 0.2'}"
                rows.append([what, row["label"], own, theirs, _judged(row)])
    return markdown(["setting", "method", "here", "the paper", "here it is"], rows)


def _judged(row: dict[str, Any]) -> str:
    if row["ours"] is None or row["paper"] is None:
        return "worse" if row["paper"] is not None else "–"
    low, high = (row["ours"] if end is None else end for end in row["interval"])
    reach = 2 * (row["paper_error"] or 0.0)
    if low <= row["paper"] + reach and high >= row["paper"] - reach:
        return "as good"
    more = row["ours"] > row["paper"]
    return "better" if more == (row["metric"] == "speedup") else "worse"


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(title: str, intro: str, sections: Sequence[str]) -> str:
    """A whole page."""
    return "\n\n".join([f"# {title}", NOTE, intro, *sections]) + "\n"


def pages() -> dict[str, str]:
    """The text of every appendix page, by file name."""
    compared = [path for name in ("*", "missing-workers/*") for path in folders(name)]
    general = [path for path in compared if path.name.startswith("general-")]
    others = [path for path in compared if path not in general]
    swept = folders("sweeps/*")
    federated = [path for path in swept if "-alpha" in path.name]
    paired = [path for path in swept if path.name in GENERAL_GRIDS]
    grids = [path for path in swept if path not in federated and path not in paired]
    return {
        "appendix-comparisons.md": page(
            "Appendix: comparisons",
            "Every comparison on record, by its folder in `results/`. Bold is best; ± is a standard"
            " error over seeds, and brackets hold a 95 % interval over seeds. Numbers after a name"
            " are SlowMo's γ / α / β, FedAdam's γ / η, or a learning rate; point at a name for the"
            " whole word. \\* marks numbers chosen, or an optimizer meta-trained, on the task"
            " itself.",
            [comparison(path) for path in others],
        ),
        "appendix-general.md": page(
            "Appendix: the general optimizer",
            "The comparisons behind [one optimizer for several tasks](general.md), then the grids"
            " in which SlowMo was tuned on these tasks.",
            [comparison(path) for path in general] + [sweep(path) for path in paired],
        ),
        "appendix-grids.md": page(
            "Appendix: grids of the baselines",
            "The best ten points of every grid that tuned a baseline, by their folder in"
            " `results/sweeps/`.",
            [sweep(path) for path in grids],
        ),
        "appendix-federated.md": page(
            "Appendix: grids of the federated methods",
            "The best ten points of every grid behind [the federated comparison](federated.md),"
            " ranked by validation loss after the last round: 400 clients, 10 of them a round,"
            " B = 20.",
            [sweep(path) for path in federated],
        ),
        "appendix-meta-training.md": page(
            "Appendix: meta-trainings",
            "Every meta-training on record, by its folder in `results/meta/`; one H200, but for"
            " `lopt-a-digits` and `lopt-r-…`, on two CPU cores. Some shared the card with other"
            " programs. *Score* is the mean loss on held-out seeds in units of ln(classes), of"
            " `lopt-r-…` the logarithm of losses over nominal Nesterov's, on held-out tasks, with"
            " the end counting most; lower is better.",
            [meta_trainings()],
        ),
        "appendix-experiments.md": page(
            "Appendix: the paper's experiments in full",
            "Every experiment of the paper that was run at full scale, with the paper's numbers"
            " beside. Empty cells: the paper gives no number, or the metric was not recorded.",
            [experiment_section(path) for path in folders("reproduce/*-full")],
        ),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (PAGES / name).write_text(text)
