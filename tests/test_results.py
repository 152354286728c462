"""What the docs claim is what the records say."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hidden, rounding
from laconic.reproduce import named_experiment
from laconic.reproduce.outcome import read_outcome, rows_of, write_outcome
from laconic.runs.publish import results_of
from laconic.show.summary import summarise, summary_table
from laconic.show.sweep import ranking_text
from laconic.show.timing import parse_link
from laconic.store.records import plain, read
from laconic.zoo import Card, load, published
from tests.recorded import PUBLISHED as DOCS
from tests.recorded import WORDS, benchmark, mean_curve, method_of, numbers_of, peak

ROOT = Path(__file__).parents[1]
RUNS = sorted(
    path.parent
    for name in ("*", "missing-workers/*")
    for path in (ROOT / "results").glob(f"{name}/records.jsonl*")
)
SWEEPS = sorted(path.parent for path in (ROOT / "results").glob("sweeps/*/records.jsonl*"))
LABELS = {
    "lopt-a": "LOpt-A",
    "lagg-a": "LAgg-A",
    "lopt": "LOpt",
    "lagg": "LAgg",
}  # what experiments call them
BEGUN = sorted((ROOT / "results" / "reproduce").glob("*-full/records.jsonl*"))
EXPERIMENTS = [path.parent for path in BEGUN if read(path)[-1]["kind"] == "experiment"]
EXPLORED = sorted((ROOT / "results" / "meta").glob("explore-*"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_docs_show_the_records_table(run):
    assert summary_table(read(run / "records.jsonl")).markdown().strip() in DOCS


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_recorded_summary_follows_from_its_curves(run):
    records = read(run / "records.jsonl")
    config, summary = records[0]["config"], records[-1]
    link = None if config["link"] is None else parse_link(config["link"])
    again = summarise([r for r in records if r["kind"] == "method"], config["target_loss"], link)
    assert again["reference"] == summary["reference"]
    for row, kept in zip(again["rows"], summary["rows"], strict=True):
        row = {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in row.items()
        }
        kept.pop("speedup_error", None)  # a jackknife, in older records
        if "speedup_interval" not in kept:
            row = {key: value for key, value in row.items() if not key.endswith("_interval")}
        label, numbers = (
            kept.pop("label"),
            {key: value for key, value in kept.items() if value is not None},
        )
        assert label == row.pop("label")
        assert {key for key, value in row.items() if value is not None} == set(numbers)
        for key, number in numbers.items():
            if isinstance(number, list):  # an interval; None is no end
                assert [x if math.isfinite(x) else None for x in row[key]] == number
            else:
                assert row[key] == pytest.approx(number, rel=1e-6)


def test_the_readme_and_the_home_page_round_nothing_up():
    readme, home = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md"))
    table = summary_table(read(ROOT / "results" / "fmnist-fresh" / "records.jsonl")).markdown()
    slowmo = "slowmo:gamma=0.3,alpha=1.6666666666666667,beta=0.8"
    for label in (
        "local-sgd:gamma=0.3",
        "adam:alpha=0.005",
        slowmo,
        "lopt-a-fmnist",
        "lagg-a-fmnist",
    ):
        cells = (
            next(
                line for line in table.splitlines() if f"`{label}`" in line or f'"{label}"' in line
            )
            .replace("*", "")
            .split("|")
        )
        assert f"|{'|'.join(cells[2:6])}|" in readme, label
        assert f"|{'|'.join(cells[2:4])}|" in home, label


@pytest.mark.parametrize("name", ["round-cpu", "round-h200"])
def test_the_docs_show_the_benchmarks(name):
    figures = benchmark(name)
    for key in (
        "round_ratio",
        "server_step_speedup",
        "temporary_bytes_per_parameter",
        "server_step_seconds",
    ):
        assert f"| {figures[key]} |" in DOCS


def test_the_cpu_benchmark_in_the_docs_is_the_median_of_its_commits_runs():
    shown = benchmark("round-cpu")
    lines = (ROOT / "results" / "benchmarks" / "round-cpu-runs.jsonl").read_text().splitlines()
    runs = [run for run in map(json.loads, lines) if run["commit"] == shown["commit"]]
    assert len(runs) == 5
    assert sorted(run["server_step_speedup"] for run in runs)[2] == shown["server_step_speedup"]
    assert shown in runs
    assert shown["server_step_speedup"] >= 2
    assert shown["temporary_bytes_per_parameter"] < 40
    for key in ("ratio_to_adamw", "textbook_ratio_to_adamw", "adamw_seconds"):
        assert f"| {shown[key]} | – |" in DOCS
    assert all(str(run["server_step_speedup"]) in DOCS for run in runs)


def test_the_docs_show_federated_rounds():
    figures = benchmark("federated-h200")
    assert (figures["data"], figures["clients"], figures["workers"]) == ("fashion-mnist", 400, 10)
    for label, name in (("FedAvg", "fedavg"), ("FedLOpt", "fedlopt")):
        speed = figures[f"{name}_rounds_per_second"]
        assert speed >= 1500
        assert f"| {label} | {speed} | {figures[f'{name}_ratio']} |" in DOCS


def test_the_docs_tell_that_meta_training_is_as_fast_as_before():
    before, after = (benchmark(f"meta-train-h200{name}")["figures"] for name in ("", "-second"))
    for name in ("lopt-a", "lagg-a"):
        assert after[name]["rounds_per_second"] > 0.996 * before[name]["rounds_per_second"]
        assert str(after[name]["rounds_per_second"]) in DOCS
        assert f"| {before[name]['rounds_per_second']} |" in DOCS


def test_the_docs_show_what_the_engine_costs():
    figures = benchmark("engine-round-cpu")
    two, four = figures["workers"]["2"], figures["workers"]["4"]
    assert two["median_ms"]["engine"] < figures["limit_ms"]
    assert figures["parameters"] == 1_000_000
    for name in ("compute", "gather", "outer", "quorum", "check", "rest", "engine"):
        cells = [
            f"{k['median_ms'][name]:.1f} ({k['best_tenth_ms'][name]:.1f})" for k in (two, four)
        ]
        row = rf"\| \**{name}\**[^|]* \| \**{re.escape(cells[0])}\** \| {re.escape(cells[1])} \|"
        assert re.search(row, DOCS), name


def test_the_docs_show_how_rounding_grows():
    figures = benchmark("rounding-cpu")
    assert rounding.table(figures) in DOCS
    assert max(one["step"] for one in figures["trainings"].values()) < 1e-6
    for name in ("recipe `digits`", "seed 1", "seed 2"):
        for row in figures["trainings"][name]["rows"]:
            late = row["round"] > rounding.DIGITS.rounds
            assert late or max(row["apart"], row["nudged"]) < 1e-5, name


def test_the_docs_show_what_fragments_hide():
    figures = benchmark("hidden-cpu")
    assert hidden.table(figures["runs"]) in DOCS
    load = [run["load"] for run in figures["runs"]]
    assert f"{min(load):.0f} to {max(load):.0f} processes" in WORDS
    assert figures["settings"]["steps"] == 18


def test_the_docs_tell_of_the_soak():
    figures = benchmark("churn-cpu")
    assert figures["passed"]
    assert figures["longest_gap_s"] < 5.0
    assert figures["rounds_with_two_states"] == []
    assert abs(figures["loss_apart"]) < 0.05
    options = figures["options"]
    assert (options["minutes"], options["workers"]) == (5.0, 4)
    assert figures["minutes"] >= 5.0
    told = [
        f"{figures['rounds']:,} rounds in {figures['minutes']} minutes",
        f"{figures['kills']} kills",
    ]
    told += [
        f"{figures['stops']} stops",
        f"{figures['healed']} times",
        f"{figures['longest_gap_s']:.2f} s",
    ]
    told += [f"{figures['mean_workers']} of the four"]
    told += [f"{figures['loss'][name]:.5f}" for name in ("churned", "undisturbed")]
    for words in (*told, f"{100 * figures['loss_apart']:+.2f} %"):
        assert words in WORDS, words


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_the_docs_show_the_sweeps_rankings(sweep):
    table = ranking_text(read(sweep / "records.jsonl")).strip()
    assert table == (sweep / "ranking.md").read_text().strip()
    assert table in DOCS


@pytest.mark.parametrize("task", ["cifar10-mlp2", "cifar10-cnn"])
def test_baselines_that_the_paper_does_not_give_are_the_best_of_the_sweeps(task):
    (panel,) = (panel for panel in named_experiment("table-speedup").parts if panel.name == task)
    for method in ("local-sgd", "slowmo", "sgd", "adam"):
        best = read(ROOT / "results" / "sweeps" / f"{task}-k8-h4-{method}" / "records.jsonl")[-1][
            "best"
        ]
        spec = next(spec for spec in panel.config.optimizers if spec.startswith(f"{method}:"))
        assert numbers_of(spec) == numbers_of(best)


def test_the_docs_say_how_the_cnn_does_at_the_papers_values():
    for method, paper in (
        ("slowmo", {"gamma": 0.5, "alpha": 2.0, "beta": 0.9}),
        ("sgd", {"alpha": 1.0}),
    ):
        *points, ranking = read(
            ROOT / "results" / "sweeps" / f"cifar10-cnn-k8-h4-{method}-short" / "records.jsonl"
        )[1:]
        point = next(p for p in points if p["numbers"] == paper)
        assert f"(lowest {point['minimum']:.2f}, {point['final']:.2f} a" in WORDS
        if method == "slowmo":
            rank = ranking["order"].index(point["index"]) + 1
            assert f"{rank}th of {len(points)}" in WORDS
            assert f"{100 * point['valid']['accuracy']:.1f} % of the validation images" in WORDS


@pytest.mark.parametrize("run", EXPERIMENTS, ids=lambda run: run.name)
def test_the_docs_show_the_experiments_tables_and_those_show_the_records(run, tmp_path):
    record = read(run / "records.jsonl")[-1]
    outcome = read_outcome(run, record)
    now = plain(rows_of(outcome.experiment, outcome.runs))
    assert outcome.record["rows"] == rows_of(outcome.experiment, outcome.runs)
    for kept, row in zip(record["rows"], now, strict=True):
        if row["metric"] in ("speedup", "rounds") and "interval" not in kept:
            kept |= {"error": None}  # a jackknife, in older records
            row.pop("interval", None)
        assert kept == row
    tables = tables_of(run / "table.md")
    write_outcome(tmp_path, outcome)
    assert tables_of(tmp_path / "table.md") == tables
    for table in tables:
        assert table in DOCS


def test_no_experiment_was_begun_and_is_shown_nowhere():
    assert [path.parent for path in BEGUN] == EXPERIMENTS


def tables_of(path):
    return [part.strip() for part in path.read_text().split("\n\n") if part.startswith("|")]


@pytest.mark.parametrize("run", EXPLORED, ids=lambda run: run.name)
def test_the_docs_show_how_the_recipe_was_chosen(run):
    records = read(run / "records.jsonl")
    config, judged = records[0]["config"], [r for r in records if r["kind"] == "judged"][-1]
    at = dict(zip(judged["at"], judged["losses"][0], strict=True))
    numbers = [
        f"{config['gamma']:g}",
        config["truncation"],
        config["steps"],
        config["ramp"],
        f"{config['peak']:g}",
    ]
    numbers += [f"{judged['score']:.4f}", f"{at[100]:.3f}", f"{at[1000]:.3f}"]
    row = " | ".join([run.name.removeprefix("explore-"), *map(str, numbers)])
    assert f"| {row} |" in DOCS


def test_the_docs_show_the_speed_of_meta_training():
    figures = benchmark("meta-train-h200")["figures"]
    for name, key in (("LOpt-A", "lopt-a"), ("LAgg-A", "lagg-a")):
        assert (
            f"| {name} | {figures[key]['rounds_per_second']} | "
            f"{figures[key]['outer_step_seconds']} |" in DOCS
        )


def test_the_docs_peaks_of_test_accuracy_are_the_records():
    for record in read(ROOT / "results" / "fmnist-learned" / "records.jsonl"):
        if record["kind"] == "method" and record["method"] in (
            "slowmo",
            "lopt-a-fmnist",
            "lagg-a-fmnist",
        ):
            assert f"{100 * peak(record)[0]:.2f} %" in DOCS, record["label"]


def _label(name: str, card: Card) -> str:
    if name == "lopt-a-general":
        return "LOpt-A (general)"
    return "FedLOpt" if name.startswith("fedlopt") else LABELS[card.architecture]


@pytest.mark.parametrize("name", published())
def test_a_card_says_what_its_records_say(name):
    card = load(name).card
    for result in card.results:
        folder = ROOT / "results" / Path(result["record"]).parent
        label = _label(name, card) if "reproduce" in folder.parts else name
        if "fig-h-transfer-full" in folder.parts and name.endswith("-h16"):
            label += " (trained at H = 16)"
        assert result in results_of(folder, label), result


# Two that do not overfit in 1000 rounds, one for many tasks, and one whose task is for trying
# things out.
NO_PEAK = ("lopt-fmnist", "lagg-fmnist", "lopt-a-general", "lopt-a-digits", "lopt-r")


@pytest.mark.parametrize("name", published())
def test_a_card_says_in_which_round_test_accuracy_is_best(name):
    card = load(name).card
    said = re.findall(r"peaks at round (\d+) on its own task", " ".join(card.limits))
    assert said or name in NO_PEAK
    for round_ in map(int, said):
        folder = ROOT / "results" / Path(card.results[0]["record"]).parent
        label = _label(name, card) if "reproduce" in folder.parts else name
        assert round_ == peak(method_of(folder, label))[1]


ROWS = [line for line in DOCS.splitlines() if re.match(r"\| \w+-\w+( \| \d+){3} \| `slowmo", line)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split()[1])
def test_the_docs_say_when_the_general_optimizer_is_where_slowmo_is_at_round_500(row):
    task, K, H, B, slowmo, loss, rounds, untuned = (
        cell.strip(" `") for cell in row.strip("|").split("|")
    )
    folder = ROOT / "results" / f"general-{task}"
    records = read(folder / "records.jsonl")
    config = records[0]["config"]
    assert [config["workers"], config["local_steps"], config["batch"]] == [int(K), int(H), int(B)]
    tuned = {
        m["label"]: mean_curve(folder, m["label"])[490]
        for m in records
        if m.get("label", "").startswith("slowmo")
    }
    assert slowmo == min(
        (label for label in tuned if not math.isnan(tuned[label])), key=lambda label: tuned[label]
    )
    assert f"{tuned[slowmo]:.3g}" == loss
    general = mean_curve(folder, "lopt-a-general")
    for target, said in (
        (tuned[slowmo], rounds),
        (tuned["slowmo:gamma=0.1,alpha=1,beta=0.9"], untuned),
    ):
        there = np.flatnonzero(general <= target)
        assert said == (str(there[0] + 10) if there.size else "–")


UNSEEN = [line for line in DOCS.splitlines() if re.match(r"\| [\w-]+, unseen \|", line)]


def test_unseen_tasks_are_in_the_docs():
    assert len(UNSEEN) == 5


@pytest.mark.parametrize("row", UNSEEN, ids=lambda row: row.split()[1])
def test_the_docs_say_how_the_general_optimizer_does_on_tasks_it_never_saw(row):
    task, K, H, B, slowmo, rounds, own = (cell.strip() for cell in row.strip("|").split("|"))
    folder = ROOT / "results" / f"general-{task.removesuffix(', unseen')}"
    config = read(folder / "records.jsonl")[0]["config"]
    assert [config["workers"], config["local_steps"], config["batch"]] == [int(K), int(H), int(B)]
    assert (config["rounds"], config["seeds"]) == (1000, 10)
    assert config["task"] not in [
        trained["task"] for trained in load("lopt-a-general").card.trained_on
    ]
    target = mean_curve(folder, "slowmo:gamma=0.1,alpha=1,beta=0.9")[-1]
    general = mean_curve(folder, "lopt-a-general")
    there = np.flatnonzero(general <= target)
    found = [f"{target:.3g}", str(there[0] + 10) if there.size else "–", f"{general[-1]:.3g}"]
    assert [slowmo, rounds, own] == found
