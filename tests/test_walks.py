"""Walks count the modules that run and the packages that call each other, in every process."""

import json

import pytest

from benchmarks import walks

TOY = {
    "__init__.py": "def unused():\n    pass\n",
    "__main__.py": "from toy.top import start\n\nstart()\n",
    "top.py": """
        import threading
        from toy.left import steps
        from toy.right import listed

        def start():
            steps.walk(lambda: listed.ITEMS)
            thread = threading.Thread(target=listed.only_listed)
            thread.start()
            thread.join()
        """,
    "left/__init__.py": "",
    "left/steps.py": """
        import subprocess, sys
        from dataclasses import dataclass
        from toy.right import back

        @dataclass
        class Step:
            length: int

        def walk(then):
            back.turn(Step)
            then()
            subprocess.run([sys.executable, "-c", "from toy.right.child import end; end()"])
        """,
    "right/__init__.py": "",
    "right/back.py": """
        def turn(make):
            return [make(length).length for length in sorted([3], key=lambda n: n)]
        """,
    "right/listed.py": """
        from toy.left.imported import at_import

        ITEMS = [at_import(n) for n in range(3)]

        def only_listed():
            pass
        """,
    "right/child.py": """
        import os, signal

        def end():
            os.kill(os.getpid(), signal.SIGTERM)
        """,
    "left/imported.py": "def at_import(n):\n    return n\n",
}


@pytest.fixture
def toy(tmp_path):
    for name, text in TOY.items():
        path = tmp_path / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [line.removeprefix("        ") for line in text.splitlines()]
        path.write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_walk_counts_functions_that_ran_and_packages_that_called(toy):
    found = walks.walk([], package="toy", path=toy)
    inside = {name.removeprefix("toy.") for name in found.modules}
    assert inside == {"top", "left.steps", "right.back", "right.listed", "right.child"}
    down = {("toy", "toy.left"), ("toy.left", "toy.right")}
    up = {("toy.right", "toy.left"), ("toy.left", "toy")}
    assert found.crossings == down | up


def record(label, commit, **counts):
    made = {
        name: {
            "modules": n,
            "crossings": 1,
            "which_modules": [f"m{i}" for i in range(n)],
            "which_crossings": ["a → b"],
        }
        for name, n in counts.items()
    }
    return {"label": label, "commit": commit, "started": "2026-01-01", "walks": made}


def test_labels_are_kept_beside_each_other():
    before = record("before", "c1", compare=5, sweep=4)
    records = walks.merged([before], record("after", "c2", compare=3))
    assert records[0] is before
    rows = walks.table(records).splitlines()
    assert rows[2:4] == ["| compare | 5 | 1 | 3 | 1 |", "| sweep | 4 | 1 | – | – |"]
    assert rows[-1] == "| all together | 5 | 1 | 3 | 1 |"


def test_a_label_is_of_one_commit():
    old = [record("after", "c1", compare=5, sweep=4)]
    (same,) = walks.merged(old, record("after", "c1", sweep=2))
    assert [one["modules"] for one in same["walks"].values()] == [5, 2]
    (other,) = walks.merged(old, record("after", "c2", sweep=2))
    assert list(other["walks"]) == ["sweep"]


def test_the_page_shows_the_record():
    records = [json.loads(line) for line in walks.RECORD.read_text().splitlines()]
    assert (walks.ROOT / "docs" / "walks.md").read_text() == walks.page(records)
