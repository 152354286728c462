"""What is told of a worker that waits."""

from dataclasses import replace

import pytest

from laconic.engines.membership import plan
from laconic.engines.waiting import AFTER, AGAIN, Waiting, late, majority, reason
from tests.engines.test_membership import card, cut

FOUR = {w: card(w, least=3) for w in range(4)}


def test_a_majority():
    assert [majority(K) for K in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]


def test_reasons():
    assert reason(plan(FOUR), 4, 0) == ""
    few = reason(plan({w: FOUR[w] for w in (0, 2)}), 4, 0)
    assert few == "2 of 4 workers are here and 3 are needed (--min-workers); missing: 1, 3"
    one_dead = plan(cut(FOUR, 0, 3))
    assert reason(one_dead, 4, 0) == ""
    assert "dead links: 0-3" in reason(one_dead, 4, 3)
    many = plan(cut(cut(FOUR, 0, 3), 1, 2))
    for worker in range(4):
        assert "0-3, 1-2" in reason(many, 4, worker)
    late_one = {w: replace(FOUR[w], awaits=(0, 1, 2, 3)) for w in (0, 1, 2)}
    assert reason(plan(late_one), 4, 0) == ""
    assert "worker 3" in late(plan(late_one))


@pytest.fixture
def told():
    lines, clock = [], [100.0]
    waiting = Waiting(lines.append, lambda: clock[0], lambda: "12:00:00")
    return waiting, lines, clock


def test_it_is_told_once_then_now_and_then_and_at_the_end(told):
    waiting, lines, clock = told
    for seconds in (0.0, AFTER, 0.5, AGAIN - 1.0, 0.6, 0.1):
        clock[0] += seconds
        waiting.because("nobody is here")
    assert lines == ["waits since 12:00:00: nobody is here."] * 2
    waiting.because("somebody is here")
    assert lines[2:] == ["waits since 12:00:00: somebody is here."]
    waiting.over()
    assert lines[3:] == ["goes on, after 62 s."]


def test_a_short_wait_is_not_worth_a_word(told):
    waiting, lines, clock = told
    waiting.because("nobody is here")
    clock[0] += AFTER / 2
    waiting.over()
    clock[0] += AFTER
    waiting.because("nobody is here")
    assert lines == []


def test_a_wait_that_is_worth_a_word_can_be_ended_meanwhile(told):
    _, lines, clock = told

    def enough():
        raise KeyboardInterrupt

    waiting = Waiting(lines.append, lambda: clock[0], lambda: "12:00:00", enough)
    waiting.because("nobody is here")
    clock[0] += AFTER
    with pytest.raises(KeyboardInterrupt):
        waiting.because("nobody is here")
    assert lines == ["waits since 12:00:00: nobody is here."]
    with pytest.raises(KeyboardInterrupt):  # at once, though no word is due
        waiting.because("nobody is here")
    assert len(lines) == 1
