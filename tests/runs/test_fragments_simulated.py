"""The simulator with fragments: chunks, seeds, bits, and what it refuses."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from laconic.cli import main
from laconic.compress import parse_compressor
from laconic.fragments import Fragments, fragments_in_words, fragments_of
from laconic.method import Method, Setting, local_method
from laconic.methods import parse_method
from laconic.outer import OUTER
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.settings import command_line
from laconic.runs.simulate import Simulation
from laconic.show.comparison import setting_of
from laconic.store.records import read
from tests.tiny import SGD, TASK

SETTING = Setting(4, 4, 4, 4, (0, 1), 2, fragments=Fragments(2, 1, 0.5))
CONFIG = CompareConfig(workers=4, rounds=2, seeds=1, evaluate_every=2, fragments=2, delay=1)


def method(spec: str = "dense") -> Method:
    return local_method("test", SGD, OUTER["nesterov"].make(), parse_compressor(spec))


def test_chunks_go_on_where_the_last_one_stopped():
    simulation = Simulation(TASK, method(), SETTING)
    chunks = list(simulation.run(simulation.start()))
    assert [chunk.done for chunk in chunks] == [2, 4]
    whole = Simulation(TASK, method(), replace(SETTING, evaluate_every=4))
    (at_once,) = whole.run(whole.start())
    jax.tree.map(np.testing.assert_array_equal, chunks[-1].state.shared, at_once.state.shared)
    losses = np.concatenate([chunk.losses for chunk in chunks], axis=1)
    np.testing.assert_array_equal(losses, at_once.losses)
    assert np.any(losses[0] != losses[1])


def test_bits_are_counted_fragment_by_fragment():
    dense = Simulation(TASK, method("dense"), SETTING)
    plain = Simulation(TASK, method("dense"), replace(SETTING, fragments=Fragments()))
    for topology in ("server", "all-gather", "ring"):
        assert dense.traffic(topology) == plain.traffic(topology)
    sparse = Simulation(TASK, method("topk:0.2"), SETTING).traffic()
    # of 38 numbers 8 with 6 bits each for their places, of 12 three with 4
    assert sparse.sent_bits == (8 * 32 + 8 * 6) + (3 * 32 + 8 * 2)
    assert sparse.received_bits == 50 * 32


@pytest.mark.parametrize(
    ("spec", "says"),
    [("sgd", "without local steps"), ("scaffold", "SCAFFOLD"), ("small-batch-sgd", "one place")],
)
def test_methods_without_fragments_are_refused_before_anything_runs(spec, says, raises_clearly):
    with raises_clearly(says):
        Simulation(TASK, parse_method(spec, 4), SETTING)
    with raises_clearly("4 tensors cannot be cut"):
        Simulation(TASK, method(), replace(SETTING, local_steps=8, fragments=Fragments(5)))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"link": "100Mbit", "step_time": "1ms"}, "--link"),
        ({"missing": 1}, "all of them must stay"),
        ({"fragments": 9}, "no room for 9 fragments"),
        ({"mix": 1.0}, "below 1"),
    ],
)
def test_comparisons_that_cannot_be_are_refused(more, says, raises_clearly, tmp_path):
    with raises_clearly(says):
        compare(replace(CONFIG, out=tmp_path, **more))


def test_a_config_says_its_fragments():
    assert command_line("compare", CONFIG).endswith("--fragments 2 --delay 1")
    assert fragments_in_words({}) == fragments_in_words({"fragments": 1, "delay": 0}) == ""
    given = {"fragments": 3, "delay": 2, "mix": 0.5}
    assert fragments_of(given) == Fragments(3, 2, 0.5)
    assert fragments_in_words(given) == ", 3 fragments, delay 2, mix 0.5"


@pytest.mark.slow
def test_a_comparison_with_a_learned_optimizer_from_the_command_line(tmp_path):
    words = ["compare", "--task", "digits-mlp:width=8", "--optimizers", "lopt-a-digits"]
    words += ["--workers", "4", "--rounds", "5", "--seeds", "1", "--batch", "8"]
    words += ["--fragments", "3", "--delay", "1", "--mix", "0.5", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    records = read(tmp_path / "run" / "records.jsonl")
    assert "3 fragments, delay 1, mix 0.5" in setting_of(records)
    assert not any(records[1]["diverged"])
