"""A worker that a round did not wait for: its message counts in the next round, or not at all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from laconic.compress import parse_compressor
from laconic.engines.base import Interrupted, Quorum, SimulatedEngine
from laconic.engines.loop import DROP, NEXT, Loop
from laconic.engines.wire import Seal
from laconic.fragments import Fragments
from laconic.method import Setting, local_method
from laconic.outer import OUTER
from laconic.round import local_phase
from tests import tiny
from tests.outer.trees import QUICK
from tests.tiny import SGD, TASK, B, H, draw, first_state

SEAL, T = Seal.of("secret", "late"), 5
LATE_IN = 1  # the round that worker 0 takes alone


class Pair:
    """What two workers in threads say to each other."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=300)
        self.said: dict[int, Any] = {}
        self.snapshots: dict[int, Any] = {}

    def share(self, worker: int, what: Any) -> dict[int, Any]:
        self.said[worker] = what
        self.barrier.wait()
        found = dict(self.said)
        self.barrier.wait()
        return found


class Half(SimulatedEngine):
    """One of them. Worker 0 waits in all rounds but `solo`; the gather of the round `breaks` breaks
    once, after its messages have left."""

    def __init__(self, pair: Pair, worker: int, solo: int | None, breaks: int | None):
        super().__init__(2)
        self.mine = (worker,)
        self.pair, self.breaks = pair, breaks
        self.solo = solo if worker == 0 else None
        self.now = 0

    def open(self, size, structure, snapshot, bounds=None):
        self.pair.snapshots[self.mine[0]] = snapshot

    def quorum(self, round, digest):
        self.now = round
        if round == self.solo:
            return Quorum(self.mine, round, digest, self.mine)
        said = self.pair.share(self.mine[0], (round, digest))
        self.now = max(now for now, _ in said.values())
        sources = tuple(w for w, (now, _) in sorted(said.items()) if now == self.now)
        return Quorum((0, 1), self.now, said[sources[0]][1], sources)

    def gather(self, frames, size):
        if self.now == self.solo:
            return dict(frames)
        (frame,) = frames.values()
        found = self.pair.share(self.mine[0], bytes(frame[:size]))
        if self.now == self.breaks:
            self.breaks = None
            raise Interrupted("the connection broke.")
        return found | dict(frames)

    def heal(self, quorum):
        return self.pair.snapshots[quorum.sources[0]](quorum.round, quorum.digest)


def trained(late: str, solo: int | None = LATE_IN, breaks: Any = (None, None)) -> list[list[Any]]:
    """The reports of both."""
    made = local_method("test", SGD, OUTER["average"].make(), parse_compressor("dense"))
    pair, setting = Pair(), Setting(2, H, B, T, (0,))

    def work(worker: int) -> list[Any]:
        try:
            engine = Half(pair, worker, solo, breaks[worker])
            return list(Loop(TASK, made, setting, engine, SEAL, late=late).rounds())
        except BaseException:
            pair.barrier.abort()
            raise

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(work, (0, 1)))


def wanted(late: str) -> list[Any]:
    """The weights after each round: averaging what each worker moved from the weights it had."""
    workers, server = tiny.set_up(OUTER["average"].make())
    first = first_state(workers, server, clients=2)

    @jax.jit
    def deltas(shared: Any, items: Any) -> Any:
        one = lambda client, *item: local_phase(
            workers.client, workers.compressor, shared, client, *item
        )
        return jax.vmap(one)(first.clients, items.batches, items.keys)[0].delta

    shared, found, kept = first.shared, [], None
    for now in range(T):
        state = first._replace(shared=shared, round=now)
        delta_K = deltas(shared, draw(state, 2))
        each = [jax.tree.map(lambda x, k=k: x[k], delta_K) for k in (0, 1)]
        if now == LATE_IN:
            kept, each = each[1], each[:1]
        elif now == LATE_IN + 1:
            each = [each[0], kept] if late == NEXT else each[:1]
        mean = jax.tree.map(lambda *x: sum(x) / len(x), *each)
        params = jax.tree.map(lambda w, d: w - d, shared.params, mean)
        shared = shared._replace(params=params)
        found.append(params)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Most of the time here is compiling."""
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


@pytest.mark.parametrize(
    ("late", "breaks"),
    [(DROP, None), (NEXT, None), (NEXT, LATE_IN + 1)],
    ids=["drop", "next", "again"],
)
def test_a_late_message_counts_as_chosen(late, breaks):
    """Also if the gather that it is in breaks and is made again."""
    zero, one = trained(late, breaks=(breaks, breaks))
    assert [report.round for report in zero] == [1, 2, 3, 4, 5]
    assert [report.round for report in one] == [1, 3, 4, 5]
    assert [r.digest for r in one] == [r.digest for r in zero if r.round != LATE_IN + 1]
    counted = [[0, 1], [0], [0, 1] if late == NEXT else [0], [0, 1], [0, 1]]
    assert [sorted(report.losses) for report in zero] == counted
    assert all(not report.excluded for report in [*zero, *one])
    for report, params in zip(zero, wanted(late), strict=True):
        for name, x in params.items():
            np.testing.assert_allclose(report.shared.params[name], x, rtol=1e-5, atol=1e-6)
    said = [note for report in one for note in report.notes]
    assert ("sent its message of round 2 a round late" in said) == (late == NEXT)


def test_a_message_that_may_have_counted_is_not_sent_again():
    """Worker 1 alone loses a gather after its message had arrived: worker 0 has counted it."""
    zero, one = trained(NEXT, solo=None, breaks=(None, LATE_IN))
    assert [sorted(report.losses) for report in zero] == [[0, 1], [0, 1], [0], [0, 1], [0, 1]]
    assert [report.round for report in one] == [1, 3, 4, 5]
    assert one[-1].digest == zero[-1].digest


def test_what_cannot_become_of_a_late_message_is_refused(raises_clearly):
    made = local_method("test", SGD, OUTER["average"].make(), parse_compressor("dense"))
    given = lambda **more: (TASK, made, Setting(2, H, B, T, (0,), **more), SimulatedEngine(2), SEAL)
    with raises_clearly("got late 'soon'"):
        Loop(*given(), late="soon")
    with raises_clearly("late messages of fragments are dropped"):
        Loop(*given(fragments=Fragments(2)), late=NEXT)
