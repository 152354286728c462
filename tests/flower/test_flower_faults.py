"""What a client does wrong costs the run that client's reply and nothing else, and is counted."""

import io
import zipfile

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

from flwr.app import Array, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from laconic.flower import LearnedStrategy
from tests.flower.app import waves
from tests.flower.grids import FakeGrid, answer, fit, honest, record

GOOD = {11: honest(0), 22: honest(1), 33: honest(2)}


def with_w(change):
    """An answer whose first array is something else."""
    return lambda round_, weights: answer(weights | {"w": change(weights["w"])})


def counting(count):
    return lambda round_, weights: answer(weights, count)


def a_zip(w):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("w.npy", b"\0" * 1000)
    return Array("float32", (4, 4), "numpy.ndarray", file.getvalue())


def a_header_of(shape):
    """Bytes that claim a shape and have no data."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return Array(
        "float32",
        (4, 4),
        "numpy.ndarray",
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header,
    )


def short(w):
    array = Array(w)
    return Array(array.dtype, array.shape, array.stype, array.data[:-4])


FAULTS = {
    "nan": ("not-finite", with_w(lambda w: np.where(np.eye(4) > 0, np.nan, w).astype(np.float32))),
    "infinity": ("not-finite", with_w(lambda w: np.full_like(w, np.inf))),
    "shape": ("shape", with_w(lambda w: w[:2])),
    "rank": ("shape", with_w(lambda w: w.reshape(-1))),
    "dtype": ("dtype", with_w(lambda w: w.astype(np.float64))),
    "integers": ("dtype", with_w(lambda w: w.astype(np.int32))),
    "missing key": ("keys", lambda _, weights: answer({"w": weights["w"]})),
    "another key": ("keys", lambda _, weights: answer({**weights, "v": weights["w"]})),
    "no arrays": ("keys", lambda _, weights: answer({})),
    "garbage": (
        "garbage",
        with_w(lambda w: Array("float32", (4, 4), "numpy.ndarray", b"\x80\x04N.")),
    ),
    "archive": ("garbage", with_w(a_zip)),
    "other format": (
        "garbage",
        with_w(lambda w: Array("float32", (4, 4), "pickle", Array(w).data)),
    ),
    "cut short": ("garbage", with_w(short)),
    "huge header": ("shape", with_w(lambda w: a_header_of((10**6, 10**6)))),
    "no data": ("garbage", with_w(lambda w: a_header_of((4, 4)))),
    "broken header": ("garbage", with_w(lambda w: a_header_of("((((("))),
    "far away": ("norm", with_w(lambda w: w + 1e3)),
    "overflow": ("norm", with_w(lambda w: np.full_like(w, 3e38))),
    "no metrics": ("records", lambda _, weights: RecordDict({"arrays": record(weights)})),
    "two models": (
        "records",
        lambda _, weights: RecordDict({**answer(weights), "more": record(weights)}),
    ),
    "no count": (
        "weight",
        lambda _, w: RecordDict({"arrays": record(w), "metrics": MetricRecord({"loss": 1.0})}),
    ),
    "nan count": ("weight", counting(float("nan"))),
    "negative count": ("weight", counting(-3)),
    "a list": ("weight", counting([1, 2])),
    "heavy": ("weight", counting(10**9)),
}


@pytest.fixture(scope="module")
def without():
    return fit(LearnedStrategy("slowmo"), GOOD, rounds=2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_changes_nothing_and_is_counted(fault, without, caplog):
    reason, bad = FAULTS[fault]
    arrays, metrics = fit(
        LearnedStrategy("slowmo", fraction_evaluate=0.0), {5: bad, **GOOD}, rounds=2
    )
    for name, x in without[0].items():
        np.testing.assert_array_equal(arrays[name], x)
    counts = {
        "clients-counted": 3,
        "clients-dropped": 1,
        "clients-failed": 0,
        f"dropped-{reason}": 1,
    }
    assert metrics == {r: {"round": pytest.approx(r), **counts} for r in (1, 2)}
    said = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert [text.startswith("aggregate_train: node 5 is left out: ") for text in said] == [
        True,
        True,
    ]


@pytest.mark.parametrize("answered", [Error(0, "it broke"), None], ids=["raises", "silent"])
def test_a_client_that_fails_changes_nothing_and_is_counted(answered, without):
    arrays, metrics = fit(LearnedStrategy("slowmo"), {5: lambda *_: answered, **GOOD}, rounds=2)
    for name, x in without[0].items():
        np.testing.assert_array_equal(arrays[name], x)
    assert metrics[2] == {**without[1][2], "clients-failed": 1}


def test_a_node_that_the_superlink_gives_up_is_counted_once(without, caplog):
    """The SuperLink answers in its place, under an id of its own."""

    class Losing(FakeGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            replies = super().send_and_receive([m for m in messages if m.metadata.dst_node_id != 5])
            for message in messages[:1]:
                replies.append(Message(Error(3, "Node Unavailable"), reply_to=message))
                replies[-1].metadata.__dict__["_src_node_id"] = 1
            return replies

    strategy = LearnedStrategy("slowmo", fraction_evaluate=0.0)
    result = strategy.start(Losing({5: None, **GOOD}), record(waves.new_weights()), num_rounds=2)
    for name, x in without[0].items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), x)
    assert dict(result.train_metrics_clientapp[2]) == {**without[1][2], "clients-failed": 1}
    assert caplog.text.count("a node is lost: Node Unavailable") == 2


def test_of_two_answers_of_one_client_the_first_counts(without):
    twice = lambda round_, weights: [GOOD[11](round_, weights), answer(weights)]
    arrays, metrics = fit(LearnedStrategy("slowmo"), GOOD | {11: twice}, rounds=2)
    for name, x in without[0].items():
        np.testing.assert_array_equal(arrays[name], x)
    assert metrics[1]["dropped-stranger"] == 1


def test_flowers_own_averaging_would_have_been_poisoned():
    """What makes the checks worth having: the same reply ends a run with FedAvg."""
    clients = {5: FAULTS["nan"][1], 6: lambda _, weights: answer(weights)}
    result = FedAvg().start(FakeGrid(clients), record(waves.new_weights()), num_rounds=1)
    assert np.isnan(result.arrays["w"].numpy()).any()


def test_a_norm_that_grows_for_everyone_is_no_fault_and_limits_can_be_moved():
    far = lambda k: (
        lambda round_, weights: answer({n: w + 10.0 ** (3 * round_) for n, w in weights.items()})
    )
    _, metrics = fit(LearnedStrategy("fedavg"), {k: far(k) for k in range(3)}, rounds=3)
    assert [metrics[r]["clients-counted"] for r in (1, 2, 3)] == [3, 3, 3]
    wide = LearnedStrategy("fedavg", norm_limit=1e9, weight_limit=1e9)
    _, metrics = fit(wide, {5: FAULTS["far away"][1], 6: counting(10**9), **GOOD}, rounds=1)
    assert metrics[1]["clients-counted"] == 5


def test_a_round_without_a_good_reply_changes_nothing():
    arrays, metrics = fit(
        LearnedStrategy("fedadam"), {k: FAULTS["nan"][1] for k in range(3)}, rounds=2
    )
    for name, x in waves.new_weights().items():
        np.testing.assert_array_equal(arrays[name], x)
    assert metrics[2] == {
        "clients-counted": 0,
        "clients-dropped": 3,
        "clients-failed": 0,
        "dropped-not-finite": 3,
    }


def test_nobody_with_examples_changes_nothing():
    arrays, metrics = fit(LearnedStrategy("fedavg"), {k: honest(k, 0) for k in range(3)}, rounds=1)
    for name, x in waves.new_weights().items():
        np.testing.assert_array_equal(arrays[name], x)
    assert metrics[1]["clients-counted"] == 3


def test_metrics_that_do_not_fit_the_others_are_left_out_and_their_arrays_count():
    odd = {
        5: lambda r, w: answer(waves.train(w, r, 3), loss=[1.0, 2.0]),
        6: lambda r, w: answer(waves.train(w, r, 4), 10, round=float("nan")),
    }
    _, metrics = fit(LearnedStrategy("fedavg"), GOOD | odd, rounds=1)
    assert metrics[1] == {
        "round": pytest.approx(1),
        "clients-counted": 5,
        "clients-dropped": 0,
        "clients-failed": 0,
    }


def test_evaluation_goes_on_without_those_that_cannot_be_averaged():
    good = lambda loss: RecordDict({"metrics": MetricRecord({"loss": loss, "num-examples": 10})})
    answers = {
        1: good(1.0),
        2: good(3.0),
        3: good(float("nan")),
        4: RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 10})}),
        5: RecordDict({}),
        6: RecordDict({"metrics": MetricRecord({"loss": 9.0})}),
        7: Error(0, "it broke"),
        8: None,
    }
    strategy = LearnedStrategy("fedavg", fraction_train=0.0)
    result = strategy.start(
        FakeGrid({n: lambda *_, a=a: a for n, a in answers.items()}), record(waves.new_weights()), 1
    )
    assert {r: dict(metrics) for r, metrics in result.evaluate_metrics_clientapp.items()} == {
        1: {"loss": 2.0}
    }
    assert result.train_metrics_clientapp == {}


# --- statistics, zero changes and weights ---------------------------------------------------------

NORM = {
    "norm.weight": np.ones(2, np.float32),
    "norm.running_mean": np.zeros(2, np.float32),
    "norm.running_var": np.ones(2, np.float32),
    "norm.num_batches_tracked": np.array(0),
}


def with_statistics(k, count=10, **changes):
    """A client whose BatchNorm saw 3 batches; `changes` are what it sends instead."""
    honest_ones = {
        "norm.running_mean": np.array([0.1 * k, -0.2], np.float32),
        "norm.running_var": np.array([1.0 + 0.1 * k, 0.8], np.float32),
    }

    def reply(round_, weights):
        seen = np.asarray(weights["norm.num_batches_tracked"]) + 3
        said = honest_ones | {"norm.num_batches_tracked": seen}
        changed = {f"norm.{name}": value for name, value in changes.items()}
        return answer(
            weights | {"norm.weight": weights["norm.weight"] - 0.1} | said | changed, count
        )

    return reply


STATISTICS = {
    "mean of 1e30": {"running_mean": np.array([1e30, 0], np.float32)},
    "mean of -1e30": {"running_mean": np.array([-1e30, 0], np.float32)},
    "variance of 1e30": {"running_var": np.array([1e30, 1], np.float32)},
    "variance of -1e30": {"running_var": np.array([-1e30, 1], np.float32)},
    "small negative variance": {"running_var": np.array([-0.5, 1], np.float32)},
    "counter": {"num_batches_tracked": np.array(2**62)},
}


@pytest.mark.parametrize("kind", STATISTICS)
def test_statistics_go_through_the_same_guard_as_weights(kind):
    """One client of five that sent 1e30 among its running means got through."""
    good = {k: with_statistics(k) for k in range(4)}
    without, _ = fit(LearnedStrategy("fedavg"), good, rounds=2, weights=NORM)
    bad = with_statistics(4, **STATISTICS[kind])
    found, metrics = fit(LearnedStrategy("fedavg"), good | {4: bad}, rounds=2, weights=NORM)
    for name, x in without.items():
        np.testing.assert_array_equal(found[name], x)
    assert [metrics[r]["dropped-statistics"] for r in (1, 2)] == [1, 1]
    assert found["norm.num_batches_tracked"] == 6


def test_a_majority_of_zero_changes_does_not_switch_the_guard_off():
    still = lambda round_, weights: answer(weights)
    clients = {1: still, 2: still, 3: still, 4: honest(0), 5: FAULTS["overflow"][1]}
    _, metrics = fit(LearnedStrategy("fedavg"), clients, rounds=2)
    assert [metrics[r]["dropped-norm"] for r in (1, 2)] == [1, 1]
    assert [metrics[r]["clients-counted"] for r in (1, 2)] == [4, 4]
    alone = {1: still, 2: still, 5: FAULTS["overflow"][1]}
    arrays, metrics = fit(LearnedStrategy("fedavg"), alone, rounds=1)
    assert metrics[1]["dropped-norm"] == 1
    np.testing.assert_array_equal(arrays["w"], waves.new_weights()["w"])


def test_a_client_with_many_examples_does_not_dominate(caplog):
    """It counts as ten usual ones at most, and less if its change is longer than theirs too."""
    shifted = lambda by, count: (
        lambda round_, weights: answer({n: w + np.float32(by) for n, w in weights.items()}, count)
    )
    good = {k: shifted(0.01, 10) for k in range(4)}
    first = waves.new_weights()["w"]
    for by, count, weight in ((-0.01, 900, 100), (-0.05, 900, 20), (-0.01, 50, 50)):
        arrays, metrics = fit(LearnedStrategy("fedavg"), good | {9: shifted(by, count)}, rounds=1)
        wanted = (4 * 10 * 0.01 + weight * by) / (40 + weight)
        np.testing.assert_allclose(arrays["w"] - first, wanted, rtol=1e-3)
        assert metrics[1].get("clients-bounded", 0) == (weight < count)
        assert (f"node 9 counts with weight {weight} instead of {count}" in caplog.text) == (
            weight < count
        )
        caplog.clear()
