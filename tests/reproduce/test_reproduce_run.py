"""Carrying an experiment out: optimizers found or trained once, runs that are done left alone,
every stop survived."""

import json
import shutil
from dataclasses import asdict, replace

import jax
import pytest

from laconic.errors import LaconicError
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.recipes.sweeps import SWEEPS
from laconic.reproduce import run
from laconic.reproduce.panel import Learned, matches
from laconic.reproduce.part import Runner
from laconic.reproduce.run import carry_out, reproduce, resume_experiment
from laconic.reproduce.sweep_panel import find_sweep
from laconic.runs import meta_train as meta_module
from laconic.runs.folder import Interrupted
from laconic.store.records import read
from tests.reproduce.made import DIGITS, Killed, Watch, quickly


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Little optimising, no pictures: what takes the time in runs this small."""
    with jax.numpy_dtype_promotion("standard"), quickly() as patch:  # for optax's AdamW
        patch.setattr(meta_module, "write_learning_curve", lambda records, path: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The experiment, carried out without a stop → (folder, record, what was begun)."""
    watch = Watch()
    folder, record = carry_out(
        DIGITS, "full", tmp_path_factory.mktemp("whole") / "out", watching=watch
    )
    return folder, record, watch.begun


def bytes_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.jsonl")}


def copied(whole, tmp_path, *left_out):
    """The whole experiment's folder without its outcome and some of its runs."""
    names = [path.rpartition("/")[2] for path in left_out]
    shutil.copytree(
        whole[0], tmp_path / "out", ignore=shutil.ignore_patterns("figure.*", "table.*", *names)
    )
    header = (whole[0] / "records.jsonl").read_text().splitlines()[0]
    (tmp_path / "out" / "records.jsonl").write_text(header + "\n")
    return tmp_path / "out"


def without_origin(record):
    """What must not depend on how often a run was stopped: everything but where and when."""
    return {key: value for key, value in record.items() if key not in ("provenance", "optimizers")}


METHODS = {"One": ("Local SGD", "LOpt"), "Two": ("Local SGD", "SlowMo")}


def test_each_optimizer_is_trained_once_and_each_panel_compared(whole):
    folder, record, begun = whole
    panels = [(title, label, 0) for title, labels in METHODS.items() for label in labels]
    assert begun == [("lopt-digits", "φ", 0), *panels]
    assert record["panels"] == {"one": "panels/one", "two": "panels/two"}
    for path in (
        "figure.png",
        "figure.svg",
        "table.md",
        "table.html",
        "optimizers/lopt-digits/best.safetensors",
    ):
        assert (folder / path).is_file()
    assert [r["kind"] for r in read(folder / "records.jsonl")] == ["run", "experiment"]
    assert record["provenance"]["versions"]["jax"] == jax.__version__


def test_rows_are_those_of_the_panels_records(whole):
    folder, record, _ = whole
    for panel in ("one", "two"):
        summary = read(folder / "panels" / panel / "records.jsonl")[-1]
        for found in summary["rows"]:
            rows = {
                r["metric"]: r
                for r in record["rows"]
                if (r["panel"], r["label"]) == (panel, found["label"])
            }
            assert rows["speedup"]["ours"] == found["speedup"]
            assert rows["final_train"]["ours"] == found["final_train"]


def test_the_same_command_again_runs_nothing_and_records_nothing(whole):
    folder, record, _ = whole
    before, watch = bytes_of(folder), Watch()
    (folder / "table.md").unlink()
    assert carry_out(DIGITS, "full", folder, watching=watch) == (folder, record)
    assert watch.begun == []
    assert bytes_of(folder) == before
    assert (folder / "table.md").is_file()


def test_panels_are_carried_out_by_themselves_and_the_outcome_says_what_is_not_there(
    whole, tmp_path
):
    _, record, _ = whole
    folder, watch = tmp_path / "out", Watch()
    _, half = carry_out(DIGITS, "full", folder, panels=["two"], watching=watch)
    assert watch.begun == [
        ("Two", "Local SGD", 0),
        ("Two", "SlowMo", 0),
    ]  # and nothing is meta-trained for it
    assert (half["panels"], half["optimizers"], half["left"]) == (
        {"two": "panels/two"},
        {},
        ["one"],
    )
    assert "- Not carried out yet: one.\n" in (folder / "table.md").read_text()
    rest = Watch()
    _, full = carry_out(DIGITS, "full", folder, panels=["one"], watching=rest)
    assert [title for title, _, _ in rest.begun] == ["lopt-digits", "One", "One"]
    assert without_origin(full) == without_origin(record)
    assert "Not carried out" not in (folder / "table.md").read_text()


def test_a_panel_that_is_not_there_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(LaconicError, match="unknown panel of digits 'three'"):
        carry_out(DIGITS, "full", tmp_path / "out", panels=["three"])
    assert not (tmp_path / "out").exists()


def test_a_stop_in_the_second_panel_leaves_the_rest_alone(whole, tmp_path):
    _, record, _ = whole
    asked = []
    watch = Watch(
        lambda what, done: asked.append(what) if (what, done) == ("Two: SlowMo", 3) else None
    )
    folder = copied(whole, tmp_path, "panels/two")
    with pytest.raises(Interrupted, match="two: stopped in SlowMo after round 3 of 6") as info:
        carry_out(DIGITS, "full", folder, watching=watch, stop=lambda: bool(asked))
    assert info.value.folder == folder
    before, again = bytes_of(folder), Watch()
    _, resumed = carry_out(DIGITS, "full", folder, watching=again)
    assert again.begun == [("Two", "SlowMo", 3)]
    after = bytes_of(folder)
    for path in ("optimizers/lopt-digits/records.jsonl", "panels/one/records.jsonl"):
        assert after[path] == before[path]
    assert without_origin(resumed) == without_origin(record)
    labels = [
        r["label"]
        for r in read(folder / "panels" / "two" / "records.jsonl")
        if r["kind"] == "method"
    ]
    assert labels == list(METHODS["Two"])


@pytest.mark.parametrize(
    "moment", [("lopt-digits", 4), ("One: LOpt", 6), ("Two: Local SGD", 3)], ids=str
)
@pytest.mark.slow
def test_death_at_any_moment_changes_no_number_and_doubles_no_record(whole, tmp_path, moment):
    def die(what, done):
        if what == moment[0] and done >= moment[1]:
            raise Killed

    trained = moment[0] != "lopt-digits"
    folder = copied(whole, tmp_path, "panels/one", "panels/two") if trained else tmp_path / "out"
    with pytest.raises(Killed):
        carry_out(DIGITS, "full", folder, watching=Watch(die))
    _, resumed = carry_out(DIGITS, "full", folder)
    assert without_origin(resumed) == without_origin(whole[1])
    for path in folder.rglob("records.jsonl"):
        keys = [
            (r["kind"], r.get("label"), r.get("end"), r.get("step"), r.get("which"))
            for r in read(path)
        ]
        assert len(set(keys)) == len(keys), path


@pytest.mark.slow
def test_death_between_records_and_the_checkpoint_doubles_no_record(whole, tmp_path, monkeypatch):
    """The judgement and progress of step 4 are on record when the process dies, and step 4 is in no
    checkpoint."""
    saved, save = [], meta_module.checkpoint.save

    def save_once(*arguments):
        saved.append(arguments)
        if len(saved) > 1:
            raise Killed
        save(*arguments)

    folder, path = tmp_path / "out", "optimizers/lopt-digits/records.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(meta_module.checkpoint, "save", save_once)
        with pytest.raises(Killed):
            carry_out(DIGITS, "full", folder)
    marks = lambda folder: [(r["kind"], r.get("end"), r.get("step")) for r in read(folder / path)]
    assert marks(folder)[-2:] == [("judged", None, 4), ("progress", 4, None)]
    carry_out(DIGITS, "full", folder)
    assert marks(folder) == marks(whole[0])


def test_death_while_the_outcome_is_written(whole, tmp_path, monkeypatch):
    folder = copied(whole, tmp_path, "panels/one")

    def die(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run, "write_outcome", die)
        with pytest.raises(Killed):
            carry_out(DIGITS, "full", folder)
    before = bytes_of(folder)
    carry_out(DIGITS, "full", folder)
    assert bytes_of(folder) == before
    assert (folder / "table.md").read_text().splitlines()[:-3] == (
        whole[0] / "table.md"
    ).read_text().splitlines()[:-3]


def test_death_while_a_folder_is_made_leaves_nothing_in_the_way(whole, tmp_path):
    folder = copied(whole, tmp_path, "panels/one")
    panel = folder / "panels" / "one"
    panel.mkdir()
    (panel / ".checkpoint.safetensors.probe").touch()
    (panel / "records.jsonl").write_text('{"kind": "ru')
    _, record = carry_out(DIGITS, "full", folder)
    assert without_origin(record) == without_origin(whole[1])


# --- refusals -------------------------------------------------------------------------------------


def test_other_settings_in_a_panels_folder_are_refused(whole, tmp_path, raises_clearly):
    folder = copied(whole, tmp_path)
    path = folder / "panels" / "one" / "records.jsonl"
    header, *rest = path.read_text().splitlines()
    changed = json.loads(header)
    changed["config"]["batch"] = 5
    path.write_text("\n".join([json.dumps(changed), *rest]) + "\n")
    with raises_clearly("panels/one", "another batch", "move it away"):
        carry_out(DIGITS, "full", folder)


def test_a_folder_of_something_else_is_refused(whole, tmp_path, raises_clearly):
    (tmp_path / "notes.txt").touch()
    with raises_clearly("not empty", "--out"):
        carry_out(DIGITS, "full", tmp_path)
    with raises_clearly("is of digits at scale full", "--out"):
        carry_out(DIGITS, "smoke", whole[0])
    with raises_clearly("holds a comparison, not an experiment"):
        carry_out(DIGITS, "full", whole[0] / "panels" / "one")
    with raises_clearly("colon"):
        carry_out(DIGITS, "full", tmp_path / "a:b")


@pytest.mark.parametrize(
    ("place", "line", "instead", "parts"),
    [
        (
            "panels/one/",
            2,
            '{"kind": "method"}\n',
            ["panels/one", "line 2", "has no label", "delete that line"],
        ),
        ("panels/one/", 2, '{"label": "a"}\n', ["panels/one", "line 2", "has no kind"]),
        ("panels/one/", 1, "", ["panels/one", "lost the record of its settings", "move it away"]),
        ("optimizers/lopt-digits/", 2, "{}\n", ["optimizers/lopt-digits", "line 2", "has no kind"]),
        ("", 2, "{}\n", ["line 2", "has no kind"]),
    ],
)
def test_damaged_records_are_one_clear_error(
    place, line, instead, parts, whole, tmp_path, raises_clearly
):
    folder = copied(whole, tmp_path)
    path = folder / f"{place}records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[: line - 1], instead, *lines[line:]]))
    with raises_clearly(*parts):
        carry_out(DIGITS, "full", folder)


def test_a_method_whose_line_was_deleted_is_run_again(whole, tmp_path):
    folder = copied(whole, tmp_path)
    path = folder / "panels" / "one" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))
    _, record = carry_out(DIGITS, "full", folder)
    methods = [r["label"] for r in read(path) if r["kind"] == "method"]
    assert sorted(methods) == sorted(
        r["label"] for r in read(whole[0] / "panels/one/records.jsonl") if "train" in r
    )

    def by_place(rows):
        return {(row["panel"], row["label"], row["metric"]): row for row in rows}

    assert by_place(record["rows"]) == by_place(whole[1]["rows"])


def test_names_and_scales_are_checked_first(tmp_path, raises_clearly):
    with raises_clearly("unknown experiment", "fig-ablation"):
        reproduce("fig-ablatio", "smoke", tmp_path / "out")
    with raises_clearly("unknown scale", "full"):
        reproduce("fig-ablation", "large", tmp_path / "out")
    with raises_clearly("nothing to resume"):
        resume_experiment(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- what is there already ------------------------------------------------------------------------


def test_a_published_optimizer_is_used_only_in_its_own_setting():
    config = META_RECIPES["lopt-a-fmnist"][1]
    assert matches("lopt-a-fmnist", config)
    others = {
        "workers": 16,
        "local_steps": 8,
        "tasks": ("cifar10-mlp2",),
        "compress": "int8",
        "architecture": "lagg-a",
    }
    for field, value in others.items():
        assert not matches("lopt-a-fmnist", replace(config, **{field: value})), field
    assert not matches("no-such-optimizer", config)


def test_the_zoo_saves_a_meta_training(tmp_path):
    # asked to stop, so that training would be noticed
    runner = Runner(tmp_path, "full", Watch(), lambda: True)
    config = META_RECIPES["lopt-a-fmnist"][1]
    assert Learned("l", config, "lopt-a-fmnist").obtain(runner) == "lopt-a-fmnist"
    with pytest.raises(Interrupted, match="stopped before l"):
        Learned("l", config).obtain(runner)


def test_learned_optimizers_come_after_the_others():
    config = DIGITS.parts[0].comparison({"lopt-digits": "x/best.safetensors"}, {})
    assert config.optimizers == (
        *DIGITS.parts[0].config.optimizers,
        "x/best.safetensors:label=LOpt",
    )


def test_a_sweep_on_record_is_found_by_its_setting(tmp_path):
    config = SWEEPS["slowmo"][1]
    folder = tmp_path / "some"
    folder.mkdir()
    header = {
        "kind": "run",
        "config": {**asdict(config), "grid": list(config.grid), "points": list(config.points)},
    }
    lines = [header, {"kind": "point"}, {"kind": "ranking"}]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert find_sweep(config, tmp_path) == lines
    changes = {
        "workers": 16,
        "grid": SWEEPS["slowmo-coarse"][1].grid,
        "rounds": 50,
        "compress": "topk:0.1+ef",
    }
    for other in ({name: value} for name, value in changes.items()):
        assert find_sweep(replace(config, **other), tmp_path) is None, other
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    assert find_sweep(config, tmp_path) is None, "a sweep that is under way"
    assert find_sweep(config, tmp_path / "nowhere") is None


# --- for real -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.real_data
def test_the_shortest_experiment_at_smoke_scale(real_data, tmp_path):
    real_data("fashion-mnist")
    folder, record = reproduce("fig-ablation", "smoke", tmp_path / "out")
    labels = {row["label"] for row in record["rows"]}
    assert labels == {"Local SGD", "SlowMo", "SGD", "Adam", "LOpt", "LAgg", "LOpt-A", "LAgg-A"}
    final = {r["label"]: r["ours"] for r in record["rows"] if r["metric"] == "final_train"}
    assert final["Adam"] < 2.0 < 2.5 > max(value for value in final.values() if value is not None)
    assert "smoke scale" in (folder / "table.md").read_text()
    assert resume_experiment(folder)[1] == record
