"""A restarted Lighthouse knows no worker: live ones are waited for, dead ones are left behind."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from laconic.engines.meeting import LighthouseLink
from laconic.engines.wire import Seal
from tests.engines.cluster import free_port
from tests.engines.processes import wait_until

DIGEST, STRUCTURE = bytes(range(32)), bytes(32)
SEAL = Seal.of("secret", "run")


@pytest.fixture
def lighthouse():
    """`lighthouse()` starts one, in the place of the last."""
    from laconic.engines.lighthouse import Lighthouse

    address, running = f"127.0.0.1:{free_port()}", []

    def begin():
        while running:
            running.pop().shutdown()
        running.append(Lighthouse(address, SEAL, silence=0.5))
        return address

    yield begin
    running.pop().shutdown()


@pytest.fixture
def least():
    """How many workers a round needs, unless a test says otherwise."""
    return 1


@pytest.fixture
def pair(lighthouse, least):
    """Two workers that have met."""
    from laconic.engines.elastic import ElasticEngine, Timeouts

    address, timeouts = lighthouse(), Timeouts(grace=0.05, lost=60.0, ask=600.0, heartbeat=0.05)
    engines = [
        ElasticEngine(worker, 2, address, SEAL, timeouts=timeouts, least=least)
        for worker in range(2)
    ]
    with ThreadPoolExecutor(2) as threads:
        for engine in engines:
            engine.open(64, STRUCTURE, lambda round, digest: None)
        for quorum in threads.map(lambda engine: engine.quorum(0, DIGEST), engines):
            assert quorum.workers == (0, 1)
        yield engines, threads
    for engine in engines:
        engine.close()


def test_a_peer_that_answers_is_waited_for_however_long_it_takes_to_find_the_new_lighthouse(
    pair, lighthouse
):
    (early, late), threads = pair
    late._link.close()  # no more signs of life: as if it were still looking for the Lighthouse
    lighthouse()
    turn = early._turn
    first = threads.submit(early.quorum, 1, DIGEST)
    wait_until(lambda: first.done() or early._turn > turn + 20, "many graces to pass")
    assert not first.done()
    late._link = LighthouseLink(late._link._caller, 0.05, 60.0)
    assert late.quorum(1, DIGEST).workers == (0, 1)
    assert first.result(60).workers == (0, 1)


def test_a_peer_that_is_gone_is_left_behind(pair, lighthouse):
    (early, late), threads = pair
    late.close()
    lighthouse()
    assert threads.submit(early.quorum, 1, DIGEST).result(60).workers == (0,)


@pytest.mark.parametrize("least", [2])
def test_a_minority_waits_and_says_so_also_under_another_lighthouse(pair, lighthouse):
    (early, late), threads = pair
    told: list[str] = []
    early.counts.tell = told.append
    late.close()
    asked = threads.submit(early.quorum, 1, DIGEST)
    wait_until(lambda: told or asked.done(), "a word about it")
    assert not asked.done()
    assert "1 of 2 workers are here and 2 are needed" in told[0]
    assert "missing: 1" in told[0]
    turn = early._turn
    lighthouse()
    wait_until(lambda: early._turn > turn + 20 or asked.done(), "many questions")
    assert not asked.done()
    again = type(late)(1, 2, early._lighthouse, SEAL, timeouts=early._timeouts, again=True)
    with closing(again):
        again.open(64, STRUCTURE, lambda round, digest: None)
        back = threads.submit(again.quorum, 0, bytes(32))
        assert asked.result(60).workers == back.result(60).workers == (0, 1)
    assert told[-1].startswith("goes on, after")


def quorums_of(lighthouse, present, slots, round, **more):
    """What workers that start together agree on."""
    from laconic.engines.elastic import ElasticEngine, Timeouts

    address, timeouts = lighthouse(), Timeouts(rejoin=0.3, **more.pop("waits", {}))
    engines = [ElasticEngine(w, slots, address, SEAL, timeouts=timeouts, **more) for w in present]

    def ask(engine):
        with closing(engine):  # as the loop does; its signs of life would make the rest wait
            return engine.quorum(round, DIGEST)

    for engine in engines:
        engine.open(64, STRUCTURE, lambda round, digest: None)
    with ThreadPoolExecutor(len(engines)) as threads:
        return list(threads.map(ask, engines))


@pytest.mark.parametrize(("round", "again"), [(7, False), (0, True)])
def test_after_a_restart_of_everyone_those_that_are_back_go_on_if_they_are_enough(
    lighthouse, round, again
):
    """One of three does not come back; patience is 60 s."""
    found = quorums_of(lighthouse, (0, 2), 3, round, again=again)
    assert [quorum.workers for quorum in found] == [(0, 2), (0, 2)]


def test_workers_that_begin_and_are_too_few_end_with_an_error(lighthouse, raises_clearly):
    with raises_clearly("found only worker 1 of the other 3", "--patience"):
        quorums_of(lighthouse, (0, 1), 4, 0, waits={"patience": 0.3})
    with raises_clearly("found none of the other 1", "--patience"):
        quorums_of(lighthouse, (0,), 2, 0, waits={"patience": 0.3}, least=1)


def test_what_a_lighthouse_took_along_is_asked_again_at_once(pair, lighthouse):
    """Even if the next one is there before anyone could look whether it was gone."""
    (early, late), threads = pair
    first = threads.submit(early.quorum, 1, DIGEST)
    wait_until(lambda: early._turn == 2, "the question")
    lighthouse()
    assert late.quorum(1, DIGEST).workers == (0, 1)
    assert first.result(60).workers == (0, 1)


def test_a_worker_of_another_task_is_told_at_once_and_the_group_goes_on(pair, raises_clearly):
    from laconic.engines.elastic import ElasticEngine

    engines, _ = pair
    third = ElasticEngine(2, 3, engines[0]._lighthouse, SEAL, yields=True)
    lines: list[str] = []
    for engine in engines:
        engine.slots = 3
        engine.counts.tell = lines.append
    third.open(64, bytes(31) + b"1", lambda round, digest: None)

    def ask() -> None:
        with closing(third):  # as the loop does, and its signs of life end
            third.quorum(0, DIGEST)

    asked = ThreadPoolExecutor(1).submit(ask)
    with ThreadPoolExecutor(2) as others:
        for round in range(1, 100):
            for quorum in others.map(lambda e, r=round: e.quorum(r, DIGEST), engines):
                assert quorum.workers == (0, 1)
            if asked.done():
                break
    with raises_clearly("worker 2", "another task", "(0, 1)"):
        asked.result(60)
    assert len(lines) == 2  # one line a worker
