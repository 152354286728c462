"""Real processes, one of them broken: what it sends never reaches the model, and everyone counts
it."""

from typing import Any

import numpy as np
import pytest

from laconic.tasks.catalog import make_task
from tests.engines.methods import TASK, method_of
from tests.engines.oracle import assert_same_weights, present_of, simulate
from tests.engines.poison import KINDS

NAME = "poison"
METHOD = (NAME, "slowmo", {"gamma": 0.3, "beta": 0.5}, "dense")
REASON = {
    "nan": "not finite",
    "inf": "not finite",
    "huge": "norm",
    "shape": "structure",
    "structure": "structure",
    "old": "round",
}
FIRST, ROUNDS, ASTRAY = 2, 20, 16
BROKEN, LOST = 1, 3


@pytest.fixture
def run(cluster):
    """Worker 1 sends every kind of poison, one a round; worker 3 gets one weight wrong; a stranger
    knocks all along."""
    made = cluster(calm=True, rounds=ROUNDS, methods=[METHOD])
    poison = {str(FIRST + i): kind for i, kind in enumerate(KINDS)}
    made.start(0, token="guess")  # first of all, so that it is there from the first round on
    made.births.clear()
    made.pids[-1] = made.pids.pop(0)
    for worker in range(4):
        made.births[worker] = 0
        made.start(
            worker,
            poison=poison if worker == BROKEN else {},
            diverge=[ASTRAY] if worker == LOST else [],
        )
    made.wait_done([0, 1, 2, 3])
    return made


@pytest.mark.slow
def test_poison_changes_nothing_and_is_counted(run):
    rows = {w: run.rows(NAME, w) for w in range(4)}
    for worker in (0, 1, 2):
        excluded = {row["round"] - 1: row["excluded"] for row in rows[worker]}
        for i, kind in enumerate(KINDS):
            assert excluded[FIRST + i] == {str(BROKEN): REASON.get(kind, kind)}, kind
        assert all(not excluded[r] for r in range(ROUNDS) if not FIRST <= r < FIRST + len(KINDS))
    the_model_is_without_the_poison(run, rows)
    the_one_astray_comes_back(rows)
    the_stranger_is_refused(run, rows)


def the_model_is_without_the_poison(run: Any, rows: dict[int, list[dict[str, Any]]]) -> None:
    present_RK = present_of(rows[0], ROUNDS)
    want_RK = np.ones((ROUNDS, 4), np.float32)
    want_RK[FIRST : FIRST + len(KINDS), BROKEN] = 0
    want_RK[ASTRAY + 1, LOST] = 0  # its message started from the wrong weights
    np.testing.assert_array_equal(present_RK, want_RK)
    shared, losses_RK = simulate(make_task(TASK), method_of(*METHOD), present_RK)
    for worker in range(4):
        assert_same_weights(run.weights(NAME, worker), shared, f"worker {worker}")
    for row in rows[2]:
        for worker, loss in row["losses"].items():
            np.testing.assert_allclose(loss, losses_RK[row["round"] - 1, int(worker)], rtol=1e-5)


def the_one_astray_comes_back(rows: dict[int, list[dict[str, Any]]]) -> None:
    """Its digest differs for one round; then it takes over what the majority holds."""
    digests = {w: {row["round"]: row["digest"] for row in rows[w]} for w in range(4)}
    for now in range(1, ROUNDS + 1):
        others = {digests[w][now] for w in (0, 1, 2)}
        assert len(others) == 1
        assert ({digests[LOST][now]} == others) == (now != ASTRAY + 1), now
    assert [row["round"] for row in rows[LOST] if row["healed"]] == [ASTRAY + 2]


def the_stranger_is_refused(run: Any, rows: dict[int, list[dict[str, Any]]]) -> None:
    """At the Lighthouse, which tells of it once; the workers never hear of it."""
    run.lighthouse.terminate()
    said, _ = run.lighthouse.communicate(timeout=30)
    assert said.count("refused: a stranger without the token") == 1
    for worker in range(4):
        assert rows[worker][-1]["refused"] == {}
        assert all(row["quorum"] == [0, 1, 2, 3] for row in rows[worker])
