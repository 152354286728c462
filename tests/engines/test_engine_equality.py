"""Four real processes give the simulator's losses and weights."""

import math

import numpy as np
import pytest

from laconic.engines.stream import HEAD
from laconic.tasks.catalog import make_task
from tests.engines.methods import METHODS, TASK, method_of
from tests.engines.oracle import assert_same_weights, simulate

ROUNDS = 10
SIGNS = 300  # of life, at most, in a round


@pytest.mark.slow
def test_four_processes_are_the_simulator(cluster):
    """Every optimizer, one after the other, on the processes of one run."""
    run = cluster(calm=True, rounds=ROUNDS, methods=METHODS)
    for worker in range(4):
        run.start(worker)
    run.wait_done([0, 1, 2, 3])
    task = make_task(TASK)
    for name, outer, options, compress in METHODS:
        method = method_of(name, outer, options, compress)
        shared, losses_RK = simulate(task, method, np.ones((ROUNDS, 4)))
        assert np.max(np.abs(np.diff(losses_RK.mean(axis=1)))) > 1e-4  # something was learned
        digests = set()
        for worker in range(4):
            rows = run.rows(name, worker)
            assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
            losses = np.array([[row["losses"][str(k)] for k in range(4)] for row in rows])
            np.testing.assert_allclose(
                losses, losses_RK, rtol=1e-5, err_msg=f"{name} at worker {worker}"
            )
            assert_same_weights(run.weights(name, worker), shared, f"{name} at worker {worker}")
            digests.add(tuple(row["digest"] for row in rows))
            assert all(
                row["attempts"] == 1 and not row["excluded"] and not row["refused"] for row in rows
            )
        assert len(digests) == 1


@pytest.mark.slow
def test_bytes_are_counted_as_they_cross(cluster):
    """A frame is its compressed arrays, each begun on 64 bytes, and a header; it goes to three
    others after a head each. Dense messages go in pieces: a card and a piece, a verdict, and a mean
    with its signature, again to three. Beside that, sockets carry signs of life of the size of a
    head."""
    run = cluster(calm=True, rounds=2, methods=[METHODS[0], METHODS[4]])
    for worker in range(4):
        run.start(worker)
    run.wait_done([0, 1, 2, 3])
    parameters = 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
    room = lambda nbytes: 64 * math.ceil(nbytes / 64)
    dense = sum(room(4 * n) for n in (64 * 64, 64, 64 * 64, 64, 64 * 10, 10))
    kept, width = math.ceil(parameters / 20), 14
    sparse = room(4 * kept) + room(math.ceil(kept * width / 8))
    card, verdict, piece = 192 + 4 * (8 + 4 + 4), 1 + 32, room(math.ceil(dense / 4))
    pieces = 3 * HEAD.size + card + piece + verdict + piece + 32
    for name, body, bits, each in (
        ("local-sgd", dense, 32 * parameters, pieces),
        ("top-k", sparse, None, HEAD.size + 192 + sparse),
    ):
        for row in run.rows(name, 2):
            messages = 3 * each
            for crossed in (row["sent"], row["received"]):
                assert (crossed - messages) % HEAD.size == 0
                assert 0 <= crossed - messages <= SIGNS * HEAD.size
            assert bits is None or row["message_bits"] == bits
            assert row["message_bits"] <= 8 * body < row["message_bits"] + 8 * 64 * 7
