"""`laconic plan`: the table, the choice in words, and the record."""

import json

from tests.cli.commands import assert_one_error, laconic

SMALL = ["plan", "--parameters", "1e6", "--probe", "1000", "--workers", "4", "--local-steps", "2"]
SMALL += ["32", "--compress", "dense", "int8", "--optimizers", "diloco", "local-sgd"]


def test_the_words_say_what_the_record_holds(capfd, tmp_path, standard_promotion):
    code, out, _ = laconic(capfd, *SMALL, "--out", tmp_path / "plan.json")
    assert code == 0
    found = json.loads((tmp_path / "plan.json").read_text())
    ways = {(row["compress"], row["optimizer"], row["topology"]) for row in found["rows"]}
    assert {way[:2] for way in ways} == {
        (compress, optimizer)
        for compress in ("dense", "int8")
        for optimizer in ("diloco", "local-sgd")
    }
    for way in ways:
        assert all(word in out for word in way)
    chosen = found["chosen"]
    assert chosen["least_local_steps"] == min(row["least_local_steps"] for row in found["rows"])
    said = f"Choose H = {chosen['least_local_steps']:,} with {chosen['compress']} messages"
    assert said in " ".join(out.split())
    assert {"commit", "versions", "device", "plan"} <= set(found)


def test_what_cannot_be_planned_is_one_error(capfd, tmp_path):
    asked = [*SMALL, "--out", str(tmp_path / "plan.json")]
    assert_one_error(capfd, [*asked, "--link", "fast"], ["link", "fast"])
    assert_one_error(capfd, [*asked, "--share", "2"], ["share", "2"])
    assert_one_error(capfd, [*asked, "--optimizers", "lopt-z"], ["lopt-z"])
    assert_one_error(capfd, [*asked, "--compress", "dense", "zip"], ["zip"])
    assert list(tmp_path.iterdir()) == []
