"""The training loop with messages in pieces: two workers in threads, who exchange bytes in memory,
have the numbers of both workers in one process."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from laconic.compress import parse_compressor
from laconic.engines.base import Quorum, SimulatedEngine
from laconic.engines.loop import Loop
from laconic.engines.pieces import CardLayout
from laconic.engines.topology import AUTO, REDUCE, Topology, Traffic, check_exchange, choose
from laconic.engines.wire import Seal
from laconic.fragments import Fragments
from laconic.means import parse_aggregate
from laconic.method import Method, Setting, local_method
from laconic.outer import OUTER
from tests import tiny
from tests.tiny import SGD, TASK, B

SEAL, K, H, T = Seal.of("secret", "test"), 2, 4, 3


class Room:
    """Where two workers hand each other arrays."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(K, timeout=300)
        self.said: dict[int, Any] = {}

    def share(self, worker: int, what: Any) -> dict[int, Any]:
        self.said[worker] = what
        self.barrier.wait()
        found = dict(self.said)
        self.barrier.wait()
        return found


class Near(SimulatedEngine):
    """One of the two."""

    direct = True

    def __init__(self, room: Room, worker: int):
        super().__init__(K)
        self.mine = (worker,)
        self.room = room

    def open(self, size: int, structure: bytes, *rest: Any) -> None:
        assert len(set(self.room.share(self.mine[0], structure).values())) == 1

    def quorum(self, round: int, digest: bytes) -> Quorum:
        said = self.room.share(self.mine[0], (round, digest))
        assert len(set(said.values())) == 1
        return Quorum((0, 1), round, digest, (0, 1))

    def exchange(
        self, sends: Mapping[int, Sequence[Any]], into: Mapping[int, Sequence[np.ndarray]]
    ) -> None:
        copies = {w: [np.array(part).tobytes() for part in parts] for w, parts in sends.items()}
        self.counts.sent += sum(len(part) for parts in copies.values() for part in parts)
        found = self.room.share(self.mine[0], copies)
        for worker, rooms in into.items():
            for array, part in zip(rooms, found[worker][self.mine[0]], strict=True):
                array[...] = np.frombuffer(part, array.dtype).reshape(array.shape)


def method_of(outer: str, spec: str) -> Method:
    return local_method("test", SGD, OUTER[outer].make(), parse_compressor(spec))


def run(engine: Any, task: Any, made: Method, **more: Any) -> list[Any]:
    setting = Setting(K, H, B, T, (0,), fragments=more.pop("fragments", Fragments()))
    return list(Loop(task, made, setting, engine, SEAL, norm_limit=100.0, **more).rounds())


def run_pair(task: Any, made: Method, **more: Any) -> list[list[Any]]:
    room, errors = Room(), []
    found: dict[int, list[Any]] = {}

    def work(worker: int) -> None:
        try:
            found[worker] = run(Near(room, worker), task, made, exchange=REDUCE, **more)
        except BaseException as error:
            errors.append(error)
            room.barrier.abort()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(K)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return [found[worker] for worker in range(K)]


@pytest.mark.parametrize(
    ("outer", "spec", "stateful", "more"),
    [
        ("slowmo", "dense", True, {}),
        pytest.param("fedexp", "topk:0.3+ef", False, {}, marks=pytest.mark.slow),
        pytest.param(
            "average", "dense", True, {"fragments": Fragments(2, 1, 0.25)}, marks=pytest.mark.slow
        ),
    ],
    ids=["statistics", "norms of what is sparse", "fragments"],
)
def test_in_pieces_it_is_what_one_process_does(outer, spec, stateful, more):
    task, made = tiny.stateful_task() if stateful else TASK, method_of(outer, spec)
    pair, whole = run_pair(task, made, **more), run(SimulatedEngine(K), task, made, **more)
    assert [r.digest for r in pair[0]] == [r.digest for r in pair[1]]
    assert [r.round for r in pair[0]] == [1, 2, 3]
    assert pair[0][0].notes[0].startswith("exchange: reduce-scatter, 0.0 MB a round")
    for have, want in zip(pair[0], whole, strict=True):
        assert (have.attempts, have.excluded) == (1, {})
        np.testing.assert_allclose(list(have.losses.values()), list(want.losses.values()), 1e-5)
        np.testing.assert_allclose(list(have.norms.values()), list(want.norms.values()), 1e-5)
        pairs = zip(jax.tree.leaves(have.shared), jax.tree.leaves(want.shared), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_way_with_fewer_bytes_is_taken():
    gather, reduce = Traffic(1, 3 * 1000), Traffic(3, 3 * 600)
    assert choose(AUTO, 4, gather, reduce) == Topology(REDUCE, 3 * 3 * 16 + 1800)
    assert choose(AUTO, 4, Traffic(1, 1800), reduce).kind == "gather"
    assert choose("gather", 4, gather, reduce) == Topology("gather", 3 * 16 + 3000)
    assert choose(REDUCE, 4, Traffic(1, 100), reduce).kind == REDUCE
    assert choose(AUTO, 4, gather, None).kind == "gather"
    assert CardLayout(4, 0, 0).size == 192 + 4 * 16
    said = Topology("gather+reduce", 8_000_000).words
    assert said == "exchange: all-gather and reduce-scatter, 8.0 MB a round"


def test_what_needs_every_message_cannot_be_reduced(raises_clearly):
    robust = local_method(
        "test", SGD, OUTER["average"].make(), parse_compressor("dense"), parse_aggregate("median")
    )
    with raises_clearly("median needs every message", "--exchange"):
        check_exchange(REDUCE, robust)
    with raises_clearly("looks at every worker's message"):
        check_exchange(REDUCE, method_of("lagg-a", "dense"))
    with raises_clearly("exchange", "'ring'"):
        check_exchange("ring", method_of("average", "dense"))
    check_exchange(AUTO, robust)
