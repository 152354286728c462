"""Words of commands that cannot work: one clear error, exit status 1, and nothing left behind."""

import os
import subprocess
import sys

import pytest

from laconic.cli import main

HUGE = "99999999999999999999"
WORDS = {
    "compare --rounds": ("can be at most", ["compare", "--rounds", HUGE]),
    "compare --workers": ("can be at most", ["compare", "--workers", "100000000"]),
    "compare --local-steps": ("can be at most", ["compare", "--local-steps", HUGE]),
    "compare --batch": ("can be at most", ["compare", "--batch", HUGE]),
    "compare --seeds": ("can be at most 10,000", ["compare", "--seeds", HUGE]),
    "compare --seeds 0": ("seeds must be positive", ["compare", "--seeds", "0"]),
    "compare --first-seed": ("a seed must be", ["compare", "--first-seed", HUGE]),
    "sweep --rounds": ("can be at most", ["sweep", "slowmo-coarse", "--rounds", HUGE]),
    "sweep --seeds": ("can be at most 10,000", ["sweep", "slowmo-coarse", "--seeds", HUGE]),
    "train --rounds": ("can be at most", ["train", "digits", "--rounds", HUGE]),
    "train --workers": ("can be at most", ["train", "digits", "--workers", HUGE]),
}


@pytest.mark.parametrize("name", WORDS)
def test_numbers_beyond_counting_are_one_clear_error(name, tmp_path, monkeypatch, capfd):
    says, words = WORDS[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main([*words, "--out", "run"])
    shown = capfd.readouterr().err
    assert left.value.code == 1
    assert shown.count("error:") == 1
    assert says in shown
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir())


def test_a_terminal_of_ascii_shows_what_it_can():
    words = [sys.executable, "-m", "laconic", "zoo", "show", "lopt-a-fmnist"]
    told = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(words, env=told, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "lopt-a-fmnist" in done.stdout
