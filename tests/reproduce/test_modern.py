"""Ways to send less: every one under both servers, and prices of rounds by hand."""

import pytest

from laconic.methods import parse_method
from laconic.reproduce import EXPERIMENTS, scale
from laconic.reproduce.modern import GENERAL, LINKS
from laconic.reproduce.panel import Panel
from laconic.reproduce.panel_show import COLUMNS, SLOW
from laconic.reproduce.run import reproduce
from laconic.show.timing import Link, Traffic, round_seconds, streamed_seconds

TABLE = EXPERIMENTS["table-modern"]


def panel(name):
    return next(part for part in TABLE.of(Panel) if part.name == name)


@pytest.mark.parametrize("name", ["small", "decoder"])
def test_every_message_has_both_servers_in_one_setting(name):
    whole, streamed = panel(name), panel(f"{name}-streaming")
    for found in (whole, streamed):
        config = found.config
        assert (config.workers, config.local_steps, config.seeds) == (8, 30, 3)
    methods = [parse_method(spec, 8) for spec in whole.config.optimizers]
    for words in ("dense", "int8", "int4", "topk:0.01+ef", "sparseloco"):
        names = [x.name for x in methods if x.compressor.name == words]
        assert {"diloco", GENERAL} <= set(names)
    assert [x.name for x in methods if "Muon" in x.label] == ["muloco", GENERAL]
    sparse = [x for x in methods if x.name == "sparseloco"]
    assert [x.compressor.name for x in sparse] == ["sparseloco"]
    names = [parse_method(spec, 8).name for spec in streamed.config.optimizers]
    assert names == ["diloco", GENERAL]
    assert (streamed.config.fragments, streamed.config.delay) == (3, 10)
    same = ("task", "batch", "rounds", "step_time", "evaluate_every")
    assert all(getattr(whole.config, x) == getattr(streamed.config, x) for x in same)


def record(compressor, sent, step=0.001, **config):
    """Of one method: 8 workers, 30 local steps, 20 rounds; the model is 1 Mbit."""
    traffic = {"sent_bits": sent, "received_bits": 10**6, "topology": "server"}
    method = {"kind": "method", "label": "a", "compressor": compressor}
    head = {"kind": "run", "config": {"workers": 8, "local_steps": 30, "rounds": 20} | config}
    return [head, {**method, "traffic": traffic, "step_seconds": step}]


def seconds(column, records):
    return COLUMNS[column].measure({"label": "a"}, records)[0]


def test_prices_by_hand():
    dense, sparse = record("dense", 10**6), record("sparseloco", 10**5)
    # 30 ms of local steps, and 10 ms for each Mbit
    assert seconds("server_100mbit", dense) == pytest.approx(20 * (0.03 + 0.01 + 0.01))
    assert seconds("server_100mbit", sparse) == pytest.approx(20 * (0.03 + 0.001 + 0.01))
    assert seconds("server_1gbit", dense) == pytest.approx(20 * (0.03 + 0.002))
    # a ring moves 2·7/8 of the model each way; to everyone, the message goes and comes 7 times
    assert seconds("peers_100mbit", dense) == pytest.approx(20 * (0.03 + 2 * 0.0175))
    assert seconds("peers_1gbit", sparse) == pytest.approx(20 * (0.03 + 14 * 0.0001))
    assert seconds("server_1gbit", record("dense", 10**6, step=None)) is None


def test_fragments_hide_what_their_delay_covers():
    hidden = record("dense", 10**6, fragments=3, delay=10, mix=0.5)
    assert seconds("server_100mbit", hidden) == pytest.approx(20 * 0.03)  # 20/3 ms within 10 ms
    slow = record("dense", 10**6, step=0.0005, fragments=3, delay=10, mix=0.5)
    left = 3 * (0.02 / 3 - 10 * 0.0005)
    assert seconds("server_100mbit", slow) == pytest.approx(20 * (0.015 + left))
    traffic = Traffic(10**6, 10**5, "server")
    plain = streamed_seconds(SLOW, traffic, 30, 0.001, count=1, delay=0)
    assert plain == pytest.approx(round_seconds(SLOW, traffic, 30, 0.001))
    late = Link(1e8, 0.02)
    # two messages of 5.5 ms and 40 ms of latency each, of which 10 ms are hidden
    assert streamed_seconds(late, traffic, 30, 0.001, 2, 10) == pytest.approx(0.03 + 2 * 0.0355)
    assert streamed_seconds(late, Traffic(0, 0, "one worker"), 30, 0.001, 2, 10) == 0.03


@pytest.mark.usefixtures("standard_promotion")
def test_the_table_from_one_command_at_smoke_scale(tmp_path, monkeypatch, real_data):
    real_data("text")
    monkeypatch.setattr(scale, "ROUNDS", 10)
    folder, outcome = reproduce("table-modern", "smoke", tmp_path, panels=["small-streaming"])
    assert {row["panel"] for row in outcome["rows"]} == {"small-streaming"}
    found = {(row["label"], row["metric"]): row["ours"] for row in outcome["rows"]}
    for label in ("Nesterov + streaming", "learned + streaming"):
        assert 0 < found[label, "final_train"] < 8
        assert found[label, "server_100mbit"] >= found[label, "server_1gbit"] >= 10 * 7 * 0.001
        assert all(found[label, name] is not None for name in LINKS)
    (table,) = outcome["tables"]
    assert "s, server, 100 Mbit" in table["headers"]
    assert (folder / "records.jsonl").is_file()
