import dataclasses
import json
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import equinox
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.store import records


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    sizes: tuple[int, ...]
    folder: Path


def test_records_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    records.append(
        path,
        "start",
        seed=3,
        config=Config(0.1, (128, 10), Path("a/b")),
        note="line\nbreak \u2028 ü",
    )
    records.append(path, "round", loss=1 / 3, accuracy=None, ok=True)
    assert records.read(path) == [
        {
            "kind": "start",
            "seed": 3,
            "config": {"rate": 0.1, "sizes": [128, 10], "folder": "a/b"},
            "note": "line\nbreak \u2028 ü",
        },
        {"kind": "round", "loss": 1 / 3, "accuracy": None, "ok": True},
    ]
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), "null"),
        ([1.0, float("-inf")], "[1.0, null]"),
        (np.float32(0.1), "0.1"),
        (np.float64(1 / 3), "0.333333"),
        (np.float64("nan"), "null"),
        (1 / 3, repr(1 / 3)),
        (np.int64(12345678), "12345678"),
        (np.bool_(True), "true"),
        (jnp.asarray(2.0 / 3.0, jnp.float32), "0.666667"),
        (
            jnp.asarray([[1234567.0, jnp.inf], [1e-9, 0.5]], jnp.float32),
            "[[1234570.0, null], [1e-09, 0.5]]",
        ),
        (jnp.asarray([0.1], jnp.bfloat16), "[0.100098]"),
        (np.array([], np.float32), "[]"),
        ({"a": {2: np.arange(2)}}, '{"a": {"2": [0, 1]}}'),
    ],
)
def test_how_values_are_written(tmp_path, value, written):
    records.append(tmp_path / "x", "k", v=value)
    assert (tmp_path / "x").read_text() == f'{{"line": 1, "kind": "k", "v": {written}}}\n'


@pytest.mark.parametrize(
    "value", [object(), 1j, np.array([1j]), jax.random.key(0), {(1, 2): 3}, Config]
)
def test_values_json_cannot_hold_are_refused_before_anything_is_written(
    tmp_path, raises_clearly, value
):
    with raises_clearly("JSON cannot hold"):
        records.append(tmp_path / "x", "k", inner={"v": [0, value]})
    assert not (tmp_path / "x").exists()


def test_an_error_names_the_field(tmp_path, raises_clearly):
    with raises_clearly("record.inner.v[1]", "object"):
        records.append(tmp_path / "x", "k", inner={"v": [0, object()]})


def test_each_record_is_synced_before_append_returns(tmp_path, monkeypatch):
    on_disk = []
    monkeypatch.setattr(os, "fsync", lambda fd: on_disk.append((tmp_path / "x").read_bytes()))
    records.append(tmp_path / "x", "a")
    records.append(tmp_path / "x", "b")
    first = b'{"line": 1, "kind": "a"}\n'
    assert on_disk == [first, first + b'{"line": 2, "kind": "b"}\n']


def test_a_log_torn_at_any_byte_reads_and_goes_on(tmp_path):
    path = tmp_path / "x"
    for number in range(3):
        records.append(path, "k", n=number, text="ü")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        # a line without its newline is whole exactly when only the newline is missing
        kept = sum(cut >= len(b"".join(lines[: i + 1])) - 1 for i in range(3))
        assert [r["n"] for r in records.read(path)] == list(range(kept))
        records.append(path, "k", n=99)
        added = f'{{"line": {kept + 1}, "kind": "k", "n": 99}}\n'
        assert path.read_bytes() == b"".join(lines[:kept]) + added.encode()


def test_a_torn_line_of_zeros_or_bad_utf8_is_dropped(tmp_path):
    for tail in (b"\0\0\0", b"\xff\xfe", b"7", b"NaN", b'{"a": NaN}'):
        (tmp_path / "x").write_bytes(b'{"kind": "a"}\n' + tail)
        assert records.read(tmp_path / "x") == [{"kind": "a"}]


@pytest.mark.parametrize("bad", [b"", b"{", b"[1]", b"3", b'{"a": NaN}', b'{"a": 1} x', b"\xff"])
@pytest.mark.parametrize("after", [b"", b'{"kind": "b"}\n', b'{"ki'])
def test_any_other_bad_line_is_an_error_with_its_number(tmp_path, raises_clearly, bad, after):
    (tmp_path / "x").write_bytes(b'{"kind": "a"}\n' + bad + b"\n" + after)
    with raises_clearly("line 2", str(tmp_path / "x")):
        records.read(tmp_path / "x")


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_line_is_noticed(lost, tmp_path, raises_clearly):
    for number in range(3):
        records.append(tmp_path / "x", "k", i=number)
    lines = (tmp_path / "x").read_bytes().splitlines(keepends=True)
    (tmp_path / "x").write_bytes(b"".join(lines[: lost - 1] + lines[lost:]))
    with raises_clearly(f"line {lost}", "a record before it got lost"):
        records.read(tmp_path / "x")
    assert len(records.read(tmp_path / "x", gaps=True)) == 2


def test_records_without_numbers_are_read_and_gone_on_with(tmp_path):
    (tmp_path / "x").write_bytes(b'{"kind": "a"}\n{"kind": "b"}\n')
    records.append(tmp_path / "x", "c")
    assert [record["kind"] for record in records.read(tmp_path / "x")] == ["a", "b", "c"]
    assert (tmp_path / "x").read_bytes().endswith(b'{"line": 3, "kind": "c"}\n')


def test_json_nested_without_end_is_a_bad_line(tmp_path, raises_clearly):
    deep = b'{"a": ' * 100_000 + b"1" + b"}" * 100_000
    (tmp_path / "x").write_bytes(b'{"kind": "a"}\n' + deep + b"\n")
    with raises_clearly("line 2", "not a JSON object"):
        records.read(tmp_path / "x")


def test_missing_and_unwritable_logs(tmp_path, raises_clearly):
    with raises_clearly("cannot read", str(tmp_path / "none")):
        records.read(tmp_path / "none")
    with raises_clearly("cannot append", str(tmp_path)):
        records.append(tmp_path, "k")


def test_an_empty_log_has_no_records(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    assert records.read(tmp_path / "x") == []


def test_a_log_rewritten_with_its_own_records_is_the_same_and_goes_on(tmp_path):
    for i in range(3):
        records.append(tmp_path / "x", "round", i=i, loss=1 / (i + 3), note="ü")
    before = (tmp_path / "x").read_bytes()
    records.rewrite(tmp_path / "x", records.read(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes() == before
    records.rewrite(tmp_path / "x", records.read(tmp_path / "x")[:1])
    records.append(tmp_path / "x", "end")
    assert records.read(tmp_path / "x") == [
        {"kind": "round", "i": 0, "loss": 1 / 3, "note": "ü"},
        {"kind": "end"},
    ]
    assert os.listdir(tmp_path) == ["x"]


def test_write_json_is_strict_and_replaces(tmp_path):
    records.write_json(tmp_path / "x.json", {"old": 1})
    records.write_json(
        tmp_path / "x.json",
        {"loss": np.float32(0.25), "bad": float("inf"), "c": Config(1.0, (), Path())},
    )
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {
        "loss": 0.25,
        "bad": None,
        "c": {"rate": 1.0, "sizes": [], "folder": "."},
    }
    assert text.endswith("}\n")
    assert os.listdir(tmp_path) == ["x.json"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(value=JSON)
def test_json_values_are_kept_exactly(value):
    assert json.loads(json.dumps(records.plain(value), allow_nan=False)) == value


@settings(max_examples=100, deadline=None)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_array_values_keep_six_significant_digits(value):
    kept = records.plain(np.float32(value))
    # half a unit of the sixth digit, and the last float64 digit of the division itself
    assert abs(kept - value) <= 5e-6 * abs(value) * (1 + 1e-12)


def test_provenance_says_what_ran():
    found = records.provenance()
    devices = jax.devices()
    modules = {"jax": jax, "jaxlib": jaxlib, "optax": optax, "equinox": equinox, "numpy": np}
    assert {name: found["versions"][name] for name in modules} == {
        n: m.__version__ for n, m in modules.items()
    }
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["laconic"].count(".") == 2
    assert found["device"] == {
        "kind": devices[0].device_kind,
        "count": len(devices),
        "platform": devices[0].platform,
    }
    assert found["host_cpus"] == os.cpu_count()
    started = datetime.fromisoformat(found["started"])
    assert started.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - started) < timedelta(minutes=5)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def git(folder, *arguments):
    command = [
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b.c",
        "-c",
        "commit.gpgsign=false",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def package(tmp_path):
    """A package folder in a git work tree of one commit."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "repo" / "pack"
    folder.mkdir(parents=True)
    git(tmp_path / "repo", "init", "-q")
    (folder / "code.py").write_text("1\n")
    (tmp_path / "repo" / ".gitignore").write_text("env/\n")
    git(tmp_path / "repo", "add", ".")
    git(tmp_path / "repo", "commit", "-q", "-m", "first")
    return folder


def test_the_commit_of_a_work_tree(package, monkeypatch):
    monkeypatch.setenv("LACONIC_COMMIT", "not this one")
    head = git(package, "rev-parse", "HEAD")
    assert records.source_state(package) == (head, False)
    (package.parent / "results.json").write_text("{}")
    assert records.source_state(package) == (
        head,
        False,
    )  # what a run writes beside the package does not make it dirty
    (package / "code.py").write_text("2\n")
    assert records.source_state(package) == (head, True)


def test_a_new_file_makes_it_dirty(package):
    (package / "new.py").write_text("")
    assert records.source_state(package) == (git(package, "rev-parse", "HEAD"), True)


def test_without_a_work_tree_of_its_own_the_environment_decides(package, tmp_path, monkeypatch):
    installed = package.parent / "env" / "pack"  # an environment inside somebody's repository
    installed.mkdir(parents=True)
    (installed / "code.py").write_text("")
    for folder in (installed, tmp_path):
        monkeypatch.setenv("LACONIC_COMMIT", "abc123")
        assert records.source_state(folder) == ("abc123", None)
        monkeypatch.delenv("LACONIC_COMMIT")
        assert records.source_state(folder) == (None, None)


def test_a_git_hook_of_another_repository_does_not_mislead(package, monkeypatch):
    head = git(package, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert records.source_state(package) == (head, False)


def test_without_git_the_environment_decides(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LACONIC_COMMIT", "abc123")
    assert records.source_state(package) == ("abc123", None)
