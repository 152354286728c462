"""A restarted Lighthouse knows no worker: live ones are waited for, dead ones are left behind."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from laconic.engines.wire import Seal
from tests.engines.cluster import free_port
from tests.engines.processes import wait_until

DIGEST, STRUCTURE = bytes(range(32)), bytes(32)
SEAL = Seal.of("secret", "run")


@pytest.fixture
def lighthouse():
    """`lighthouse()` starts one, in the place of the last."""
    pytest.importorskip(
        "torchft", reason="the torchft engine is an extra: pip install 'laconic[torchft]'"
    )
    from laconic.engines.lighthouse import serve

    address, running = f"127.0.0.1:{free_port()}", []

    def begin():
        while running:
            running.pop().shutdown()
        running.append(serve(address, heartbeat_timeout=0.5))
        return address

    yield begin
    running.pop().shutdown()


@pytest.fixture
def pair(lighthouse):
    """Two workers that have met."""
    from laconic.engines.torchft import Timeouts, TorchFTEngine

    address, timeouts = lighthouse(), Timeouts(grace=0.05, lost=60.0, ask=600.0, heartbeat=0.05)
    engines = [TorchFTEngine(worker, 2, address, SEAL, timeouts=timeouts) for worker in range(2)]
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
    assert late.quorum(1, DIGEST).workers == (0, 1)
    assert first.result(60).workers == (0, 1)


def test_a_peer_that_is_gone_is_left_behind(pair, lighthouse):
    (early, late), threads = pair
    late.close()
    lighthouse()
    assert threads.submit(early.quorum, 1, DIGEST).result(60).workers == (0,)


def test_what_a_lighthouse_took_along_is_asked_again_at_once(pair, lighthouse):
    """Even if the next one is there before anyone could look whether it was gone."""
    (early, late), threads = pair
    first = threads.submit(early.quorum, 1, DIGEST)
    wait_until(lambda: early._turn == 2, "the question")
    lighthouse()
    assert late.quorum(1, DIGEST).workers == (0, 1)
    assert first.result(60).workers == (0, 1)


@pytest.mark.parametrize(
    ("seal", "said"),
    [(Seal.of("guess", "run"), "another token"), (Seal.of("secret", "longer"), "other settings")],
)
def test_a_worker_that_differs_from_the_group_is_told_at_once_and_the_group_goes_on(
    pair, seal, said, raises_clearly
):
    from laconic.engines.torchft import TorchFTEngine

    engines, _ = pair
    third = TorchFTEngine(1, 2, engines[0]._lighthouse, seal, yields=True)
    lines: list[str] = []
    for engine in engines:
        engine.counts.tell = lines.append
    third.open(64, STRUCTURE, lambda round, digest: None)

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
    with raises_clearly("worker 1", said, "(0, 1)"):
        asked.result(60)
    assert len(lines) == 2  # one line a worker
