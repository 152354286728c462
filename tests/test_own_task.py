"""A task of the user's own, from Python and as a word, in every command; and its own metrics."""

import shutil
import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from laconic import (
    CompareConfig,
    Interrupted,
    MetaConfig,
    SweepConfig,
    TrainConfig,
    compare,
    make_task,
    meta_train,
    plain_task,
    resume,
    sweep,
    train,
)
from laconic.runs.folder import describe
from laconic.show import training
from laconic.show.comparison import curves_figure, panels
from laconic.show.summary import summary_table
from laconic.store.records import read
from laconic.tasks.catalog import OWN_TASK
from laconic.tasks.own import fingerprint
from tests import tiny
from tests.cli.commands import assert_one_error, laconic
from tests.runs.killed import dying, finish, kill, started, without_times
from tests.runs.notes import Notes

DIGITS = '''
"""The catalog's digits-mlp:width=4, written by hand."""
import jax
import jax.numpy as jnp
import optax

import laconic
from laconic.tasks.layers import fan_in_normals


def init(key):
    return [(w, jnp.zeros(w.shape[1])) for w in fan_in_normals(key, (64, 4), (4, 4), (4, 10))]


def logits(params, batch):
    x = batch["x"].astype(jnp.float32).reshape(len(batch["y"]), -1) / 255
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b[None])
    return x @ params[-1][0] + params[-1][1][None]


def loss(params, batch):
    scores = logits(params, batch)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]))


def metrics(params, batch):
    right = jnp.argmax(logits(params, batch), -1) == batch["y"]
    return {"accuracy": jnp.mean(right.astype(jnp.float32))}


def make_task():
    feed = laconic.make_task("digits-mlp").feed
    return laconic.plain_task("mine", init, loss, feed, metrics=metrics, classes=10)


task = make_task()
'''
MEASURED = (
    DIGITS
    + """
def squares(params, batch):
    return metrics(params, batch) | {"sum of squares": sum(jnp.sum(w**2) for w, _ in params)}


measured = laconic.plain_task("mine", init, loss, task.feed, metrics=squares)
"""
)
BROKEN = """
import numpy as np
import laconic
number = 3
def needs(width, *rest, depth=2): ...
def nothing(): ...
def raises():
    return 1 / 0
def short():
    return laconic.plain_task("x", None, None, {"a": np.zeros(3), "b": np.zeros(2)})
"""
SIZES = {"workers": 2, "local_steps": 2, "batch": 8, "rounds": 4}
FLAGS = ["--workers", 2, "--local-steps", 2, "--batch", 8, "--rounds", 4]
CATALOG = "digits-mlp:width=4"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with modules in it, which are forgotten afterwards."""
    sources = {"owndigits": DIGITS, "ownbroken": BROKEN, "ownimport": "import nowhere_at_all\n"}
    sources |= {"ownmeasured": MEASURED}
    sources |= {"ownsyntax": "x = 1\ndef f(:\n", "ownexit": "import sys\nsys.exit(3)\n"}
    for name, text in sources.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in sources:
        sys.modules.pop(name, None)


def methods(records):
    return [record for record in records if record["kind"] == "method"]


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("nosuch:make", ["no module 'nosuch' in ", "PYTHONPATH"]),
        ("nosuch.part:make", ["no module 'nosuch' in "]),
        ("owndigits.part:make", ["no module 'owndigits.part' in "]),
        ("ownimport:make", ["ownimport.py, line 1: ModuleNotFoundError", "nowhere_at_all"]),
        ("ownsyntax:make", ["ownsyntax.py, line 2: SyntaxError"]),
        ("ownexit:make", ["ownexit.py, line 2: SystemExit: 3"]),
        ("ownbroken:make", ["ownbroken.py) has no 'make'"]),
        ("ownbroken:number", ["number is an int, no Task and no function"]),
        ("ownbroken:needs", ["needs needs width, but is called without arguments"]),
        ("ownbroken:nothing", ["nothing() returns None, no Task", "plain_task"]),
        ("ownbroken:raises", ["ownbroken.py, line 8: ZeroDivisionError: division by zero"]),
        ("ownbroken:short", ["ownbroken.py, line 10: x, train data: arrays differ"]),
        ("os:getcwd", ["getcwd() returns a str, no Task"]),
        ("owndigits.py:make_task", ["name the module", "owndigits:make_task"]),
        ("./owndigits.py:make_task", ["name the module", "owndigits:make_task"]),
        ("owndigits", ["unknown task 'owndigits'", "mymodule:make_task"]),
        ("owndigits:", ["unknown task 'owndigits'"]),
        ("owndigits:a=b", ["unknown task 'owndigits'"]),
    ],
)
def test_a_word_that_gives_no_task_is_one_clear_error(word, parts, here, raises_clearly):
    with raises_clearly(repr(word) if ":" in word[:-1] and "=" not in word else "", *parts):
        make_task(word)


def test_a_word_is_a_function_or_a_task(here):
    assert make_task("owndigits:make_task").name == make_task("owndigits:task").name == "mine"


@pytest.mark.parametrize(
    "command",
    [
        ["compare"],
        ["sweep"],
        ["train"],
        ["launch", "--workers", "2", "--", "train"],
        ["meta-train", "lopt-a-digits"],
    ],
)
def test_every_command_names_the_line(command, here, capfd):
    flag = "--tasks" if command[0] == "meta-train" else "--task"
    parts = ["ownbroken.py, line 8: ZeroDivisionError"]
    assert_one_error(capfd, [*command, flag, "ownbroken:raises", "--out", "run"], parts)
    assert not (here / "run").exists()


# --- a task is checked before it is trained -------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"init": lambda key: 1 / 0}, ["init: ", "test_own_task.py, line ", "ZeroDivision"]),
        ({"init": lambda key: len}, ["init: TypeError"]),
        ({"loss": lambda p, b: p["nope"]}, ["loss: ", "line ", "KeyError: 'nope'"]),
        ({"loss": lambda p, b: b["x"]}, ["the loss of a batch must be one number", "(4, 2)"]),
        ({"loss": lambda p, b: (0.0, 1)}, ["the loss of a batch must be one number", "a tuple"]),
        ({"metrics": lambda p, b: {"m": b["x"]}}, ["the metric 'm'", "shape (4, 2); take its"]),
        ({"metrics": lambda p, b: {"m": "high"}}, ["evaluate: TypeError"]),
        ({"metrics": lambda p, b: {"loss": 1.0}}, ["a dict without 'loss'"]),
        ({"metrics": lambda p, b: 3.0}, ["a dict without 'loss'"]),
        ({"metrics": lambda p, b: {3: 1.0}}, ["evaluate: "]),
        ({"metrics": lambda p, b: {" ": 1.0}}, ["a metric is named by a word"]),
    ],
)
def test_a_task_that_cannot_be_trained_is_refused(changes, parts, raises_clearly):
    given = {"init": lambda key: {"w": jnp.zeros(2)}, "metrics": None} | changes
    given.setdefault("loss", lambda params, batch: jnp.sum(params["w"]))
    task = plain_task("mine", data={"x": np.zeros((6, 2), np.float32)}, **given)
    with raises_clearly("mine: ", *parts):
        fingerprint(task, 4)


def test_digests_tell_tasks_apart_and_are_the_same_each_time():
    def made(scale=1.0, data=tiny.X, more=None):
        loss = lambda params, batch: scale * tiny.loss(params, batch)
        return fingerprint(plain_task("t", tiny.init, loss, (data, tiny.Y), metrics=more), 4)

    assert made() == made()
    assert made(scale=2.0)["functions_sha256"] != made()["functions_sha256"]
    assert made(scale=2.0)["data_sha256"] == made()["data_sha256"]
    assert made(data=tiny.X + 1)["data_sha256"] != made()["data_sha256"]
    named = [made(more=lambda p, b, x=x: {"m": x}) for x in (1.0, 2.0)]
    assert named[0] == named[1] != made()  # a metric may be mended, but keeps its name


# --- from Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [compare, sweep, train])
def test_what_is_no_task_is_refused(run, raises_clearly):
    configs = {compare: CompareConfig(), sweep: SweepConfig(), train: TrainConfig()}
    with raises_clearly("task is a Task", "got a function"):
        run(configs[run], tiny.task)


@pytest.mark.parametrize(
    "tasks", [tiny.task(), [3], [tiny.task(), tiny.task()], [replace(tiny.task(), name="a@b")]]
)
def test_meta_training_needs_a_list_of_tasks_with_names(tasks, raises_clearly):
    with raises_clearly("task"):
        meta_train(MetaConfig(), tasks=tasks)


def test_a_training_needs_its_task_again(tmp_path, raises_clearly):
    config, task = TrainConfig(**SIZES, optimizer="slowmo:gamma=0.1"), tiny.task()
    _, records = train(replace(config, out=tmp_path / "whole"), task)
    assert records[0]["task"] == describe(task, OWN_TASK, 8)
    with pytest.raises(Interrupted):
        train(replace(config, out=tmp_path / "cut"), task, stop=lambda: True)
    cut = tmp_path / "cut"
    with raises_clearly("a task of its own, 'tiny'", f"laconic.resume('{cut}', task=…)"):
        resume(cut)
    other = plain_task("tiny", tiny.init, tiny.loss, (tiny.X + 1, tiny.Y))
    with raises_clearly("was begun on", "and now data_sha256 is", "fixed seed"):
        resume(cut, other)
    assert resume(cut, tiny.task())[1][-1]["final_digests"] == records[-1]["final_digests"]
    assert (cut / "weights.safetensors").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_meta_training_takes_tasks_of_ones_own(tmp_path, raises_clearly):
    sizes = {"workers": 2, "local_steps": 1, "batch": 4, "steps": 2, "pairs": 1, "truncation": 2}
    sizes |= {"shortest": 2, "longest": 4, "judge_every": 1, "judge_seeds": 1}
    config = MetaConfig(tasks=("tiny@batch=8",), out=tmp_path / "run", **sizes)
    with pytest.raises(Interrupted):
        meta_train(config, tasks=[tiny.task()], stop=lambda: True)
    with raises_clearly("a task of its own, 'tiny'", "task=…"):
        resume(config.out)
    _, records = resume(config.out, [tiny.task()])
    assert records[0]["config"]["tasks"] == ["tiny@batch=8"]
    assert records[0]["sources"] == [OWN_TASK]
    assert records[0]["tasks"] == [describe(tiny.task(), OWN_TASK, 8)]
    assert records[-1]["steps"] == 2


# --- on the command line --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_task_gives_the_same_bits_as_the_catalogs(here, capfd):
    words = ["--optimizers", "local-sgd", "slowmo", "--seeds", 1, "--evaluate-every", 2]
    for name, task in (("mine", "owndigits:make_task"), ("theirs", CATALOG)):
        assert laconic(capfd, "compare", "--task", task, *FLAGS, *words, "--out", name)[0] == 0
    mine, theirs = (read(here / name / "records.jsonl") for name in ("mine", "theirs"))
    for ours, other in zip(methods(mine), methods(theirs), strict=True):
        for what in ("train", "heldout", "params_sha256"):
            assert ours[what] == other[what]
    assert mine[0]["config"]["task"] == mine[0]["task"]["source"] == "owndigits:make_task"
    assert mine[0]["task"]["name"] == "mine"
    assert laconic(capfd, "compare", "--resume", "mine")[0] == 0


def test_a_sweep_and_a_training_of_a_word(here, capfd):
    sizes = [*FLAGS, "--task", "owndigits:task"]
    assert laconic(capfd, "sweep", *sizes, "--grid", "gamma=0.5,0.1", "--out", "s")[0] == 0
    assert len(read(here / "s" / "records.jsonl")) == 1 + 2 + 1
    code, out, _ = laconic(capfd, "train", *sizes, "--optimizer", "slowmo", "--out", "t")
    assert code == 0
    assert "mine, 330 parameters" in out
    theirs = train(TrainConfig(CATALOG, "slowmo", **SIZES, out=here / "theirs"))[1]
    ours = read(here / "t" / "records.jsonl")[-1]
    assert [ours[k] for k in ("loss", "heldout")] == [theirs[-1][k] for k in ("loss", "heldout")]
    (here / "owndigits.py").write_text(DIGITS.replace("/ 255", "/ 256"))
    del sys.modules["owndigits"]
    shutil.rmtree(here / "__pycache__", ignore_errors=True)
    assert_one_error(capfd, ["sweep", "--resume", "s"], ["was begun on", "functions_sha256 is"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "least"),
    [
        (["compare", "--optimizers", "local-sgd", "slowmo", "--seeds", 2, "--rounds", 400], 2),
        (["train", "--optimizer", "slowmo", "--rounds", 3000, "--checkpoint-every", 20], 2),
    ],
)
def test_a_killed_run_resumes_from_its_folder_alone(command, least, here):
    sizes = ["--task", "owndigits:make_task", "--workers", 2, "--local-steps", 2, "--batch", 8]
    whole, cut = here / "whole", here / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        shutil.copy(here / "owndigits.py", folder)
    finish(whole, *command, *sizes, "--out", "run")
    kill(cut, least, 0.0, *command, *sizes, "--out", "run")
    finish(cut, command[0], "--resume", "run")
    if command[0] == "compare":
        assert without_times(cut) == without_times(whole)
    ends = [read(folder / "run" / "records.jsonl")[-1] for folder in (whole, cut)]
    assert ends[0].get("final_digests") == ends[1].get("final_digests")


@pytest.mark.slow
def test_launched_workers_train_a_word_and_refuse_another_task(here):
    words = ["launch", "--workers", 2, "--restarts", 0, "--patience", 60, "--track", "csv", "--"]
    words += ["train", "--optimizer", "slowmo", "--local-steps", 2, "--batch", 8, "--rounds", 4]
    words += ["--evaluate-every", 2]
    finish(here, *words, "--task", "owndigits:make_task", "--out", "run")
    end = read(here / "run" / "records.jsonl")[-1]
    assert len(end["final_digests"]) == 1
    assert len(end["workers"]) == 2
    tracked = [line.split(",") for line in (here / "run" / "track.csv").read_text().splitlines()]
    seen = {int(at): float(x) for _, at, name, x in tracked[1:] if name == "test_loss"}
    looks = looks_of(read(here / "run" / "records.jsonl"))
    assert seen == {at: look["loss"] for at, look in looks.items()}
    assert list(seen) == [2, 4]
    unseeded = "feed = laconic.make_task('digits-mlp').feed\n    import os, numpy\n"
    unseeded += "    noise = numpy.frombuffer(os.urandom(64), 'u1').reshape(1, 8, 8, 1)\n"
    unseeded += "    feed.splits['train']['x'] = feed.splits['train']['x'] ^ noise\n"
    text = DIGITS.replace('feed = laconic.make_task("digits-mlp").feed\n', unseeded)
    (here / "unseeded.py").write_text(text)
    with started(here, *words, "--task", "unseeded:make_task", "--out", "other") as running:
        running.wait(timeout=300)
    assert running.returncode == 1
    said = running.said.read_text()
    assert "was begun on" in said
    assert "and now data_sha256 is" in said


# --- metrics of one's own -------------------------------------------------------------------------

SMALL = CompareConfig(
    optimizers=("local-sgd:gamma=0.1", "slowmo:gamma=0.1"), **SIZES, seeds=2, evaluate_every=2
)


def measured(metrics, rows=64):
    data = (tiny.X, tiny.Y)
    test = (np.resize(tiny.X, (rows, 5)), np.resize(tiny.Y, (rows, 2)))
    return plain_task("tiny", tiny.init, tiny.loss, data, test=test, metrics=metrics)


def norms(params, batch):
    return {"norm of w1": jnp.linalg.norm(params["w1"]), "half loss": tiny.loss(params, batch) / 2}


def test_a_metric_is_a_column_and_a_curve(tmp_path):
    folder, records = compare(replace(SMALL, out=tmp_path / "run"), measured(norms, rows=300))
    for method, row in zip(methods(records), records[-1]["rows"], strict=True):
        heldout = {name: np.array(values) for name, values in method["heldout"].items()}
        assert heldout["norm of w1"].shape == (2, 2)
        np.testing.assert_allclose(heldout["half loss"], heldout["loss"] / 2, rtol=1e-6)
        shown = {name: values[:, -1].mean() for name, values in heldout.items() if name != "loss"}
        assert row["test_metrics"] == pytest.approx(shown)
    table = summary_table(records)
    assert {"test loss", "test norm of w1", "test half loss"} <= set(table.headers)
    titles = ["Training loss", "Test loss", "Test half loss", "Test norm of w1"]
    assert [panel.title for panel in panels(records)] == titles
    assert len(curves_figure(records).axes) >= 4
    page = (folder / "report.html").read_text()
    assert "Test norm of w1" in page
    assert "test half loss" in page


def test_a_training_shows_its_metrics_at_the_end(tmp_path, raises_clearly):
    config = TrainConfig(**SIZES, optimizer="slowmo", out=tmp_path / "t")
    _, records = train(config, measured(norms))
    assert set(records[-1]["heldout"]) == {"loss", "half loss", "norm of w1"}
    assert [panel.y_label for panel in training.panels(records)] == ["train loss"]
    config = replace(config, out=tmp_path / "bad")
    with raises_clearly("the test metric 'odd' is nan after the last round", "weights are saved"):
        train(config, measured(lambda p, b: {"odd": jnp.nan}))
    mended = resume(config.out, measured(lambda p, b: {"odd": 1.0}))[1]
    assert mended[-1]["heldout"]["odd"] == 1.0


def test_a_training_shows_its_metrics_as_curves(tmp_path, raises_clearly):
    out = tmp_path / "t"
    config = TrainConfig(**SIZES, optimizer="slowmo", evaluate_every=3, out=out)
    folder, records = train(config, measured(norms))
    looked_at = [*range(3, config.rounds, 3), config.rounds]
    loss, *heldout = training.panels(records)
    assert loss.curves[0].x.tolist() == list(range(1, config.rounds + 1))
    labels = ["test half loss", "test loss", "test norm of w1"]
    assert sorted(panel.y_label for panel in heldout) == labels
    ends = records[-1]["heldout"]
    for panel in heldout:
        assert panel.curves[0].x.tolist() == looked_at
        metric = panel.y_label.removeprefix("test ")
        assert panel.curves[0].y[-1] == pytest.approx(ends[metric], rel=1e-6)
    assert (folder / "loss.png").stat().st_size > 1000
    with raises_clearly("no held-out data", "evaluate_every"):
        train(replace(config, out=tmp_path / "none"), tiny.task())
    assert not (tmp_path / "none").exists()


def looks_of(records):
    """What was found on held-out data, by round."""
    rounds = [r for r in records if r["kind"] == "rounds" and "heldout" in r]
    pairs = [pair for r in rounds for pair in zip(r["round"], r["heldout"], strict=True)]
    return {at: look for at, look in pairs if look}


def test_a_look_tells_of_every_metric(here, capfd):
    """On the terminal as it comes, in the records, in the tracker's file and at the end."""
    words = [*FLAGS, "--task", "ownmeasured:measured", "--optimizer", "slowmo", "--out", "t"]
    words += ["--rounds", 5, "--evaluate-every", 2, "--track", "csv"]
    code, out, err = laconic(capfd, "train", *words)
    assert code == 0, err
    records = read(here / "t" / "records.jsonl")
    looks = looks_of(records)
    assert list(looks) == [2, 4, 5]
    assert set(looks[2]) == {"loss", "valid_loss", "accuracy", "sum of squares"}
    lines = [line for line in err.splitlines() if line.startswith(("round ", "  "))]
    assert max(map(len, lines)) <= 80
    said = " ".join(line.strip() for line in lines).split("round ")[1:]
    for text, (at, look) in zip(said, looks.items(), strict=True):
        start, _, told = text.strip().partition(": ")
        assert start == f"{at}/5"
        valid, test, accuracy, own = (part.rpartition(" ") for part in told.split(", "))
        assert (valid[0], test[0], own[0]) == ("validation loss", "test loss", "sum of squares")
        for value, metric in ((valid, "valid_loss"), (test, "loss"), (own, "sum of squares")):
            assert float(value[2]) == pytest.approx(look[metric], rel=5e-3)
        assert accuracy[0] == f"accuracy {100 * look['accuracy']:.1f}"
    last = records[-1]["heldout"]
    assert last == pytest.approx(looks[5])
    facts = dict(line.split(":", 1) for line in out.splitlines())
    assert float(facts["test sum of squares"]) == pytest.approx(last["sum of squares"], rel=5e-3)
    assert float(facts["validation loss"]) == pytest.approx(last["valid_loss"], rel=5e-3)
    tracked = [line.split(",") for line in (here / "t" / "track.csv").read_text().splitlines()]
    own = {int(at): float(x) for _, at, name, x in tracked[1:] if name == "test_sum of squares"}
    assert own == {at: look["sum of squares"] for at, look in looks.items()}


@pytest.mark.parametrize("point", [1, 4, 7, "end"])
def test_a_killed_training_looks_again_and_finds_the_same(point, tmp_path, monkeypatch):
    config = TrainConfig(**SIZES, optimizer="slowmo", evaluate_every=2)
    config = replace(config, rounds=9, checkpoint_every=2)
    whole = train(replace(config, out=tmp_path / "whole"), measured(norms))[1]

    with dying(monkeypatch, point):
        train(replace(config, out=tmp_path / "cut"), measured(norms))
    cut = resume(tmp_path / "cut", measured(norms))[1]
    assert list(looks_of(whole)) == [2, 4, 6, 8, 9]
    assert looks_of(cut) == looks_of(whole)
    assert cut[-1]["heldout"] == whole[-1]["heldout"]
    assert cut[-1]["final_digests"] == whole[-1]["final_digests"]


def test_looking_changes_nothing_about_a_training(tmp_path):
    config = TrainConfig(**SIZES, optimizer="slowmo")
    ends = [
        train(replace(config, evaluate_every=every, out=tmp_path / str(every)), measured(norms))[1]
        for every in (None, 2)
    ]
    blind, seeing = (records[-1] for records in ends)
    assert blind["final_digests"] == seeing["final_digests"]
    assert not any("heldout" in record for record in ends[0] if record["kind"] == "rounds")
    assert blind["heldout"] == seeing["heldout"]


def test_a_metric_that_is_nan_for_a_while_is_told_once(tmp_path):
    config = TrainConfig(**SIZES, optimizer="local-sgd:gamma=0.05", evaluate_every=1)
    config = replace(config, rounds=8)
    looks = looks_of(train(replace(config, out=tmp_path / "plain"), measured(None))[1])
    losses = [look["loss"] for look in looks.values()]
    limit = (losses[1] + losses[2]) / 2
    assert sorted(losses, reverse=True) == losses  # so that the first two are above

    def late(params, batch):
        return {"late": jnp.where(tiny.loss(params, batch) > limit, jnp.nan, 2.0)}

    watcher = Notes()
    out = tmp_path / "run"
    _, records = train(replace(config, out=out), measured(late), observer=watcher)
    (note,) = [text for text in watcher.notes if "late" in text]
    assert note == "the test metric 'late' is nan after round 1; its curve has a gap there."
    assert [look["late"] for look in looks_of(records).values()] == [None] * 2 + [2.0] * 6
    (panel,) = [panel for panel in training.panels(records) if panel.y_label == "test late"]
    assert np.isnan(panel.curves[0].y).tolist() == [True] * 2 + [False] * 6


def test_accuracy_is_drawn_in_percent(tmp_path):
    config = TrainConfig(**SIZES, optimizer="slowmo", evaluate_every=3, out=tmp_path / "t")
    _, records = train(config, measured(lambda p, b: {"accuracy": 0.25}))
    panels = {panel.y_label: panel for panel in training.panels(records)}
    assert set(panels["test accuracy, %"].curves[0].y) == {25.0}


def test_a_metric_that_is_nan_is_named(tmp_path, raises_clearly):
    odd = measured(lambda p, b: {"odd": jnp.sum(p["w1"]) * jnp.nan})
    config, watcher = replace(SMALL, out=tmp_path / "run"), Notes()
    with raises_clearly("the test metric 'odd' is nan after round 2", "Mend the metric"):
        compare(config, odd, observer=watcher)
    _, records = resume(config.out, odd, on_nan="continue")
    assert methods(records)[0]["heldout"]["odd"] == [[None, None], [None, None]]
    assert records[-1]["rows"][0]["test_metrics"]["odd"] is None


def test_metrics_that_change_their_names_are_refused(tmp_path, raises_clearly):
    def changing(params, batch):
        return {"many" if len(batch[0]) > 100 else "few": 1.0}

    with raises_clearly("the metrics are", "'many'", "'few'", "same names"):
        compare(replace(SMALL, out=tmp_path / "run"), measured(changing, rows=260))
