"""Help and errors in flags come before JAX is imported."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = (
    ["--help"],
    ["nothing"],
    ["cache"],
    *([name, "--help"] for name in ("cache", "compare", "train", "meta-train", "plan")),
    *([name, "--nothing"] for name in ("compare", "sweep", "train", "plan")),
    *([name, "--workers", "four"] for name in ("compare", "sweep", "train", "plan")),
    *([name, "no-recipe"] for name in ("compare", "train", "meta-train")),
    ["sweep", "local-sgd", "--workers", "nan"],
    ["compare", "--resume"],
    ["sweep", "--resume", "x", "--nothing"],
    ["meta-train"],
    ["meta-train", "lopt-a-digits", "--pairs", "x"],
    ["meta-train", "--resume", "x", "--minutes", "y"],
)
PROGRAM = """
import sys
from laconic.cli import main
try:
    main(sys.argv[1:])
finally:
    print("jax" in sys.modules, file=sys.__stdout__)
"""


def test_no_jax_is_imported_for_help_and_wrong_flags(tmp_path):
    told = os.environ | {"PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=tmp_path,
            env=told,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in WORDS
    ]
    for words, process in zip(WORDS, running, strict=True):
        out, err = process.communicate(timeout=120)
        assert out.endswith("False\n"), (words, out[-200:], err[-500:])
        fails = not {"--help", "cache"} & set(words)
        assert (process.returncode != 0) == fails, (words, err)
    assert list(tmp_path.iterdir()) == []
