"""How long a round waits for those who are late, by a clock that the test turns."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

from flwr.app import Message

from laconic.flower import LearnedStrategy
from laconic.flower.strategy import LEAST, PAUSE, PatientGrid
from tests.flower.app import waves
from tests.flower.grids import FakeGrid, answer, fit, honest, record


class Clock:
    now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds == PAUSE
        self.now += seconds


class SlowGrid(FakeGrid):
    """Node k answers after `delays[k]` seconds; None: never."""

    def __init__(self, delays, clock):
        super().__init__(dict.fromkeys(delays))
        self.delays, self.clock, self.run = delays, clock, "a run"

    def push_messages(self, messages):
        self.begun, self.sent = self.clock(), {f"m{m.metadata.dst_node_id}": m for m in messages}
        return list(self.sent)

    def pull_messages(self, message_ids):
        found = []
        for name in sorted(message_ids):
            message = self.sent[name]
            delay = self.delays[message.metadata.dst_node_id]
            if delay is not None and self.clock() - self.begun >= delay:
                found.append(Message(answer({}), reply_to=message))
                found[-1].metadata.__dict__["_reply_to_message_id"] = name
        return found


def wait(delays, patience, timeout=1000.0):
    """→ who answered in time, and how long it took."""
    clock = Clock()
    inner = SlowGrid(delays, clock)
    grid = PatientGrid(inner, patience, clock, clock.sleep)
    messages = [
        Message(answer({}), dst_node_id=k, message_type="train") for k in grid.get_node_ids()
    ]
    replies = grid.send_and_receive(messages, timeout=timeout)
    assert grid.run == "a run"
    return [reply.metadata.src_node_id for reply in replies], clock.now - 100.0


@pytest.mark.parametrize(
    ("delays", "patience", "timeout", "who", "seconds"),
    [
        ({1: 2.0, 2: 4.0, 3: 5.0}, 2.0, 1000.0, [1, 2, 3], 5.0),  # nobody is late
        (
            {1: 2.0, 2: 4.0, 3: None},
            2.0,
            1000.0,
            [1, 2],
            6.5,
        ),  # more than twice 3.0, the median of those who came
        ({1: 2.0, 2: 4.0, 3: 6.0}, 2.0, 1000.0, [1, 2, 3], 6.0),  # late, and just in time
        ({1: 2.0, 2: None, 3: None, 4: None}, 2.0, 50.0, [1], 50.0),  # too few to say what is late
        ({1: 8.0, 2: None}, 1.0, 1000.0, [1], 8.5),
        ({1: 0.0, 2: None}, 5.0, 1000.0, [1], LEAST + 0.5),  # quick as the first was
        ({}, 2.0, 1000.0, [], 0.0),
    ],
)
def test_a_round_waits_for_a_multiple_of_the_median(delays, patience, timeout, who, seconds):
    assert wait(delays, patience, timeout) == (who, seconds)


class InstantGrid(FakeGrid):
    """One that answers only those who push and pull."""

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("nobody was to wait as Flower does")


def test_a_patient_strategy_pulls_for_itself():
    clients = {k: honest(k) for k in range(3)}
    strategy = LearnedStrategy("fedavg", patience=2.0, fraction_evaluate=0.0)
    result = strategy.start(InstantGrid(clients), record(waves.new_weights()), num_rounds=2)
    for name, x in fit(LearnedStrategy("fedavg"), clients, 2)[0].items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), x)


def test_impatience_is_refused(raises_clearly):
    with raises_clearly("patience", "at least 1", "0.5"):
        LearnedStrategy("fedavg", patience=0.5)
    with raises_clearly("patience", "nan"):
        LearnedStrategy("fedavg", patience=float("nan"))
