"""Words of commands that cannot work: one clear error, exit status 1 (2 where a flag itself is
wrong), and nothing changed or left behind. The cases and what must be said are in
`bad_words.txt`, a line each."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laconic import zoo
from laconic.cli import main

WEIGHTS = Path(zoo.__file__).parent / "weights"
BOXES = ("Value error", "Missing argument", "Invalid choice", "Unrecognized", "Required options")
LINES = Path(__file__).with_name("bad_words.txt").read_text().splitlines()
CASES = dict(line.split(" => ") for line in LINES if line)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of things that are in the way: files, notes, damaged runs and optimizers."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("LACONIC_TOKEN", "secret")
    for name, text in {"file": "x", "empty": "", "text.safetensors": "hello"}.items():
        Path(name).write_text(text)
    for name in ("full", "empty-folder", "folder.safetensors", "damaged", "nested", "binary"):
        Path(name).mkdir()
    Path("full/notes.txt").write_text("mine")
    Path("damaged/records.jsonl").write_text('{"kind": "run", "conf')
    Path("nested/records.jsonl").write_text("[" * 100_000)
    Path("binary/records.jsonl").write_bytes(b"\x00\xff\n" * 99)
    shutil.copy(next(WEIGHTS.rglob("lopt-a-fmnist.safetensors")), "lopt.safetensors")
    return tmp_path


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_there_are_many():
    assert len(CASES) == len([line for line in LINES if line]) >= 480
    assert {words.split()[0] for words in CASES} >= {
        *("compare", "sweep", "train", "launch", "worker", "meta-train", "zoo", "report"),
        *("reproduce", "bench", "optimizers", "tasks", "plan", "cache"),
    }


@pytest.mark.parametrize("words", CASES)
def test_one_clear_error_and_nothing_lost(words, folder, capfd):
    before = contents(folder)
    with pytest.raises(SystemExit) as left:
        main(shlex.split(words))
    shown = capfd.readouterr().err
    boxes = sum(shown.count(box) for box in BOXES)
    assert (left.value.code, shown.count("error: "), min(boxes, 1)) in ((1, 1, 0), (2, 0, 1)), shown
    assert CASES[words] in " ".join(shown.split())
    assert "Traceback" not in shown
    assert contents(folder) == before


def test_a_terminal_of_ascii_shows_what_it_can():
    words = [sys.executable, "-m", "laconic", "zoo", "show", "lopt-a-fmnist"]
    told = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(words, env=told, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "lopt-a-fmnist" in done.stdout
