"""Compiled programs are kept from run to run, and nothing but time depends on that."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import safetensors.numpy

from laconic.cli import compiled
from tests.cli.commands import laconic

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_programs_are_kept_and_the_first_run_says_where(environment, capfd):
    compiled.keep_compiled(environment)
    folder = compiled.folder_of(environment)
    assert folder.is_dir()
    assert folder.is_relative_to(environment["XDG_CACHE_HOME"])
    assert environment[compiled.VARIABLE] == str(folder)
    assert environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert f"kept in {folder} (laconic cache --clear)" in capfd.readouterr().err
    del environment[compiled.VARIABLE]
    compiled.keep_compiled(environment)
    assert environment[compiled.VARIABLE] == str(folder)
    assert capfd.readouterr().err == ""


def test_a_users_own_choice_is_left_alone(environment, tmp_path, capfd):
    given = environment | {compiled.VARIABLE: str(tmp_path / "mine")}
    compiled.keep_compiled(changed := dict(given))
    assert changed == given
    assert capfd.readouterr().err == ""
    assert compiled.folder_of(given) == tmp_path / "mine"


def test_where_nothing_can_be_kept_a_line_says_so(environment, tmp_path, monkeypatch, capfd):
    full = namedtuple("Usage", "free")(0)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: full)
        compiled.keep_compiled(environment)
    assert "the disk is full" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        compiled.keep_compiled(environment)
    assert "it is read-only" in capfd.readouterr().err
    (tmp_path / "file").write_text("")
    environment["XDG_CACHE_HOME"] = str(tmp_path / "file")
    compiled.keep_compiled(environment)
    assert "are not kept in" in capfd.readouterr().err
    assert compiled.VARIABLE not in environment


def test_the_oldest_programs_go_once_there_are_too_many(environment, monkeypatch):
    folder = compiled.folder_of(environment)
    folder.mkdir(parents=True)
    for i in range(4):
        path = folder / f"{i}-cache"
        path.write_bytes(bytes(10))
        os.utime(path, (i, i))
    (folder / "other").write_bytes(bytes(100))
    monkeypatch.setattr(compiled, "MOST", 40)
    compiled.keep_compiled(dict(environment))
    assert len(list(folder.iterdir())) == 5
    monkeypatch.setattr(compiled, "MOST", 39)
    compiled.keep_compiled(dict(environment))
    assert {path.name for path in folder.iterdir()} == {"3-cache", "other"}


def test_the_command_shows_and_deletes_them(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "mine"
    monkeypatch.setenv(compiled.VARIABLE, str(folder))
    assert laconic(capfd, "cache")[1] == f"kept: 0 compiled programs, 0.0 MB, in {folder}\n"
    (folder / compiled.TUNED).mkdir(parents=True)
    (folder / "jit_f-1-cache").write_bytes(bytes(100_000))
    (folder / "notes.txt").write_text("mine")
    assert "kept: 1 compiled programs, 0.1 MB" in laconic(capfd, "cache")[1]
    code, out, _ = laconic(capfd, "cache", "--clear")
    assert (code, out) == (0, f"deleted: 1 compiled programs, 0.1 MB, in {folder}\n")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_a_run_from_kept_programs_ends_with_the_same_bits(tmp_path):
    told = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    told |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    told["PYTHONPATH"] = str(ROOT)
    words = ["--optimizer", "slowmo", "--rounds", "2", "--out"]
    train = [sys.executable, "-m", "laconic", "train", *words]

    def run(name):
        done = subprocess.run(
            [*train, name], cwd=tmp_path, env=told, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        kept = {path.name for path in compiled.folder_of(told).iterdir()}
        weights = safetensors.numpy.load_file(tmp_path / name / "weights.safetensors")
        return done.stderr, kept, {name: x.tobytes() for name, x in weights.items()}

    said, kept, weights = run("first")
    assert "compiled programs are kept in" in said
    assert len(kept) > 5
    said_again, kept_again, weights_again = run("second")
    assert "compiled programs" not in said_again
    assert kept_again == kept
    assert weights_again == weights
