"""The Lighthouse lets in who holds the token and belongs to the run; strangers cost it nothing."""

import contextlib
import resource
import secrets
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from laconic.engines import lighthouse as module
from laconic.engines.address import split_address
from laconic.engines.base import Refused
from laconic.engines.identity import Identity
from laconic.engines.lighthouse import Lighthouse
from laconic.engines.meeting import Caller, LighthouseLink, meet
from laconic.engines.room import Guest, Room
from laconic.engines.session import GREETING, HEAD
from laconic.engines.wire import Seal
from tests.engines.processes import wait_until

RUN = Identity(run="a" * 16, settings="s1", optimizer="o1", code="c1")
SEAL = Seal.by("secret", RUN)


@pytest.fixture
def told():
    return []


@pytest.fixture
def place(told):
    """A Lighthouse of one run of two workers."""
    made = Lighthouse("127.0.0.1:0", SEAL, silence=2.0, workers=2, tell=told.append)
    yield made
    made.shutdown()


@contextlib.contextmanager
def linked(place, *workers, seal=SEAL):
    links = [LighthouseLink(Caller(place.address(), seal, w, 100 + w), 0.05, 5.0) for w in workers]
    try:
        yield links
    finally:
        for link in links:
            link.close()


def ask_all(links, word):
    """What each is told."""
    found = [None] * len(links)

    def ask(i):
        found[i] = links[i].ask(f"{word}{i}", 20.0, 20.0)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(links))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def dial(place):
    return socket.create_connection(split_address(place.address()), 5.0)


def test_all_get_everyones_cards_once_all_have_asked(place):
    with linked(place, 0, 1) as links:
        for word in ("a", "b"):
            assert ask_all(links, word) == [[f"{word}0", f"{word}1"]] * 2
        links[1].close()
        assert links[0].ask("c0", 20.0, 20.0) == ["c0"]
        assert not links[0].replaced


@pytest.mark.parametrize(
    ("seal", "differs", "advice"),
    [
        (Seal.by("guess", RUN), "token", "LACONIC_TOKEN"),
        (Seal.by("secret", replace(RUN, run="b" * 16)), "run", "--out"),
        (Seal.by("secret", replace(RUN, settings="s2")), "settings", "after --"),
        (Seal.by("secret", replace(RUN, optimizer="o2")), "optimizer", "same optimizer"),
        (Seal.by("secret", replace(RUN, code="c2")), "code", "install the same laconic"),
    ],
    ids=["token", "run", "settings", "optimizer", "code"],
)
def test_who_differs_is_told_in_what_on_both_sides_at_once(place, told, seal, differs, advice):
    with pytest.raises(Refused) as raised:
        meet(place.address(), seal, 1, patience=60.0)
    said = str(raised.value)
    assert said.startswith("worker 1 ")
    assert differs in said
    assert advice in said
    assert raised.value.status == 3
    (line,) = told
    assert differs in line
    assert "127.0.0.1" in line


def test_a_worker_learns_which_run_it_is_of(place):
    unknown = Seal.by("secret", replace(RUN, run=""))
    assert meet(place.address(), unknown, 1, 5.0) == SEAL


def test_a_worker_id_that_the_run_does_not_have_is_refused(place):
    with pytest.raises(Refused, match="worker id"):
        Caller(place.address(), SEAL, 2, 1).call()


def test_a_younger_process_takes_the_place_of_an_older_one(place):
    with linked(place, 1) as (older,):
        younger = LighthouseLink(Caller(place.address(), SEAL, 1, 500), 0.05, 5.0)
        wait_until(older._closing.is_set, "the older one to hear of it")
        with pytest.raises(Refused, match="worker 1 was started again elsewhere"):
            older.ask("old", 20.0, 20.0)
        assert younger.ask("new", 20.0, 20.0) == ["new"]
        with pytest.raises(Refused, match="this older process ends"):
            Caller(place.address(), SEAL, 1, 101).call()
        younger.close()


class Recorder:
    """Stands between a worker and the Lighthouse, and keeps what the worker says."""

    def __init__(self, place):
        self.said = bytearray()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._target = split_address(place.address())
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            near, _ = self._server.accept()
            far = socket.create_connection(self._target)
            back = threading.Thread(target=self._pass, args=(far, near, bytearray()), daemon=True)
            back.start()
            self._pass(near, far, self.said)

    @staticmethod
    def _pass(source, target, kept):
        with contextlib.suppress(OSError):
            while piece := source.recv(4096):
                kept += piece
                target.sendall(piece)
        target.close()

    def close(self):
        self._server.close()


def test_what_a_dead_worker_said_cannot_be_played_back(place, told):
    """For 25 s this kept all others from every commit when cards alone were signed."""
    recorder = Recorder(place)
    link = LighthouseLink(Caller(recorder.address, SEAL, 1, 900), 0.05, 5.0)
    assert link.ask("card", 20.0, 20.0) == ["card"]
    link.close()
    recorder.close()
    with linked(place, 0) as (alive,):
        for number in range(5):
            with dial(place) as thief:
                thief.sendall(recorder.said)
                assert alive.ask(f"c{number}", 20.0, 20.0) == [f"c{number}"]
    assert any("stranger without the token" in line for line in told)


def test_a_silent_member_is_not_waited_for(told):
    place = Lighthouse("127.0.0.1:0", SEAL, silence=0.3, workers=2)
    silent = Caller(place.address(), SEAL, 1, 7).call()  # connected, and never another word
    with linked(place, 0) as (link,):
        assert link.ask("c", 20.0, 20.0) == ["c"]
    silent.close()
    place.shutdown()


def test_idle_strangers_keep_nobody_out_and_cost_a_bounded_number_of_descriptors(place):
    """As many as would exhaust what a process usually may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    strangers = []
    try:
        with linked(place, 0) as (first,):
            for _ in range(600):
                with contextlib.suppress(OSError):
                    strangers.append(dial(place))
            assert first.ask("a", 20.0, 20.0) == ["a"]
            with linked(place, 1) as (second,), ThreadPoolExecutor(1) as thread:
                asked = thread.submit(second.ask, "b", 20.0, 20.0)
                while first.ask("a", 20.0, 20.0) != ["a", "b"]:
                    pass
                assert asked.result() == ["a", "b"]
            wait_until(lambda: len(place._pending) <= module.ROOM, "the crowd to be sent away")
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(60),
        HEAD.pack(2**32 - 1, bytes(32)),
        HEAD.pack(2048, bytes(32)) + secrets.token_bytes(2048),
        struct.pack("<I", 0) + bytes(32),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    ],
    ids=["http", "a long frame", "random", "empty", "grpc"],
)
def test_noise_is_sent_away_and_the_others_go_on(place, noise):
    with linked(place, 0) as (link,), dial(place) as stranger:
        stranger.sendall(noise)
        assert link.ask("a", 20.0, 20.0) == ["a"]
        stranger.settimeout(20.0)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass


def test_a_member_that_says_something_impossible_is_sent_away(place):
    line = Caller(place.address(), SEAL, 1, 7).call()
    with linked(place, 0) as (link,):
        line.send({"kind": "ask", "card": ["no text"]})
        with pytest.raises(ConnectionResetError):
            line.read(20.0)
        assert link.ask("a", 20.0, 20.0) == ["a"]
    line.close()


def test_what_answers_without_the_token_is_not_believed():
    """An impostor at the Lighthouse's address hands out no run and no cards."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = f"127.0.0.1:{impostor.getsockname()[1]}"

        def answer():
            peer, _ = impostor.accept()
            with peer:
                peer.sendall(GREETING.pack(b"LACH", 1, bytes(32)))
                peer.recv(4096)
                body = b'{"differs": [], "run": "mine", "silence": 5}'
                peer.sendall(HEAD.pack(len(body), bytes(32)) + body)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(Refused, match="another token") as raised:
            Caller(address, SEAL, 0).call()
        assert not raised.value.signed


def test_a_lighthouse_that_is_back_is_found_again_and_the_change_is_told():
    first = Lighthouse("127.0.0.1:0", SEAL, silence=2.0, workers=2)
    with linked(first, 0) as (link,):
        assert link.ask("a", 20.0, 20.0) == ["a"]
        first.shutdown()
        second = Lighthouse(first.address(), SEAL, silence=2.0, workers=2)
        answer = None
        while answer is None:
            answer = link.ask("b", 20.0, 20.0)
        assert answer == ["b"]
        assert link.replaced
        assert link.ask("c", 20.0, 20.0) == ["c"]
        assert not link.replaced
    second.shutdown()


def test_a_worker_says_that_the_lighthouse_does_not_answer(monkeypatch, raises_clearly):
    monkeypatch.setattr("laconic.engines.meeting.TOLD", 0.05)
    place, told = Lighthouse("127.0.0.1:0", SEAL, silence=2.0, workers=2), []
    link = LighthouseLink(Caller(place.address(), SEAL, 0, 1), 0.1, 20.0, told.append)
    with contextlib.closing(link):
        assert link.ask("a", 20.0, 20.0) == ["a"]
        place.shutdown()
        with raises_clearly("no Lighthouse answers"):
            while True:
                link.ask("b", 20.0, 3.0)
    assert set(told) == {f"the Lighthouse at {place.address()} does not answer"}
    assert len(told) >= 2


# --- the room -------------------------------------------------------------------------------------


class People:
    """A room, and what its guests were told."""

    def __init__(self, **more):
        self.now, self.heard = 0.0, []
        self.room = Room(patience=10.0, clock=lambda: self.now, **more)

    def guest(self, worker, born=1):
        tell = lambda cards: self.heard.append((worker, cards))
        made = Guest(worker, born, tell, lambda: self.heard.append((worker, "leave")))
        assert self.room.enter(made)
        return made

    def told(self):
        found, self.heard = self.heard, []
        return found


def test_the_last_quorum_does_not_wait_for_one_who_just_came():
    people = People()
    a, b = people.guest(0), people.guest(1)
    people.room.ask(b, "b1")
    assert people.told() == []
    people.room.ask(a, "a1")
    assert people.told() == [(0, ["a1", "b1"]), (1, ["a1", "b1"])]
    people.guest(2)
    people.room.ask(a, "a2")
    people.room.ask(b, "b2")
    assert people.told() == [(0, ["a2", "b2"]), (1, ["a2", "b2"])]


def test_one_who_leaves_is_not_waited_for_and_one_who_stays_is():
    people = People()
    a, b, c = people.guest(0), people.guest(1), people.guest(2)
    people.room.ask(a, "a")
    people.room.ask(b, "b")
    assert people.told() == []
    people.room.go(c)
    assert people.told() == [(0, ["a", "b"]), (1, ["a", "b"])]
    people.room.ask(a, "a")
    people.room.ask(a, "anew")
    people.room.go(b)
    assert people.told() == [(0, ["anew"])]


def test_enough_wait_a_grace_period_for_the_rest():
    """Counted from when they were enough; who was late is there in the next quorum."""
    people = People(grace=2.0, least=2)
    a, b, c = people.guest(0), people.guest(1), people.guest(2)

    def at(now):
        people.now = now
        people.room.look()
        return [who for who, _ in people.told()]

    people.room.ask(a, "a")
    assert at(5.0) == []
    people.room.ask(b, "b")
    assert (at(6.9), at(7.0)) == ([], [0, 1])
    people.room.ask(c, "late")
    people.room.ask(a, "a")
    assert at(8.0) == []
    people.room.ask(b, "b")
    assert at(8.0) == [0, 1, 2]
    people.room.ask(a, "a")
    people.room.ask(c, "c")
    assert (at(9.9), at(10.0)) == ([], [0, 2])


def test_most_go_on_after_long_waiting_and_half_do_not():
    people = People()
    a, b = people.guest(0), people.guest(1)
    people.guest(2)
    people.guest(3)
    people.room.ask(a, "a")
    people.room.ask(b, "b")
    people.now = 11.0
    people.room.look()
    assert people.told() == []
    people.room.ask(people.guest(4), "e")
    assert [who for who, _ in people.told()] == [0, 1, 4]
