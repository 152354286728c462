"""Who is let in, whom they follow, and when a connection is kept."""

import json
from dataclasses import replace

import pytest

from laconic.engines.base import Counts
from laconic.engines.membership import STRANGER, Card, accept, is_address, misfit, plan
from laconic.engines.wire import Seal

SEAL = Seal.of("secret", "run")
GOOD, OTHER = "ab" * 32, "cd" * 32


def card(worker: int, round: int = 5, digest: str = GOOD, **more) -> Card:
    base = Card(
        worker,
        100 + worker,
        1,
        round,
        digest,
        "",
        "same",
        f"127.0.0.1:{4000 + worker}",
        "127.0.0.1:5000",
    )
    return replace(base, **more)


def let_in(*texts: str) -> tuple[dict[int, Card], list[str]]:
    counts = Counts(0, 0, {})
    members, _ = accept(SEAL, texts, 4, "same", counts)
    return members, list(counts.refused)


def test_a_card_survives_its_journey():
    shown = card(2, awaits=(0, 1, 3), least=3, cut=((1, 101), (3, 103)))
    assert Card.read(SEAL, shown.show(SEAL)) == (shown, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '["a", "b"]',
        '["{}", "00"]',
        card(1).show(Seal.of("guess", "run")),
        card(1).show(Seal.of("secret", "another")),
        card(1).show(SEAL).replace("127.0.0.1", "10.0.0.9"),
        card(1, cut=(7,)).show(SEAL),
        card(1, cut=((1, 2, 3),)).show(SEAL),
        json.dumps(["{}", SEAL.sign(b"{}").hex()]),
        json.dumps([json.dumps({"worker": 1}), SEAL.sign(b'{"worker": 1}').hex()]),
        card(1, awaits=(0,) * 20000).show(SEAL),
        "[" * 4000,
        "9" * 5000,
    ],
)
def test_what_is_no_card_of_this_run_is_counted_and_kept_out(text):
    members, reasons = let_in(card(0).show(SEAL), text)
    assert list(members) == [0]
    assert reasons == [STRANGER]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker", -1),
        ("worker", 2**31),
        ("worker", True),
        ("worker", 1.0),
        ("worker", None),
        ("born", "x"),
        ("born", 2**63),
        ("born", float("nan")),
        ("turn", -5),
        ("turn", 10**400),
        ("round", "5"),
        ("round", -1),
        ("round", 2**31),
        ("digest", "zz" * 32),
        ("digest", "ab" * 31),
        ("digest", "AB" * 32),
        ("digest", 7),
        ("digest", None),
        ("group", "x" * 1000),
        ("group", ["g"]),
        ("structure", {"a": 1}),
        ("links", "127.0.0.1"),
        ("links", "127.0.0.1:0"),
        ("links", "127.0.0.1:65536"),
        ("links", "a b:80"),
        ("state", "http://127.0.0.1:80/"),
        ("state", "127.0.0.1:\u0661\u0662"),
        ("state", 80),
        ("awaits", ("0",)),
        ("awaits", (-1,)),
        ("least", "x"),
        ("cut", ((-1, 5),)),
        ("cut", ((1, "5"),)),
    ],
)
def test_a_field_that_no_worker_can_have_is_refused_by_its_name(field, value):
    """Signed with the token: a broken worker, or one of another make."""
    members, reasons = let_in(card(0).show(SEAL), replace(card(1), **{field: value}).show(SEAL))
    assert list(members) == [0]
    assert reasons == [f"a card with an impossible {field}"]


def test_a_round_after_the_last_is_not_believed():
    """It would be followed: the others would ask for a state that does not exist."""
    counts = Counts(0, 0, {})
    texts = [card(0).show(SEAL), card(1, round=10**9).show(SEAL)]
    members, _ = accept(SEAL, texts, 4, "same", counts, last=80)
    assert list(members) == [0]
    assert list(counts.refused) == ["worker 1 with a round after the last"]


@pytest.mark.parametrize("good", ["10.0.0.1:1", "node-7.local:29510", "[::1]:65535", "a_b:80"])
def test_addresses_are_host_and_port(good):
    assert is_address(good)
    assert not is_address(good + " ")


def test_members_of_another_size_or_task_are_kept_out():
    members, reasons = let_in(
        card(4).show(SEAL),
        card(1, structure="other").show(SEAL),
        card(3, awaits=(0, 9)).show(SEAL),
        card(2).show(SEAL),
    )
    assert list(members) == [2]
    assert reasons == [
        "worker id 4 of a run with 4",
        "worker 1 runs another task or method",
        "worker id 9 of a run with 4",
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "parts"),
    [
        ([2], [0, 1], ["another task", "(0, 1)", "install the same laconic"]),
        ([1], [0], ["another task"]),
        ([0], [1], None),
        ([1, 2], [0], None),
        ([0], [], None),
    ],
    ids=["majority", "tie, we are last", "tie, we were first", "minority", "alone"],
)
def test_who_is_told_to_change(ours, theirs, parts):
    """Born in the order of their ids."""
    texts = [card(w).show(SEAL) for w in ours]
    texts += [card(w, structure="other").show(SEAL) for w in theirs]
    said = misfit(*accept(SEAL, texts, 4, "same", Counts(0, 0, {})))
    if parts is None:
        assert said is None
    else:
        assert said is not None
        assert all(part in said for part in parts)


def test_a_refusal_is_told_once_and_counted_each_time():
    told: list[str] = []
    counts = Counts(0, 0, {}, told.append)
    for _ in range(3):
        accept(SEAL, [card(1, digest="").show(SEAL)], 4, "same", counts)
    assert counts.refused == {"a card with an impossible digest": 3}
    assert told == ["refused: a card with an impossible digest"]


def test_a_restarted_worker_replaces_its_predecessor():
    old, new = card(1, born=1, turn=50), card(1, born=2, turn=1)
    for order in ((old, new), (new, old)):
        members, _ = let_in(*(c.show(SEAL) for c in order))
        assert members[1] == new


@pytest.mark.parametrize(
    ("states", "follow", "sources"),
    [
        ({0: (5, GOOD), 1: (5, GOOD), 2: (5, OTHER)}, (5, GOOD), (0, 1)),
        ({0: (5, OTHER), 1: (5, GOOD), 2: (5, GOOD)}, (5, GOOD), (1, 2)),
        ({0: (5, OTHER), 3: (5, GOOD)}, (5, OTHER), (0,)),
        ({0: (5, GOOD), 1: (5, GOOD), 2: (6, OTHER)}, (6, OTHER), (2,)),
        ({3: (0, GOOD)}, (0, GOOD), (3,)),
    ],
    ids=["majority", "not the first", "tie: lowest id", "furthest round", "alone"],
)
def test_whom_they_follow(states, follow, sources):
    made = plan({w: card(w, *state) for w, state in states.items()})
    assert (made.quorum.round, made.quorum.digest.hex()) == follow
    assert made.quorum.sources == sources
    assert made.quorum.workers == tuple(sorted(states))


def test_a_connection_is_kept_while_all_have_it_and_nobody_came_or_went():
    first = plan({w: card(w) for w in (0, 1, 2)})
    assert first.fresh
    having = {w: card(w, group=first.group, turn=2) for w in (0, 1, 2)}
    kept = plan(having)
    assert (kept.fresh, kept.group) == (False, first.group)
    one_lost = plan(having | {1: card(1, group="", turn=2)})
    came = plan(having | {3: card(3)})
    went = plan({w: having[w] for w in (0, 2)})
    restarted = plan(having | {1: card(1, born=999, group=first.group, turn=2)})
    again = plan({w: card(w, group="", turn=3) for w in (0, 1, 2)})
    for other in (one_lost, came, went, restarted, again):
        assert other.fresh
        assert other.group != first.group
    assert len({p.group for p in (one_lost, came, went, restarted, again)}) == 5


def test_fewer_than_the_cards_ask_for_do_not_go_on():
    """The most that any card asks for, as all who see the cards must decide alike."""
    three = {w: card(w, least=3) for w in range(3)}
    assert plan(three).ready
    assert not plan({w: three[w] for w in (0, 2)}).ready
    assert not plan({0: card(0), 1: card(1, least=3)}).ready
    assert plan({0: card(0)}).ready


@pytest.mark.parametrize("least", [0, -1, 5, 10**30])
def test_a_card_that_asks_for_more_workers_than_there_are_is_refused(least):
    members, reasons = let_in(card(0).show(SEAL), card(1, least=least).show(SEAL))
    assert list(members) == [0]
    assert reasons == [f"worker 1 wants {least} of 4 workers in a round"]


def cut(cards: dict[int, Card], one: int, other: int) -> dict[int, Card]:
    """`one` says that it cannot reach `other`."""
    unheard = (*cards[one].cut, (other, cards[other].born))
    return cards | {one: replace(cards[one], cut=unheard)}


def test_one_end_of_a_dead_link_is_left_out():
    """Whichever end says so, and the rest go on, with a connection of their own."""
    four = {w: card(w, least=3) for w in range(4)}
    whole = plan(four)
    for one, other in ((0, 1), (1, 0)):
        made = plan(cut(four, one, other))
        assert (made.ready, made.left, made.down) == (True, (1,), ((0, 1),))
        assert made.quorum.workers == made.quorum.sources == (0, 2, 3)
        assert made.group != whole.group
    star = cut(cut(cut(four, 0, 1), 2, 0), 0, 3)
    assert plan(star).left == (0,)


def test_too_few_for_a_round_leave_nobody_out_and_wait():
    two = {w: card(w, least=2) for w in range(2)}
    made = plan(cut(two, 0, 1))
    assert (made.ready, made.left, made.quorum.workers) == (False, (), (0, 1))
    alone = {w: card(w, least=1) for w in range(2)}
    assert plan(cut(alone, 0, 1)).left == (1,)


def test_the_only_holder_of_the_state_is_not_left_out():
    four = {w: card(w, least=3) for w in range(3)} | {3: card(3, round=6, least=3)}
    made = plan(cut(four, 3, 0))
    assert (made.left, made.quorum.round, made.quorum.sources) == ((0,), 6, (3,))


def test_what_is_said_of_an_older_process_or_of_oneself_does_not_count():
    four = {w: card(w) for w in range(4)}
    restarted = cut(four, 0, 1) | {1: card(1, born=999)}
    assert plan(restarted).left == ()
    assert plan(cut(four, 2, 2)).left == ()
    absent = cut(four, 0, 3)
    assert plan({w: absent[w] for w in (0, 1, 2)}).left == ()


def test_only_those_who_hold_the_state_say_whom_to_wait_for():
    waiting = {0: card(0, awaits=(0, 1, 2)), 1: card(1)}
    assert not plan(waiting).ready
    assert plan(waiting | {2: card(2)}).ready
    newcomer = {0: card(0), 1: card(1, round=0, awaits=(0, 1, 2, 3))}
    assert plan(newcomer).ready
