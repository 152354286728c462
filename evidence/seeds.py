"""What the seeds of each record were for, and whether a headline stands on seeds that something was
tuned or chosen on.

A record says it itself (`seeds_for`); of older ones a sweep's seeds are for tuning, and the
comparisons that something was chosen by are named here.
"""

from evidence.records import RESULTS, Record, read

REPORT, CHOICE, TUNING = "report", "choice", "tuning"
# Comparisons from before records said it, by which a checkpoint, a setting or a recipe was chosen.
CHOSEN_BY = {
    "fmnist-choice": "which φ of a chain is published",
    "fmnist-clip-h8": "whether workers clip at H = 8",
    "fmnist-clip-h16": "whether workers clip at H = 16",
    "digits-lopt-r-first": "the recipe of lopt-r",
    "digits-lopt-r-second": "the recipe of lopt-r",
}
HEADLINES = (
    "fmnist-fresh",
    "fmnist-learned",
    "fmnist-valid",
    "digits-lopt-r",
    *(f"reproduce/{name}-full" for name in ("table-speedup", "table-rounds", "fig-ablation")),
    *(f"reproduce/{name}-full" for name in ("fig-compress", "fig-h-transfer", "fig-large")),
    *(f"reproduce/{name}-full" for name in ("fig-validation", "fig-workers", "fig-clipped")),
    *(f"reproduce/{name}-full" for name in ("fig-ablation-deltas", "fig-large-h", "fig-general")),
)
# Headlines that stand on such seeds all the same, each with the words that say so on its page.
TOLD = {
    "reproduce/fig-general-full/panels/small-digits": (
        "docs/suite.md",
        "Earlier recipes of `lopt-r` were looked at on seeds 100–104 of the digits",
    ),
    **{
        f"reproduce/table-rounds-full/panels/h{H}": (
            "docs/results/local-steps.md",
            "That workers clip was chosen on these ten seeds",
        )
        for H in (8, 16)
    },
}
SETTING = ("task", "workers", "local_steps")


def compared() -> list[str]:
    """The folders of every comparison and sweep on record, below results/."""
    found = {path.parent.relative_to(RESULTS) for path in RESULTS.rglob("records.jsonl*")}
    return sorted(x.as_posix() for x in found if "seeds" in _config(x.as_posix()))


def _config(folder: str) -> Record:
    header = read(folder)[0]
    return header.get("config") or {} if header["kind"] == "run" else {}


def role(folder: str) -> str:
    """What a record's seeds were for."""
    said = read(folder)[0].get("seeds_for") or _config(folder).get("seeds_for")
    if said is not None:
        return said
    if "grid" in _config(folder):
        return TUNING
    return CHOICE if folder in CHOSEN_BY else REPORT


def seeds(folder: str) -> set[int]:
    """The seeds of a record."""
    config = _config(folder)
    first = config.get("first_seed", 0)
    return set(range(first, first + config["seeds"]))


def panels(headline: str) -> list[str]:
    """The comparisons of a headline: itself, or those of an experiment."""
    within = (folder for folder in compared() if folder.startswith(f"{headline}/panels/"))
    return [headline] if headline in compared() else list(within)


def clashes(folder: str) -> list[str]:
    """The records that tuned or chose something in the setting of a comparison, on some of its
    seeds."""
    config = _config(folder)
    return [
        other
        for other in compared()
        if other != folder
        and role(other) != REPORT
        and seeds(other) & seeds(folder)
        and all(_config(other)[name] == config[name] for name in SETTING)
    ]


def check() -> list[str]:
    """A line for each headline on seeds that something was tuned or chosen on, and is not told."""
    wrong = []
    for folder in (panel for headline in HEADLINES for panel in panels(headline)):
        if role(folder) != REPORT:
            wrong.append(f"{folder} is a headline, and its seeds are for {role(folder)}")
        for other in clashes(folder):
            if folder not in TOLD:
                wrong.append(f"{folder} reports seeds that {other} is for {role(other)} on")
    for folder, (page, words) in TOLD.items():
        text = " ".join((RESULTS.parent / page).read_text().split())
        if clashes(folder) and words not in text:
            wrong.append(f"{folder} stands on such seeds, and {page} does not say {words!r}")
    return wrong
