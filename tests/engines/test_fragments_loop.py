"""Fragments between processes: the simulator's numbers, resumes, healing, and messages that are
left out."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from laconic.compress import parse_compressor
from laconic.engines.base import Interrupted, Quorum, SimulatedEngine
from laconic.engines.elastic import ElasticEngine, Timeouts
from laconic.engines.lighthouse import Lighthouse
from laconic.engines.loop import Loop
from laconic.engines.stream import HEAD
from laconic.engines.wire import Seal
from laconic.fragments import Fragments, fragmented_round, init_fragments
from laconic.method import Setting, local_method
from laconic.outer import OUTER, LearnedOptimizer, OuterOptimizer
from laconic.store import checkpoint
from tests import tiny
from tests.outer.trees import QUICK, random_theta
from tests.tiny import SGD, TASK, B, K, draw

SEAL, H, T = Seal.of("secret", "test"), 6, 4
NESTEROV, AVERAGE = OUTER["nesterov"].make(), OUTER["average"].make()
LOPT_A = LearnedOptimizer("lopt-a", deepest=1)(random_theta(39, 1, True))


def loop(
    engine: Any, fragments: Fragments, outer=NESTEROV, spec="dense", task=TASK, **more
) -> Loop:
    made = local_method("test", SGD, outer, parse_compressor(spec))
    setting = Setting(engine.slots, H, B, T, (0,), fragments=fragments)
    return Loop(task, made, setting, engine, SEAL, norm_limit=100.0, **more)


def simulated(fragments: Fragments, outer: OuterOptimizer = NESTEROV, spec="dense", task=TASK):
    """The shared state and the losses [K, H] after each round."""
    workers, server = tiny.set_up(outer, SGD, spec, task)
    state = init_fragments(task, workers, server, fragments, K, jax.random.key(0))
    whole = partial(fragmented_round, workers, server, fragments=fragments)
    step = jax.jit(whole, compiler_options=QUICK)
    for _ in range(T):
        state, losses_KH = step(state, draw(state, K, H))
        yield state.shared, np.asarray(losses_KH)


def assert_same(reports, rounds):
    assert [report.round for report in reports] == list(range(1, T + 1))
    for report, (shared, losses_KH) in zip(reports, rounds, strict=True):
        wanted = losses_KH.mean(axis=1)
        np.testing.assert_allclose([report.losses[k] for k in range(K)], wanted, rtol=1e-5)
        pairs = zip(jax.tree.leaves(report.shared), jax.tree.leaves(shared), strict=True)
        for have, want in pairs:
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "outer", "spec", "stateful"),
    [
        ((3, 2, 0.5), NESTEROV, "dense", False),
        pytest.param((2, 1, 0.25), AVERAGE, "topk:0.3+ef", True, marks=pytest.mark.slow),
        pytest.param((3, 1, 0.5), LOPT_A, "dense", False, marks=pytest.mark.slow),
        pytest.param((1, 3, 0.0), NESTEROV, "int8", False, marks=pytest.mark.slow),
        pytest.param((4, 0, 0.5), NESTEROV, "dense", False, marks=pytest.mark.slow),
    ],
    ids=["delayed", "statistics and residuals", "LOpt-A", "whole", "at once"],
)
def test_the_loop_is_the_simulator(given, outer, spec, stateful):
    fragments, task = Fragments(*given), tiny.stateful_task() if stateful else TASK
    reports = list(loop(SimulatedEngine(K), fragments, outer, spec, task=task).rounds())
    assert_same(reports, simulated(fragments, outer, spec, task))


def test_it_goes_on_from_its_checkpoint(tmp_path):
    """Between two exchanges nothing is in flight: a killed run goes on to the same bits."""
    fragments = Fragments(3, 1, 0.5)
    straight = list(loop(SimulatedEngine(K), fragments).rounds())
    rounds = loop(SimulatedEngine(K), fragments, folder=tmp_path, checkpoint_every=2).rounds()
    first = [next(rounds), next(rounds), next(rounds)]
    rounds.close()
    assert checkpoint.peek(tmp_path / "worker-0.safetensors")["round"] == 2
    again = loop(SimulatedEngine(K), fragments, folder=tmp_path, checkpoint_every=2)
    rest = list(again.rounds())
    assert [r.digest for r in first] == [r.digest for r in straight[:3]]
    assert [r.digest for r in rest] == [r.digest for r in straight[2:]]
    assert [r.losses for r in rest] == [r.losses for r in straight[2:]]
    assert any("resumed after round 2" in note for note in rest[0].notes)
    assert again.final is not None
    assert again.done(again.final[0]) == T


class Meeting:
    """Where two workers in threads meet: the second comes once the first has made some exchanges
    alone."""

    def __init__(self, comes_at: int):
        self.comes_at = comes_at
        self.barrier = threading.Barrier(2, timeout=300)
        self.said: dict[int, Any] = {}
        self.snapshots: dict[int, Any] = {}
        self.exchanges: list[tuple[int, int]] = []

    def share(self, worker: int, what: Any) -> dict[int, Any]:
        self.said[worker] = what
        self.barrier.wait()
        found = dict(self.said)
        self.barrier.wait()
        return found


class Member(SimulatedEngine):
    """One of the two."""

    def __init__(self, meeting: Meeting, worker: int, breaks_at: tuple[int, ...] = ()):
        super().__init__(2)
        self.mine = (worker,)
        self.meeting = meeting
        self.breaks_at = set(breaks_at)
        self.alone = False

    def open(self, size, structure, snapshot, bounds=None):
        self.meeting.snapshots[self.mine[0]] = snapshot

    def quorum(self, round, digest):
        self.alone = self.mine == (0,) and round < self.meeting.comes_at
        if self.alone:
            return Quorum((0,), round, digest, (0,))
        said = self.meeting.share(self.mine[0], (round, digest))
        best = max(now for now, _ in said.values())
        sources = tuple(w for w, (now, _) in sorted(said.items()) if now == best)
        self.now = best
        return Quorum((0, 1), best, said[sources[0]][1], sources)

    def gather(self, frames, size):
        if self.alone:
            return dict(frames)
        (frame,) = frames.values()
        found = self.meeting.share(self.mine[0], bytes(frame))
        if self.now in self.breaks_at:
            self.breaks_at.remove(self.now)
            raise Interrupted("the connection broke.")
        return found

    def heal(self, quorum):
        return self.meeting.snapshots[quorum.sources[0]](quorum.round, quorum.digest)


@pytest.mark.slow
def test_a_worker_that_comes_late_catches_up_and_broken_exchanges_are_made_again():
    meeting, found, errors = Meeting(comes_at=4), {}, []

    def work(worker: int) -> None:
        try:
            member = Member(meeting, worker, breaks_at=(6, 9))
            found[worker] = list(loop(member, Fragments(3, 1, 0.5), AVERAGE).rounds())
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [r.round for r in found[0]] == [1, 2, 3, 4]
    assert [r.round for r in found[1]] == [2, 3, 4]  # it came within the second round
    assert [r.digest for r in found[1]] == [r.digest for r in found[0][1:]]
    assert found[1][0].healed
    assert not any(r.healed for r in [*found[0], *found[1][1:]])
    assert [r.attempts for r in found[0]] == [1, 1, 2, 2]
    assert all(not r.excluded for r in [*found[0], *found[1]])
    assert sorted(found[0][-1].losses) == [0, 1]


@pytest.mark.slow
def test_over_links_it_is_the_simulator_and_a_fragment_costs_its_own_bytes():
    """With LOpt-A and a state of it a fragment. Small fragments are not filled up."""
    fragments = Fragments(3, 2, 0.5)
    lighthouse = Lighthouse("127.0.0.1:0", SEAL, silence=60.0)
    address, waits = lighthouse.address(), Timeouts(silence=60.0)
    loops = [
        loop(ElasticEngine(w, K, address, SEAL, timeouts=waits), fragments, LOPT_A)
        for w in range(K)
    ]
    try:
        with ThreadPoolExecutor(K) as threads:
            found = list(threads.map(lambda one: list(one.rounds()), loops))
    finally:
        lighthouse.shutdown()
    for worker, reports in enumerate(found):
        assert [report.digest for report in reports] == [report.digest for report in found[0]]
        frames = sum(loops[worker].programs.at(f).layout.frame for f in range(3))
        messages = (K - 1) * (frames + 3 * HEAD.size)
        for report in reports:
            beats = report.sent - messages
            assert 0 <= beats <= 50 * HEAD.size
            assert beats % HEAD.size == 0
    assert_same(found[0], simulated(fragments, LOPT_A))


def test_a_worker_of_several_devices_is_refused(raises_clearly):
    with raises_clearly("has one device"):
        loop(SimulatedEngine(K), Fragments(2), devices=jax.devices()[:2])
