"""A server that dies goes on from its checkpoint to the same result; what cannot work is one clear
error."""

import json

import numpy as np
import optax
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

from flwr.app import MetricRecord

from laconic import zoo
from laconic.errors import LaconicError
from laconic.flower import LearnedStrategy
from laconic.outer.learned import LearnedOptimizer
from laconic.store import checkpoint, sealed
from tests.flower.app import waves
from tests.flower.grids import FakeGrid, answer, fit, honest, record
from tests.zoo.made import LOPT_A, a_card, weights

TOTAL = 6


class Killed(Exception):
    pass


def client(k, dies_in=None):
    """Trains; its evaluations say nothing but NaN, and what it started from."""

    def run(round_, weights):
        if round_ == dies_in:
            raise Killed
        metrics = {
            "loss": float(round_),
            "parts": [1.5, float("nan")],
            "start": float(weights["w"].sum()),
        }
        return answer(waves.train(weights, round_, k), 10 + k, **metrics)

    return run


def clients(dies_in=None):
    return {k: client(k, dies_in) for k in range(3)}


def seen(server_round, arrays):
    return MetricRecord({"round": server_round, "norm": float(np.linalg.norm(arrays["w"].numpy()))})


def everything(result):
    kinds = (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    )
    text = json.dumps(
        [{r: dict(m) for r, m in sorted(kind.items())} for kind in kinds]
    )  # in which NaN equals NaN
    return text, {name: array.numpy() for name, array in result.arrays.items()}


def run(path, optimizer, grid, rounds=TOTAL, weights=None):
    strategy = LearnedStrategy(optimizer, checkpoint=path)
    initial = record(waves.new_weights() if weights is None else weights)
    return everything(strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=seen))


@pytest.mark.parametrize("optimizer", ["lopt-a-general", "fedadam", "lagg-a:seed=3"])
def test_a_killed_server_goes_on_to_the_same_result(optimizer, tmp_path):
    path = tmp_path / "here" / "server.safetensors"
    few = {k: client(k) for k in range(2)} if optimizer.startswith("lagg") else clients()
    text, arrays = run(tmp_path / "whole", optimizer, FakeGrid(few))
    with pytest.raises(Killed):
        run(path, optimizer, FakeGrid({k: client(k, dies_in=3) for k in few}))
    again = FakeGrid(few)
    resumed_text, resumed = run(path, optimizer, again)
    assert resumed_text == text
    assert sorted(json.loads(text)[1], key=int) == [str(r) for r in range(1, TOTAL + 1)]
    assert sorted(json.loads(text)[2], key=int) == [str(r) for r in range(TOTAL + 1)]
    for name, x in arrays.items():
        np.testing.assert_array_equal(resumed[name], x)
    assert [r for kind, r in again.asked if kind == "train"] == [
        r for r in range(3, TOTAL + 1) for _ in few
    ]
    assert [r for kind, r in again.asked if kind == "evaluate"] == [
        r for r in range(2, TOTAL + 1) for _ in few
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_a_model_comes_back_to_the_last_bit(dtype, tmp_path):
    more = {"count": np.int64(2**40), "scale.running_mean": np.ones((), np.float32)}
    start = waves.new_weights(dtype) | more
    keep = lambda k: lambda r, w: answer(w | waves.train({n: w[n] for n in waves.SHAPES}, r, k))
    first, _ = fit(
        LearnedStrategy("fedavg", checkpoint=tmp_path / "c"),
        {k: keep(k) for k in range(2)},
        2,
        start,
    )
    silent = {k: lambda *_: pytest.fail("asked again") for k in range(2)}
    done = LearnedStrategy("fedavg", checkpoint=tmp_path / "c", fraction_evaluate=0.0)
    second, _ = fit(done, silent, 2, start)
    assert list(second) == list(start)
    for name, x in first.items():
        assert second[name].dtype == x.dtype == start[name].dtype
        np.testing.assert_array_equal(second[name], x)


def test_a_strategy_can_be_started_twice():
    strategy = LearnedStrategy("fedadam")
    first, _ = fit(strategy, {k: honest(k) for k in range(2)})
    second, _ = fit(strategy, {k: honest(k) for k in range(2)})
    for name, x in first.items():
        np.testing.assert_array_equal(second[name], x)


@pytest.fixture
def path(tmp_path):
    run(tmp_path / "server", "fedadam", FakeGrid(clients()), rounds=2)
    return tmp_path / "server"


def test_weights_of_another_architecture_are_refused(path, raises_clearly):
    other = waves.new_weights() | {"w": np.zeros((5, 4), np.float32)}
    with raises_clearly(
        "another architecture", "w is ['float32', [4, 4]] there and ['float32', [5, 4]] here"
    ):
        run(path, "fedadam", FakeGrid(clients()), weights=other)
    with raises_clearly("another architecture", "more is missing there"):
        run(
            path,
            "fedadam",
            FakeGrid(clients()),
            weights=waves.new_weights() | {"more": np.zeros(2)},
        )


def test_a_checkpoint_of_something_else_is_refused(path, tmp_path, raises_clearly):
    with raises_clearly("was begun with optimizer 'fedadam'", "'slowmo'"):
        run(path, "slowmo", FakeGrid(clients()))
    with raises_clearly("holds 2 rounds and 1 were asked for"):
        run(path, "fedadam", FakeGrid(clients()), rounds=1)
    strategy = LearnedStrategy("fedadam", checkpoint=path, layout="as-is")
    with raises_clearly("was begun with layout 'torch'"):
        fit(strategy, {k: honest(k) for k in range(2)})
    checkpoint.save(tmp_path / "other", {"x": np.zeros(2, np.float32)}, {"rounds": 3})
    with raises_clearly("not of a Flower strategy"):
        run(tmp_path / "other", "fedadam", FakeGrid(clients()))
    path.write_bytes(path.read_bytes()[:-1])
    with raises_clearly("damaged"):
        run(path, "fedadam", FakeGrid(clients()))


def test_a_state_of_another_optimizer_of_that_name_is_refused(tmp_path, raises_clearly):
    path = tmp_path / "own.safetensors"
    zoo.publish(path, LOPT_A, weights(), a_card())
    run(tmp_path / "server", str(path), FakeGrid(clients()), rounds=1)
    run(tmp_path / "server", str(path), FakeGrid(clients()), rounds=1)
    zoo.publish(path, LOPT_A, weights(seed=6), a_card())
    with raises_clearly("was begun with another", "own.safetensors", "another path"):
        run(tmp_path / "server", str(path), FakeGrid(clients()), rounds=1)


BAD = {
    "unknown": ({"optimizer": "lopt-b"}, ["unknown optimizer 'lopt-b'"]),
    "option": ({"optimizer": "slowmo:bta=1"}, ["unknown option of slowmo", "Did you mean 'beta'?"]),
    "other K": (
        {"optimizer": "lagg-a-fmnist", "min_train_nodes": 4},
        ["K = 8", "min_train_nodes says 4"],
    ),
    "fraction": (
        {"optimizer": "lagg-a-fmnist", "fraction_train": 0.5},
        ["exactly K = 8", "leave fraction_train out"],
    ),
    "scaffold": ({"optimizer": "scaffold"}, ["control variates", "take fedavgm"]),
    "synchronous": ({"optimizer": "adam:alpha=0.1"}, ["takes no local steps"]),
    "compressed": ({"optimizer": "fedavg:compress=int8"}, ["leave compress out"]),
    "layout": ({"layout": "jax"}, ["unknown layout 'jax'", "as-is"]),
    "limit": ({"norm_limit": 0.0}, ["norm_limit must be positive"]),
    "letters": ({"averaged": "*mean"}, ["averaged is a list", "'*mean'"]),
    "optax": ({"optimizer": optax.sgd(1.0)}, ["is no outer optimizer", "laconic.from_optax"]),
    "no file": ({"optimizer": "nowhere/x.safetensors"}, ["nowhere/x.safetensors"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case, raises_clearly):
    given, parts = BAD[case]
    with raises_clearly(*parts):
        LearnedStrategy(**given)


def test_phi_of_another_architecture_is_refused(tmp_path, raises_clearly):
    """The file says LOpt-A, and holds the weights of an LAgg-A."""
    import jax

    learned, other = LearnedOptimizer("lopt-a"), LearnedOptimizer("lagg-a", 4)
    zoo.publish(
        tmp_path / "a.safetensors", learned, learned.init(jax.random.key(0)), a_card(learned)
    )
    contents = sealed.read(tmp_path / "a.safetensors")
    theta = {name: np.asarray(x) for name, x in other.init(jax.random.key(0)).items()}
    sealed.write(tmp_path / "b.safetensors", contents._replace(arrays=theta))
    assert LearnedStrategy(tmp_path / "a.safetensors").label.endswith("a.safetensors")
    with raises_clearly("b.safetensors"):
        LearnedStrategy(tmp_path / "b.safetensors")


def test_a_model_without_parameters_is_refused(raises_clearly):
    with raises_clearly("none is a parameter"):
        fit(
            LearnedStrategy("fedavg"),
            {},
            weights={"count": np.int64(3), "bn.running_mean": np.zeros(2)},
        )
    with raises_clearly("arrays of complex128"):
        fit(LearnedStrategy("fedavg"), {}, weights={"w": np.zeros(2), "z": np.zeros(2, complex)})


def test_a_model_that_diverges_is_an_error_and_the_checkpoint_holds_the_round_before(
    tmp_path, raises_clearly
):
    half = lambda k: lambda r, w: answer({n: x * np.float16(0.5) for n, x in w.items()})
    strategy = LearnedStrategy("optax:name=sgd,lr=1000000", checkpoint=tmp_path / "c")
    with raises_clearly("after round 2", "diverged"):
        fit(strategy, {k: half(k) for k in range(2)}, 3, {"w": np.float16([[0.1, 0.01]])})
    assert checkpoint.peek(tmp_path / "c")["round"] == 1
    with raises_clearly("initial arrays hold NaN"):
        fit(LearnedStrategy("fedavg"), {}, weights={"w": np.float32([np.nan])})


def test_the_limits_hold_what_they_say():
    with pytest.raises(LaconicError, match="weight_limit must be positive"):
        LearnedStrategy("fedavg", weight_limit=-1)
