"""Robust means in the strategy: the twin's numbers, attackers, and what is refused."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

from laconic.flower import LearnedStrategy
from tests import reference_means as twin
from tests.flower.app import waves
from tests.flower.grids import answer, fit, honest

COUNTER = {"norm.num_batches_tracked": np.array(4), "norm.running_mean": np.zeros(2, np.float32)}
WIDE = {"norm_limit": 1e30, "weight_limit": 1e30}  # so that the robust mean does the work


def client(k, spoil=None, count=10):
    """An honest one, or one that sends `spoil(weights, honest weights)`."""

    def reply(round_, weights):
        trained = waves.train({n: weights[n] for n in waves.SHAPES}, round_, k)
        own = {
            "norm.num_batches_tracked": np.array(5 + k),
            "norm.running_mean": np.float32([k, 0.5]),
        }
        found = trained | own
        return answer(found if spoil is None else found | spoil(weights, trained), count)

    return reply


@pytest.mark.parametrize("spec", ["median", "trimmed:0.2", "krum:f=1", "centred-clip:1"])
def test_a_round_is_the_twins_whatever_the_counts(spec):
    begin = waves.new_weights() | COUNTER
    clients = {k: client(k, count=10 * (k + 1)) for k in range(5)}
    strategy = LearnedStrategy("fedavg", aggregate=spec, **WIDE)
    found, metrics = fit(strategy, clients, rounds=1, weights=begin)
    start = waves.new_weights()
    trained = [waves.train(start, 1, k) for k in range(5)]
    moved = twin.TWINS[spec]([{n: start[n] - t[n] for n in start} for t in trained])
    for name, x in start.items():
        np.testing.assert_allclose(found[name], x - moved[name], rtol=1e-5, atol=1e-6)
    assert found["norm.num_batches_tracked"] == 7  # the lower median, in all its 64 bits
    assert found["norm.num_batches_tracked"].dtype == np.int64
    if "krum" not in spec:
        np.testing.assert_allclose(found["norm.running_mean"], [2, 0.5])
    assert metrics[1]["clients-counted"] == 5


ATTACKS = {
    "sign flip": lambda weights, own: {n: 11 * weights[n] - 10 * own[n] for n in own},
    "noise": lambda weights, own: {
        n: np.float32(np.random.default_rng(0).normal(0, 5, own[n].shape)) for n in own
    },
    "huge": lambda weights, own: {n: np.full_like(own[n], 1e12) for n in own},
    "shift": lambda weights, own: {n: own[n] + np.float32(0.3) for n in own},
}


@pytest.mark.parametrize("spec", ["median", "multi-krum:f=1"])
def test_one_attacker_of_five_moves_a_robust_mean_little(spec):
    begin = waves.new_weights() | COUNTER
    good = {k: client(k % 2) for k in range(4)}
    calm, _ = fit(LearnedStrategy("fedavg", **WIDE), good, rounds=3, weights=begin)
    length = np.sqrt(sum(np.sum((calm[n] - begin[n]) ** 2) for n in waves.SHAPES))
    for kind, spoil in ATTACKS.items():
        clients = good | {9: client(0, spoil, count=10**6)}
        off = []
        for aggregate in (spec, "mean"):
            strategy = LearnedStrategy("fedavg", aggregate=aggregate, **WIDE)
            found, _ = fit(strategy, clients, rounds=3, weights=begin)
            gaps = [np.sum((found[n].astype(float) - calm[n]) ** 2) for n in waves.SHAPES]
            off.append(np.sqrt(sum(gaps)) / length)
        assert off[0] < 1 < off[1], kind


def test_what_a_robust_mean_cannot_protect_is_refused(raises_clearly, tmp_path):
    with raises_clearly("median protects the mean delta", "lopt-a"):
        LearnedStrategy("lagg-a", aggregate="median", min_train_nodes=4)
    with raises_clearly("Did you mean 'median'?"):
        LearnedStrategy("fedavg", aggregate="medain")
    file = tmp_path / "server.safetensors"
    clients = {k: honest(k) for k in range(3)}
    fit(LearnedStrategy("fedavg", checkpoint=file), clients, rounds=1)
    with raises_clearly("was begun with aggregate 'mean', and now it is 'median'"):
        fit(LearnedStrategy("fedavg", aggregate="median", checkpoint=file), clients, rounds=2)


def test_too_few_replies_for_a_robust_mean_are_said(caplog):
    clients = {k: honest(k) for k in range(3)}
    fit(LearnedStrategy("fedavg", aggregate="krum:f=1"), clients, rounds=1)
    assert "krum:f=1 needs 5 replies to withstand its attackers, and 3 count" in caplog.text
