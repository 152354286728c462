"""What the docs tell of the curves behind the paper's experiments is what the records say."""

from pathlib import Path

import pytest

from laconic.store.records import read
from tests.recorded import PUBLISHED as DOCS
from tests.recorded import WORDS, mean_curve, method_of, peak, rounds_to, train_losses

ROOT = Path(__file__).parents[1]
LEARNED = ("LOpt-A", "LAgg-A")


def _panel(name: str) -> Path:
    return ROOT / "results" / "reproduce" / name


def _rounds(panel: str, label: str, target: float) -> int:
    found = rounds_to(_panel(panel), label, target)
    assert found is not None
    return found


def test_how_the_optimizers_of_16_local_steps_do_at_4():
    panel = "fig-h-transfer-full/panels/h4"
    lopt, lagg = (_rounds(panel, f"{label} (trained at H = 16)", 0.2) for label in LEARNED)
    assert (
        f"they need {lagg} and {lopt} rounds to 0.2, SlowMo {_rounds(panel, 'SlowMo', 0.2)}"
        in WORDS
    )


@pytest.mark.parametrize(("label", "then"), [("LOpt", "then rises to"), ("LAgg", "ends at")])
def test_when_those_without_accumulators_are_lowest(label, then):
    curve = mean_curve(_panel("fig-ablation-full/panels/fmnist-mlp2"), label)
    assert (
        f"lowest, {curve.min():.3f}, in round {curve.argmin() + 10} and {then} {curve[-1]:.3f}"
        in WORDS
    )


def test_the_worst_round_at_any_number_of_local_steps():
    worst = {
        (H, label): train_losses(_panel(f"table-rounds-full/panels/h{H}"), label)[:, 300:].max()
        for H in (4, 8, 16)
        for label in LEARNED
    }
    H, label = max(worst, key=lambda key: worst[key])
    assert f"worst single round is {worst[H, label]:.2f} ({label} at H = {H})" in WORDS


@pytest.mark.parametrize("share", ["1", "0.1", "0.01"])
@pytest.mark.parametrize("label", ["Local SGD", "SlowMo", *LEARNED])
def test_what_compressed_messages_cost(share, label):
    panel = f"fig-compress-full/panels/top{share}"
    found, reached = method_of(_panel(panel), label), mean_curve(_panel(panel), label).min() <= 0.2
    rounds = _rounds(panel, label, 0.2) if reached else "–"
    megabytes = f"{rounds * found['traffic']['sent_bits'] / 8e6:.3g}" if reached else "–"
    best, when = peak(found)
    assert f"| {share} | {label} | {rounds} | {megabytes} | {100 * best:.2f} % | {when} |\n" in DOCS


SPIKES = [("0.1", "with spikes in nine of ten runs", 9), ("0.01", "at 1 % five runs", 5)]


@pytest.mark.parametrize(("share", "runs", "spiking"), SPIKES)
def test_who_spikes_with_compressed_messages(share, runs, spiking):
    lopt, lagg = (
        train_losses(_panel(f"fig-compress-full/panels/top{share}"), label)[:, 300:]
        for label in LEARNED
    )
    assert (lopt > 0.3).any(axis=1).sum() == spiking
    assert not (lagg > 0.3).any()
    assert runs in WORDS
    assert f"({lopt.max():.2f} at worst)" in WORDS


SAME = [
    "table-speedup-full/panels/fmnist-mlp2",
    "table-rounds-full/panels/h4",
    "fig-ablation-full/panels/fmnist-mlp2",
    "fig-h-transfer-full/panels/h4",
    "fig-compress-full/panels/top1",
]


def test_five_panels_of_one_setting_agree():
    lopt, lagg = ([_rounds(panel, label, 0.2) for panel in SAME] for label in LEARNED)
    assert set(lopt) == {114}
    assert f"needs 114 rounds to 0.2 in each and LAgg-A {min(lagg)} to {max(lagg)}" in WORDS
    summaries = [
        read(ROOT / "results" / "reproduce" / panel / "records.jsonl")[-1] for panel in SAME
    ]
    speedups = [
        row["speedup"]
        for summary in summaries
        for row in summary["rows"]
        if row["label"] == "LOpt-A"
    ]
    assert f"LOpt-A's are {min(speedups):.1f}× to {max(speedups):.1f}×" in WORDS


def _peak(panel: str, label: str) -> str:
    best, when = peak(method_of(_panel(f"table-speedup-full/panels/{panel}"), label))
    return f"{100 * best:.1f} % in round {when}"


def test_when_test_accuracy_peaks_in_the_columns_of_the_first_table():
    for panel, label in (
        ("cifar10-mlp2", "LOpt-A"),
        ("cifar10-mlp2", "SlowMo"),
        ("cifar10-cnn", "LOpt-A"),
    ):
        assert (
            f"{label}'s is {_peak(panel, label)}" in WORDS
            or f"{label}'s {_peak(panel, label)}" in WORDS
        )
    for label, name in (("LAgg-A", "LAgg-A"), ("SlowMo", "SlowMo"), ("Local SGD", "local SGD")):
        assert f"{name}'s {_peak('cifar10-cnn', label)}" in WORDS
    lopt, lagg, local = (_peak("imagenet32-mlp3", label) for label in (*LEARNED, "Local SGD"))
    assert f"too little for an MLP: {lopt} and {lagg}, local SGD's {local}" in WORDS


def test_the_learned_optimizers_are_above_the_papers_in_every_column_of_the_first_table():
    rows = read(_panel("table-speedup-full") / "records.jsonl")[-1]["rows"]
    speedups = {(row["panel"], row["label"]): row for row in rows if row["metric"] == "speedup"}
    ours = [row for (_, label), row in speedups.items() if label in LEARNED and row["in_paper"]]
    assert len(ours) == 8  # three columns and their average
    assert all(row["ours"] > row["paper"] for row in ours)
    lopt, lagg, slowmo = (speedups["average", label] for label in (*LEARNED, "SlowMo"))
    assert (
        f"{lopt['ours']:.1f}× and {lagg['ours']:.1f}× instead of {lopt['paper']:.2f}× and "
        f"{lagg['paper']:.2f}×" in WORDS
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{lopt['ours']:.1f}× (LOpt-A) and {lagg['ours']:.1f}× (LAgg-A) on average" in readme
    lopt, lagg = (speedups["cifar10-cnn", label]["ours"] for label in LEARNED)
    assert f"on CIFAR-10's CNN, which is not among them, {lopt:.2f}× and {lagg:.2f}×" in readme
    assert f"SlowMo's is {slowmo['ours']:.2f}× instead of {slowmo['paper']:.2f}×" in WORDS


OVERHEAD = _panel("table-overhead-full")


@pytest.mark.parametrize("panel", ["resnet50-224", "vit-b-128"])
def test_the_learned_steps_add_little_to_a_round(panel):
    timing = read(OVERHEAD / "timings" / panel / "records.jsonl")[-1]
    assert timing["kind"] == "timing"
    assert timing["figures"]["H=8 lopt-a"]["overhead"] <= 1.03
    assert timing["figures"]["H=32 lopt-a"]["overhead"] <= 1.01
    told = WORDS[WORDS.index("A local step takes") :][:300]
    for part in ("local step", "lopt-a", "lagg-a", "local-sgd"):
        assert f"{1e3 * timing['parts_seconds'][part]:.2f}" in told, part
    adds = 100 * (timing["figures"]["H=8 lopt-a"]["overhead"] - 1)
    assert f"{adds:.1f} %" in WORDS[WORDS.index("So at H = 8 LOpt-A adds") :][:60]
    assert f"{adds:.1f} % to" in " ".join((ROOT / "README.md").read_text().split())
