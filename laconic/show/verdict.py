"""What a comparison came to, in a sentence, and what must be known beside it."""

from collections.abc import Sequence

from laconic.show import intervals, metrics
from laconic.show.curves import Record, of_kind
from laconic.show.summary import Row, bounds, curves_of, methods_of, rivals_of, summary_of
from laconic.show.table import count, duration, number

FEW = 5  # seeds, of which intervals begin to mean what they say


def verdict(records: Sequence[Record]) -> str:
    """One sentence in plain words: which method won, by how much, or that none did."""
    config, summary = of_kind(records, "run")[0]["config"], summary_of(records)
    rounds = count(config["rounds"])
    if config.get("patience"):
        rounds = f"at most {rounds}"
    target = summary["target_loss"]
    left_out = bounds(records)
    if len(left_out) == len(summary["rows"]):
        left_out = frozenset()
    rivals = rivals_of(summary["rows"], left_out)
    if not rivals:
        return "Every method diverged."
    reference = next((row for row in rivals if row["label"] == summary["reference"]), None)
    if target is None or len(summary["rows"]) - len(left_out) == 1:
        return _lowest_loss(rivals, rounds)
    own = reference is not None and config["target_loss"] is None
    whose = f"{reference['label']}'s best" if own else "the target"  # type: ignore[index]
    goal = f"{whose} training loss ({number(target)})"
    arrived = [row for row in rivals if row["rounds_to_target"]]
    arrived.sort(key=lambda row: row["rounds_to_target"])
    if not arrived:
        return f"No method reached {goal} in {rounds} rounds. {_lowest_loss(rivals, rounds)}"
    taken = arrived[0]["rounds_to_target"]
    name = arrived[0]["label"]
    if reference is not None:
        theirs = reference["rounds_to_target"]
        if theirs is None:
            told = f"{reference['label']} did not in {rounds}"
            return f"{name} reached {goal} in {count(taken)} rounds; {told}."
        if theirs == taken:
            told = f"{reference['label']}, which took {count(taken)}"
            return f"No method reached {goal} in fewer rounds than {told}."
        gain = f"{count(taken)} rounds instead of {count(theirs)}: {_fewer(taken, theirs)}"
        interval = arrived[0]["speedup_interval"]
        if not own:
            interval = _times_fewer(records, arrived[0], reference, target)
        return f"{name} reached {goal} in {gain}{_doubt(interval)}."
    if len(arrived) == 1:
        return f"Only {name} reached {goal}, in {count(taken)} rounds of {rounds}."
    second = f"{arrived[1]['label']}, took {count(arrived[1]['rounds_to_target'])}"
    doubt = _doubt(_times_fewer(records, arrived[0], arrived[1], target))
    return f"{name} reached {goal} first, in {count(taken)} rounds; the next, {second}{doubt}."


def _fewer(ours: int, theirs: int) -> str:
    if theirs >= 1.95 * ours:
        return f"{theirs / ours:.1f} times fewer"
    share = 100 * (1 - ours / theirs)
    return f"{share:.0f} % fewer" if share >= 1 else f"{theirs - ours} fewer"


def _times_fewer(
    records: Sequence[Record], ours: Row, theirs: Row, target: float
) -> Sequence[float] | None:
    """The interval of how many times fewer rounds one method needs than another."""
    curves = {method["label"]: curves_of(method) for method in methods_of(records)}
    return intervals.ratio_interval(curves[theirs["label"]], curves[ours["label"]], target)


def _doubt(interval: Sequence[float] | None) -> str:
    """An interval that reaches down to "no gain" belongs into the sentence that claims one."""
    if interval is None or interval[0] > 1:
        return ""
    low, high = (number(end) if end else "never" for end in interval)
    doubt = f"the 95 % interval of that gain over seeds ({low} to {high} times)"
    return f", though {doubt} leaves open whether it is one at all"


def _lowest_loss(rows: Sequence[Row], rounds: str) -> str:
    known = [row for row in rows if row["final_train"] is not None]
    if not known:
        return "Every method diverged."
    best = min(known, key=lambda row: row["final_train"])
    loss = number(best["final_train"])
    if len(rows) == 1:
        return f"{best['label']} ended at a training loss of {loss} after {rounds} rounds."
    return f"After {rounds} rounds {best['label']} has the lowest training loss, {loss}."


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader must know beside the verdict: time on the link, seeds, divergence, bounds."""
    config, summary = of_kind(records, "run")[0]["config"], summary_of(records)
    methods, found = methods_of(records), []
    rivals = rivals_of(summary["rows"], bounds(records))
    timed = {r["label"]: s for r in rivals if (s := r["seconds_to_target"]) is not None}
    fastest = min(timed, key=timed.__getitem__, default=None)
    reference = summary["reference"]
    if fastest is not None and reference in timed and reference != fastest:
        times = [f"{label} {duration(timed[label])}" for label in (fastest, reference)]
        found.append(f"On a {config['link']} link that takes {' and '.join(times)}.")
    seeds = max(len(method["train"]) for method in methods)
    if seeds == 1:
        chance = "One seed was run: small differences may be chance."
        found.append(f"{chance} Run several seeds to see an error.")
    elif seeds < FEW:
        found.append(f"{seeds} seeds were run: intervals of so few are too narrow.")
    for method in methods:
        bad, seeds = sum(method["diverged"]), len(method["diverged"])
        if bad:
            found.append(f"{method['label']} diverged in {bad} of {seeds} seeds.")
    stops = [method for method in methods if method.get("early", {}).get("stopped")]
    found += [f"{method['label']} {metrics.stopped_early(method['early'])}." for method in stops]
    bound = "runs on one worker and sends nothing: a bound, not a rival."
    return found + [f"{label} {bound}" for label in sorted(bounds(records))]
