"""A sweep's points against single runs of the same methods, its ranking against plain NumPy, and
its folder."""

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.compress import DENSE, parse_compressor
from laconic.data.feed import Resident, Streamed
from laconic.federated.population import Federated
from laconic.means import parse_aggregate
from laconic.method import Setting
from laconic.methods import METHODS, definition_of, parse_method
from laconic.runs.folder import Interrupted, Observer, RunFolder
from laconic.runs.grid import Outcome, Sweep
from laconic.runs.simulate import Simulation
from laconic.runs.sweep import chunks_of, run_sweep
from laconic.show.sweep import MEANING, RULES, Rule, kept_rounds, point_record, ranked
from laconic.store.records import RECORDS, plain, read
from laconic.tasks.base import plain_task
from laconic.tasks.catalog import make_task
from tests.outer.trees import QUICK
from tests.tiny import lenient

SETTING = Setting(workers=2, local_steps=2, batch=8, rounds=12, seeds=(0, 3), evaluate_every=4)
POINTS = {
    "local-sgd": [{"gamma": 0.3}, {"gamma": 0.05}],
    "slowmo": [
        {"gamma": 0.1, "alpha": 1.0, "beta": 0.9},
        {"gamma": 0.3, "alpha": 0.5 / 0.3, "beta": 0.0},
    ],
    "diloco": [
        {"gamma": 0.003, "lr": 0.7, "momentum": 0.9},
        {"gamma": 0.01, "lr": 0.3, "momentum": 0.5},
    ],
    "muloco": [
        {"gamma": 0.003, "lr": 0.7, "momentum": 0.9},
        {"gamma": 0.1, "lr": 0.3, "momentum": 0.5},
    ],
    "snoo": [
        {"gamma": 0.003, "lr": 0.7, "momentum": 0.9},
        {"gamma": 0.01, "lr": 0.3, "momentum": 0.5},
    ],
    "desloc": [{"gamma": 0.003}, {"gamma": 0.03}],
    "fedavg": [{"gamma": 0.3}, {"gamma": 0.05}],
    "fedexp": [{"gamma": 0.3, "eps": 1e-3}, {"gamma": 0.05, "eps": 0.0}],
    "fedavgm": [{"gamma": 0.1, "eta": 1.0, "beta": 0.9}, {"gamma": 0.05, "eta": 0.5, "beta": 0.0}],
    "fedprox": [{"gamma": 0.1, "mu": 0.01}, {"gamma": 0.1, "mu": 1.0}],
    "scaffold": [{"gamma": 0.1}, {"gamma": 0.03}],
    "fedadam": [{"gamma": 0.1, "eta": 0.01}, {"gamma": 0.3, "eta": 0.003}],
    "fedyogi": [{"gamma": 0.1, "eta": 0.01}, {"gamma": 0.3, "eta": 0.003}],
    "fedadagrad": [{"gamma": 0.1, "eta": 0.1}, {"gamma": 0.3, "eta": 0.03}],
    "sgd": [{"alpha": 0.1}, {"alpha": 0.5}],
    "adam": [{"alpha": 0.01}, {"alpha": 0.001}],
}


RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 5)).astype(np.float32)
Y = (X @ np.arange(1, 6, dtype=np.float32) / 5 + 0.1 * RNG.normal(size=90)).astype(np.float32)


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"][:, 0] - batch["y"]) ** 2)


def least_squares():
    feed = Resident({"train": {"x": X[:60], "y": Y[:60]}, "valid": {"x": X[60:], "y": Y[60:]}})
    return plain_task(
        "least-squares", lambda key: {"w": jax.random.normal(key, (5, 1))}, loss, feed
    )


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Compiling is most of the time here, and the sums are the same however little LLVM tries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
        yield


@pytest.fixture(scope="module")
def local():
    return Sweep(least_squares(), "local-sgd", SETTING)


def curves_of(single):
    return np.concatenate(
        [chunk.losses.mean(axis=2) for chunk in single.run(single.start())], axis=1
    )


def by_compare(task, method, point, setting):
    """The run that `laconic compare` makes of a point."""
    return Simulation(
        task, parse_method(definition_of(method).spec(point), setting.workers), setting
    )


def rates(*gammas):
    return [{"gamma": gamma} for gamma in gammas]


# --- the program ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", POINTS)
def test_a_point_is_the_run_that_compare_would_make(method):
    task, point = least_squares(), POINTS[method][1]
    setting = replace(SETTING, workers=1) if method == "snoo" else SETTING
    with lenient(method in ("adam", "diloco", "muloco", "snoo", "desloc")):  # optax's Adam and Muon
        outcome = Sweep(task, method, setting).run(POINTS[method], 2)
        expected = curves_of(by_compare(task, method, point, setting))
    np.testing.assert_allclose(outcome.curves[1], expected, rtol=1e-5)
    assert outcome.curves.shape == (2, 2, 12)
    assert outcome.curves.dtype == np.float32
    assert outcome.finite.all()
    assert (
        np.abs(outcome.curves[0] - outcome.curves[1]).max(axis=1) > 1e-4
    ).all()  # the points do differ


@pytest.mark.parametrize("method", ["slowmo", "diloco", "fedprox"])
def test_workers_that_clip_and_decay_are_those_of_compare(method):
    task, (first, second) = least_squares(), POINTS[method]
    points = [
        {**second, "clip": 0.05, "decay": 0.3},
        {**second, "clip": 1e6, "decay": 1e-9},
        second,
    ]
    with lenient(method == "diloco"):
        engine = Sweep(task, method, SETTING)
        outcome = engine.run(points[:2], 2)
        plain = engine.run([first, second], 2)
        expected = curves_of(by_compare(task, method, points[0], SETTING))
    np.testing.assert_allclose(outcome.curves[0], expected, rtol=1e-5)
    np.testing.assert_allclose(
        outcome.curves[1], plain.curves[1], rtol=1e-5
    )  # neither does anything there
    assert (np.abs(outcome.curves[0] - outcome.curves[1]).max(axis=1) > 1e-4).all()


@pytest.mark.parametrize("compress", ["topk:0.3+ef", "int4"])
def test_messages_are_compressed_as_compare_would(compress):
    task, points = make_task("digits-mlp:width=4"), POINTS["slowmo"]
    setting = replace(SETTING, rounds=6, evaluate_every=3)
    outcome = Sweep(task, "slowmo", setting, parse_compressor(compress)).run(points, 2)
    spec = definition_of("slowmo").spec(points[1], compress)
    assert spec.endswith(f",compress={compress}")
    np.testing.assert_allclose(
        outcome.curves[1], curves_of(Simulation(task, parse_method(spec, 2), setting)), rtol=1e-5
    )
    dense = Sweep(task, "slowmo", setting).run(points, 2)
    assert (
        np.abs(outcome.curves - dense.curves).max(axis=2) > 1e-4
    ).all()  # something was lost on the way


def test_points_name_the_same_hyper_parameters(raises_clearly):
    point = {"gamma": 0.1}
    definition_of("local-sgd").check_points([{**point, "clip": 1.0}, {**point, "clip": 2.0}])
    with raises_clearly("some points give gamma and gamma, clip", "the same"):
        definition_of("local-sgd").check_points([point, {**point, "clip": 1.0}])


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedadam"])
def test_a_point_with_a_population_is_the_run_that_compare_would_make(method):
    task, point = make_task("digits-mlp:width=4"), POINTS[method][1]
    options = Federated(20, 0.3, spread=0.5, dropout=0.3, least_work=0.5, weighting="fednova")
    setting = replace(SETTING, federated=options, rounds=6, evaluate_every=3)
    outcome = Sweep(task, method, setting).run(POINTS[method], 2)
    expected = curves_of(by_compare(task, method, point, setting))
    np.testing.assert_allclose(outcome.curves[1], expected, rtol=1e-5)
    assert (np.abs(outcome.curves[0] - outcome.curves[1]).max(axis=1) > 1e-4).all()


def test_a_point_on_a_real_task_is_the_run_that_compare_would_make():
    task, setting = make_task("digits-mlp:width=16"), Setting(2, 2, 16, 30, (5,), 10)
    points = POINTS["slowmo"]
    outcome = Sweep(task, "slowmo", setting).run(points, 3)
    single = by_compare(task, "slowmo", points[0], setting)
    *chunks, last = single.run(single.start())
    expected = np.concatenate([chunk.losses.mean(axis=2) for chunk in [*chunks, last]], axis=1)
    np.testing.assert_allclose(outcome.curves[0], expected, rtol=1e-5)
    assert expected[0, -1] < expected[0, 0] / 2
    split = jax.tree.map(jnp.asarray, task.feed.splits["valid"])
    params, model_state = jax.tree.map(lambda leaf: leaf[0], tuple(last.state.shared))
    for name, value in task.evaluate(params, model_state, split).items():
        np.testing.assert_allclose(outcome.valid[name][0, 0], value, rtol=1e-5)


def test_every_method_that_can_be_swept_is_tested_here():
    assert {name for name, found in METHODS.items() if "sweep" not in found.cannot} == set(POINTS)
    for method, points in POINTS.items():
        assert set(points[0]) == set(METHODS[method].swept)


def test_padding_changes_no_bit_and_nothing_is_compiled_again(monkeypatch):
    traced, plain = [], METHODS["local-sgd"]
    counted = replace(plain, make=lambda K, gamma: traced.append(1) or plain.make(K, gamma))
    monkeypatch.setitem(METHODS, "local-sgd", counted)
    engine = Sweep(least_squares(), "local-sgd", SETTING)
    whole = engine.run(rates(0.3, 0.1, 0.2), 3)
    once = len(traced)
    part = engine.run(rates(0.3, 0.1), 3)
    assert len(traced) == once
    np.testing.assert_array_equal(part.curves, whole.curves[:2])
    for name, value in part.valid.items():
        np.testing.assert_array_equal(value, whole.valid[name][:2])


def test_a_diverged_point_is_kept_and_touches_no_other(local):
    ticks = []
    outcome = local.run(rates(0.3, 1e4, 0.1), 3, lambda done, loss: ticks.append((done, loss)))
    sound = local.run(rates(0.3, 0.2, 0.1), 3)
    np.testing.assert_array_equal(outcome.curves[[0, 2]], sound.curves[[0, 2]])
    assert np.isfinite(outcome.curves[1, :, 0]).all()
    assert np.isnan(outcome.curves[1, :, -1]).all()
    assert outcome.finite.tolist() == [[True, True], [False, False], [True, True]]
    assert [done for done, _ in ticks] == [4, 8, 12]
    assert ticks[-1][1] == pytest.approx(outcome.curves[[0, 2], :, -1].mean(axis=1).min(), rel=1e-6)


def test_a_curve_that_came_back_from_infinity_stays_out(local, monkeypatch):
    losses = np.ones((2, 1, 4), np.float32)
    losses[0, 0, 1] = np.inf
    monkeypatch.setattr(local, "_advance", lambda *arguments, length: (arguments[2], losses))
    curves = local.run(rates(0.3), 1).curves
    assert np.isfinite(curves[0, 0]).tolist() == [True] + [False] * 11
    assert np.isfinite(curves[0, 1]).all()


def gathered(jaxpr):
    """The sizes of all gathers in a program, however deep."""
    sizes = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "gather":
            sizes.append(math.prod(eqn.outvars[0].aval.shape))
        for inner in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            sizes += gathered(inner) if hasattr(inner, "eqns") else []
    return sizes


def test_the_points_of_a_seed_share_one_gather_of_the_data(local):
    numbers = {"gamma": np.full(5, 0.1, np.float32)}
    state = jax.eval_shape(
        local._init,
        local.task,
        numbers,
        jax.eval_shape(lambda: jax.random.split(jax.random.key(0))),
    )
    program = jax.make_jaxpr(local._segment, static_argnums=4)(local.task, numbers, state, None, 4)
    assert max(gathered(program.jaxpr)) == 2 * 2 * 8 * 5  # S·K·B examples of 5 features, and no P


def test_streams_are_refused(raises_clearly):
    task = plain_task("flow", lambda key: {"w": jnp.zeros(5)}, loss, Streamed({}, lambda: iter(())))
    with raises_clearly("flow", "streams"):
        Sweep(task, "local-sgd", SETTING)


# --- points ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "point", "parts"),
    [
        ("slomo", {}, ["slomo", "Did you mean 'slowmo'?"]),
        ("local-sgd", {"gama": 1.0}, ["gama", "Did you mean 'gamma'?"]),
        ("local-sgd", {"gamma": 0.0}, ["gamma must be positive", "0.0"]),
        ("local-sgd", {"gamma": -0.1}, ["gamma must be positive", "-0.1"]),
        ("local-sgd", {"gamma": math.nan}, ["gamma must be positive", "nan"]),
        ("local-sgd", {"gamma": math.inf}, ["gamma must be positive", "inf"]),
        ("local-sgd", {"gamma": 1e39}, ["gamma must be positive", "1e+39"]),
        ("local-sgd", {"gamma": 1e-60}, ["gamma must be positive", "1e-60"]),  # 0 in float32
        ("slowmo", {"gamma": 1.0, "alpha": 1.0, "beta": 1.0}, ["beta", "below 1"]),
        ("diloco", {"gamma": 1.0, "lr": 1.0, "momentum": -0.1}, ["momentum", "at least 0"]),
        ("slowmo", {"gamma": 1.0}, ["give alpha, beta too"]),
        ("local-sgd", {"gamma": 1.0, "clip": 0.0}, ["clip must be positive", "0.0"]),
        ("local-sgd", {"gamma": 1.0, "decay": -1.0}, ["decay must be positive", "-1.0"]),
        (
            "adam",
            {"alpha": 1.0, "clip": 1.0},
            ["hyper-parameter of adam", "'clip'"],
        ),  # it takes no local steps
    ],
)
def test_a_bad_point_is_refused(method, point, parts, raises_clearly):
    with raises_clearly(*parts):
        definition_of(method, "sweep").check_points([point])


def test_chunks_are_few_and_alike():
    for points, at_once in itertools.product(range(1, 60), range(1, 20)):
        chunks = chunks_of(points, at_once)
        assert [i for chunk in chunks for i in chunk] == list(range(points))
        assert len({len(chunk) for chunk in chunks[:-1]}) <= 1
        assert len(chunks[-1]) <= len(chunks[0]) <= at_once
        assert len(chunks) == math.ceil(points / at_once)
    assert [len(chunk) for chunk in chunks_of(487, 44)] == [41] * 11 + [36]


# --- the ranking ----------------------------------------------------------------------------------


def trailing(curve):
    return [sum(curve[t - 9 : t + 1]) / 10 for t in range(9, len(curve))]


def test_what_is_kept_of_a_point_against_plain_numpy():
    rng = np.random.default_rng(0)
    curves = (2 * np.exp(-np.arange(57) / 30) * rng.uniform(0.8, 1.2, (3, 57))).astype(np.float32)
    valid = {"loss": np.array([0.5, 0.75, 1.0], np.float32)}
    record = point_record(curves, np.array([True, True, False]), valid, Rule("rounds", 0.9))
    mean = trailing(curves.astype(float).mean(axis=0))
    assert record["minimum"] == pytest.approx(min(mean), rel=1e-12)
    assert record["final"] == pytest.approx(
        np.mean([trailing(c)[-1] for c in curves.astype(float)]), rel=1e-12
    )
    assert record["rounds_to_target"] == next(
        t for t, value in enumerate(mean, start=10) if value <= 0.9
    )
    assert record["valid"] == {"loss": 0.75}
    assert record["diverged"] == [False, False, True]
    np.testing.assert_allclose(
        record["curve"], [mean[t - 10] for t in (10, 20, 30, 40, 50, 57)], rtol=1e-12
    )
    assert point_record(curves, np.ones(3, bool), {}, Rule())["rounds_to_target"] is None


@pytest.mark.parametrize(
    ("rounds", "kept"),
    [
        (4, [4]),
        (10, [10]),
        (25, [10, 20, 25]),
        (1000, list(range(10, 1001, 10))),
        (2500, list(range(25, 2501, 25))),
    ],
)
def test_the_kept_rounds(rounds, kept):
    assert kept_rounds(rounds).tolist() == kept


def made_up(index, minimum, diverged=False, **fields):
    usual = {"final": minimum, "rounds_to_target": None, "valid": {}, "diverged": [False, diverged]}
    return {"index": index, "minimum": minimum, **usual, **fields}


@pytest.mark.parametrize(
    ("by", "order"),
    [
        ("minimum", [4, 1, 0, 3, 2]),
        ("final", [0, 4, 1, 3, 2]),
        ("rounds", [1, 0, 4, 3, 2]),
        ("valid", [3, 0, 1, 4, 2]),
    ],
)
def test_the_best_comes_first_the_diverged_last(by, order):
    points = [
        made_up(0, 0.3, final=0.1, rounds_to_target=50, valid={"loss": 0.6}),
        made_up(1, 0.2, final=0.5, rounds_to_target=50, valid={"loss": 0.7}),
        made_up(2, 0.01, True, final=None, rounds_to_target=20, valid={"loss": None}),
        made_up(3, 0.4, final=0.6, valid={"loss": 0.5}),
        made_up(4, 0.15, final=0.4, valid={"loss": None}),
    ]
    for shuffled in itertools.islice(itertools.permutations(points), 0, 120, 7):
        assert [point["index"] for point in ranked(shuffled, by)] == order


def test_the_ranking_is_that_of_a_plain_sort():
    rng = np.random.default_rng(1)
    curves = rng.uniform(0.1, 3, (30, 2, 40)) * rng.uniform(0.5, 2, (30, 1, 1))
    records = [
        {"index": i, **point_record(c, np.ones(2, bool), {}, Rule())} for i, c in enumerate(curves)
    ]
    lowest = [min(trailing(c.mean(axis=0))) for c in curves]
    last = [c[:, -10:].mean() for c in curves]
    assert [r["index"] for r in ranked(records, "minimum")] == np.argsort(lowest).tolist()
    assert [r["index"] for r in ranked(records, "final")] == np.argsort(last).tolist()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("best",), ["rule to rank by", "best"]),
        (("rounds",), ["target loss"]),
        (("minimum", math.nan), ["target loss must be finite"]),
    ],
)
def test_a_bad_rule_is_refused(arguments, parts, raises_clearly):
    with raises_clearly(*parts):
        Rule(*arguments)


# --- into a folder --------------------------------------------------------------------------------


class Fake:
    """Stands in for `Sweep`: the curves of a point follow from its number."""

    method, definition, compressor = "local-sgd", METHODS["local-sgd"], DENSE
    aggregate = parse_aggregate("mean")
    task = SimpleNamespace(name="fake", feed=SimpleNamespace(splits={}))

    def __init__(self, rounds=30, seeds=(0, 1)):
        self.setting, self.chunks = Setting(2, 1, 4, rounds, seeds, 10), []

    def run(self, points, size, tick, ready):
        self.chunks.append([point["gamma"] for point in points])
        assert len(points) <= size
        for done in range(10, self.setting.rounds + 1, 10):
            tick(done, 1.0)
        S, T = len(self.setting.seeds), self.setting.rounds
        curves = [
            np.random.default_rng(round(1e6 * p["gamma"])).uniform(size=(S, T)) for p in points
        ]
        return Outcome(np.array(curves, np.float32), np.ones((len(points), S), bool), {})


class Watcher(Observer):
    def __init__(self, leave_at=math.inf):
        self.begun, self.seen, self.leave_at = [], [], leave_at

    def begin(self, label, rounds, done):
        self.begun.append((label, rounds, done))

    def progress(self, label, done, loss):
        self.seen.append(done)

    def note(self, text):
        raise AssertionError(text)

    def stop(self):
        return len(self.seen) >= self.leave_at


GRID = rates(*np.linspace(0.1, 0.7, 7).tolist())


def run_in(folder, watcher=None, engine=None, points=GRID):
    watcher, engine = watcher or Watcher(), engine or Fake()
    folder = RunFolder(folder)
    if not folder.records():
        folder.append("run", grid_points=len(points))
    return run_sweep(engine, points, folder, points_at_once=3, observer=watcher, stop=watcher.stop)  # type: ignore[arg-type]


def timeless(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_the_records_of_a_sweep(tmp_path):
    watcher, engine = Watcher(), Fake()
    records = run_in(tmp_path, watcher, engine)
    assert [r["kind"] for r in records] == ["run", *["point"] * 7, "ranking"]
    assert [r["index"] for r in records[1:-1]] == list(range(7))
    assert [r["numbers"] for r in records[1:-1]] == GRID
    assert [len(chunk) for chunk in engine.chunks] == [3, 3, 1]
    assert [r["chunk"] for r in records[1:-1]] == [0, 0, 0, 1, 1, 1, 2]
    assert watcher.begun == [("local-sgd", 90, 0)]
    assert watcher.seen == list(range(10, 91, 10))
    for record, point in zip(records[1:-1], GRID, strict=True):
        drawn = (
            np.random.default_rng(round(1e6 * point["gamma"]))
            .uniform(size=(2, 30))
            .astype(np.float32)
        )
        assert record["minimum"] == min(trailing(drawn.astype(float).mean(axis=0)))
        assert parse_method(record["label"], 2).label == f"local-sgd:gamma={point['gamma']!r}"
        assert record["seeds"] == [0, 1]
    ranking = records[-1]
    by_minimum = sorted(records[1:-1], key=lambda r: r["minimum"])
    assert ranking["order"] == [r["index"] for r in by_minimum]
    assert ranking["best"] == by_minimum[0]["label"]
    assert (ranking["by"], ranking["diverged"]) == ("minimum", 0)


@pytest.mark.parametrize(("leave_at", "done"), [(1, 0), (2, 0), (3, 3), (4, 3), (6, 6), (8, 6)])
def test_a_stopped_sweep_goes_on_with_the_chunk_it_was_in(leave_at, done, tmp_path):
    whole = run_in(tmp_path / "whole")
    with pytest.raises(Interrupted, match=f"{done} of 7 points") as info:
        run_in(tmp_path / "part", Watcher(leave_at))
    assert info.value.folder == tmp_path / "part"
    assert sum(r["kind"] == "point" for r in read(tmp_path / "part" / RECORDS)) == done
    watcher, engine = Watcher(), Fake()
    assert timeless(run_in(tmp_path / "part", watcher, engine)) == timeless(whole)
    assert sum(map(len, engine.chunks)) == 7 - done
    assert watcher.begun == [("local-sgd", 90, 10 * done)]


def test_a_chunk_cut_off_while_it_was_written_is_done_again(tmp_path):
    whole = run_in(tmp_path / "whole")
    lines = (tmp_path / "whole" / RECORDS).read_text().splitlines(keepends=True)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / RECORDS).write_text(
        "".join(lines[:6]) + lines[6][:40]
    )  # two of the second chunk, torn third
    engine = Fake()
    assert timeless(run_in(tmp_path / "part", engine=engine)) == timeless(whole)
    assert [len(chunk) for chunk in engine.chunks] == [3, 1]


def test_a_finished_sweep_is_left_alone(tmp_path):
    records, before = run_in(tmp_path), (tmp_path / RECORDS).read_bytes()
    engine, watcher = Fake(), Watcher()
    assert run_in(tmp_path, watcher, engine) == records
    assert (engine.chunks, watcher.begun) == ([], [])
    assert (tmp_path / RECORDS).read_bytes() == before


def test_the_largest_sweep_stays_small(tmp_path):
    curves = np.random.default_rng(0).uniform(0.01, 1, (10, 1000)).astype(np.float32)
    kept = point_record(
        curves,
        np.ones(10, bool),
        {"loss": curves[:, 0], "accuracy": curves[:, 1]},
        Rule("rounds", 0.5),
    )
    point = {"gamma": 0.3, "alpha": 0.1 / 0.3, "beta": 0.95}
    rest = {
        "index": 486,
        "label": definition_of("slowmo").spec(point),
        "numbers": point,
        "seeds": range(10),
        "chunk": 11,
    }
    line = json.dumps(
        plain({"kind": "point", **rest, **kept, "seeds": list(range(10)), "seconds": 123.456})
    )
    assert 487 * (len(line) + 1) < 1_000_000


@pytest.mark.parametrize(
    ("points", "rule", "parts"),
    [
        ([], Rule(), ["no points"]),
        ([{"beta": 0.5}], Rule(), ["unknown hyper-parameter of local-sgd 'beta'"]),
        (GRID, Rule("valid"), ["fake has no validation split"]),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    points, rule, parts, tmp_path, raises_clearly
):
    engine = Fake()
    folder = RunFolder(tmp_path)
    folder.append("run")
    with raises_clearly(*parts):
        run_sweep(engine, points, folder, rule)  # type: ignore[arg-type]
    assert engine.chunks == []


def test_every_rule_has_a_meaning():
    assert set(MEANING) == set(RULES)
