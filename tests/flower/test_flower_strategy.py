"""The strategy takes the simulator's steps, for any outer optimizer, layout and dtype, and weighs
as Flower does."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

import laconic
from laconic import zoo
from laconic.flower import LearnedStrategy
from tests.flower.app import waves
from tests.flower.grids import FakeGrid, answer, fit, honest, record, simulated
from tests.zoo.made import LOPT_R, a_card, weights

CLIENTS = {11: honest(0), 22: honest(1), 33: honest(2)}
EIGHT = {10 + k: honest(k) for k in range(8)}


def assert_close(found, expected, atol=1e-5):
    assert list(found) == list(waves.SHAPES)
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    "optimizer",
    ["fedavg", "slowmo", "fedadam:eta=0.03", "fedexp:eps=0", "lopt-a-general", "lagg-a-fmnist"],
)
def test_three_rounds_are_the_simulators(optimizer):
    clients = EIGHT if optimizer.startswith("lagg") else CLIENTS
    # these clients do not clip, whatever a card recommends
    spelled = f"{optimizer}{',' if ':' in optimizer else ':'}gamma={waves.RATE},clip=0"
    found, metrics = fit(LearnedStrategy(spelled, layout="as-is"), clients)
    assert_close(found, simulated(spelled, len(clients), 3))
    start = waves.new_weights()
    assert all(np.abs(found[name] - start[name]).max() > 1e-3 for name in start)
    counts = {"clients-counted": len(clients), "clients-dropped": 0, "clients-failed": 0}
    assert metrics == {r: {"round": pytest.approx(r), **counts} for r in (1, 2, 3)}


def test_lopt_r_sees_how_far_the_clients_agree(tmp_path):
    """It knows K, H, the rounds and the norms, as the simulator's does; without the norms it takes
    other steps."""
    path = tmp_path / "made-up.safetensors"
    zoo.publish(path, LOPT_R, weights(LOPT_R), a_card(LOPT_R))
    spelled = f"{path}:gamma={waves.RATE},clip=0"
    found, _ = fit(LearnedStrategy(spelled, local_steps=waves.H), CLIENTS)
    assert_close(found, simulated(spelled, len(CLIENTS), 3))
    unseen, _ = fit(LearnedStrategy(f"{spelled},agreement=unseen", local_steps=waves.H), CLIENTS)
    assert_close(unseen, simulated(f"{spelled},agreement=unseen", len(CLIENTS), 3))
    assert np.abs(unseen["w"] - found["w"]).max() > 1e-4


def test_weights_in_torchs_layout_take_the_same_steps():
    turned = lambda weights: {name: np.ascontiguousarray(w.T) for name, w in weights.items()}

    def client(k):
        return lambda round_, weights: answer(turned(waves.train(turned(weights), round_, k)))

    clients = {11: client(0), 22: client(1), 33: client(2)}
    optimizer = f"lopt-a-general:gamma={waves.RATE}"
    expected = simulated(optimizer, 3, 3)
    found, _ = fit(LearnedStrategy(optimizer), clients, weights=turned(waves.new_weights()))
    assert_close(turned(found), expected)
    wrong, _ = fit(
        LearnedStrategy(optimizer, layout="as-is"), clients, weights=turned(waves.new_weights())
    )
    assert np.abs(turned(wrong)["w"] - expected["w"]).max() > 1e-5


def test_clients_count_by_their_examples():
    counts = {11: 10, 22: 30, 33: 0}
    found, _ = fit(
        LearnedStrategy("fedavg"), {n: honest(k, counts[n]) for k, n in enumerate(counts)}, rounds=1
    )
    ends = [waves.train(waves.new_weights(), 1, k) for k in range(2)]
    assert_close(found, {name: (ends[0][name] + 3 * ends[1][name]) / 4 for name in ends[0]}, 1e-6)


def test_an_absent_client_of_lagg_a_is_replaced_by_the_mean_of_the_others():
    def mean_of_others(round_, weights):
        ends = [waves.train(weights, round_, k) for k in range(8) if k != 3]
        return answer({name: np.mean([end[name] for end in ends], axis=0) for name in weights})

    absent, metrics = fit(LearnedStrategy("lagg-a-fmnist"), EIGHT | {13: lambda *_: None})
    stand_in, _ = fit(LearnedStrategy("lagg-a-fmnist"), EIGHT | {13: mean_of_others})
    assert_close(absent, stand_in)
    assert metrics[1]["clients-failed"] == 1
    assert np.abs(absent["w"] - fit(LearnedStrategy("lagg-a-fmnist"), EIGHT)[0]["w"]).max() > 1e-5


def test_lagg_a_asks_its_own_number_of_clients():
    grid = FakeGrid({k: honest(k) for k in range(12)})
    LearnedStrategy("lagg-a-fmnist", fraction_evaluate=0.0).start(
        grid, record(waves.new_weights()), num_rounds=2
    )
    assert grid.asked == [("train", 1)] * 8 + [("train", 2)] * 8


@pytest.mark.parametrize(("dtype", "atol"), [(np.float64, 1e-6), (np.float16, 2e-3)])
def test_a_model_keeps_its_dtype(dtype, atol):
    found, metrics = fit(LearnedStrategy("fedavg"), CLIENTS, weights=waves.new_weights(dtype))
    assert {x.dtype for x in found.values()} == {np.dtype(dtype)}
    assert metrics[3]["clients-counted"] == 3
    assert_close(found, simulated(f"fedavg:gamma={waves.RATE}", 3, 3), atol)


def test_statistics_are_averaged_and_counters_take_the_largest():
    more = {
        "norm.running_mean": np.zeros(2, np.float32),
        "norm.num_batches_tracked": np.int64(4),
        "mask": [True],
    }

    def client(k, count):
        own = {
            "norm.running_mean": np.float32([k, 1]),
            "norm.num_batches_tracked": np.int64(5 + k),
            "mask": [k == 0],
        }
        return lambda round_, weights: answer(
            waves.train({n: weights[n] for n in waves.SHAPES}, round_, k) | own, count
        )

    strategy = LearnedStrategy("slowmo:alpha=0.5")
    found, _ = fit(strategy, {11: client(0, 10), 22: client(1, 30)}, 1, waves.new_weights() | more)
    assert list(found) == [*waves.SHAPES, *more]
    np.testing.assert_allclose(
        found["norm.running_mean"], [0.75, 1]
    )  # not half of the way, as parameters go
    assert found["norm.num_batches_tracked"] == 6
    assert found["norm.num_batches_tracked"].dtype == np.int64
    assert found["mask"].tolist() == [True]


def test_an_optimizer_of_ones_own_fits():
    outer = laconic.OUTER["average"].make()
    found, _ = fit(LearnedStrategy(outer), CLIENTS)
    assert_close(found, fit(LearnedStrategy("fedavg"), CLIENTS)[0], 0)


def test_more_rounds_than_it_was_trained_for_are_said(caplog):
    with caplog.at_level("WARNING", logger="flwr"):
        fit(LearnedStrategy("lopt-a-digits"), {k: lambda *_: None for k in range(2)}, rounds=101)
    assert "meta-trained for 100 rounds, not for 101" in caplog.text
