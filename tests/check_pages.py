"""Run the code of README and the how-to pages in fresh environments, each with only the extras that
its page names: `make docs-check`. Needs an index to install from; real data where a line needs it.

python tests/check_pages.py [--pages README.md docs/pytorch.md …] [--record FILE.jsonl]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from datetime import UTC, datetime
from glob import glob
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import pages

WHAT = {"benchmark": "docs-check", "command": "make docs-check"}
TORCH = "torch==2.13.0"  # a version that is to be had as a CPU build
PYTHON = "import sys; sys.path.append(sys.argv[1]); import pages, pathlib; "
PYTHON += "done = [block for block, _ in pages.run_python(pathlib.Path(sys.argv[2]))]; "
PYTHON += "print(len(done), 'blocks')"
LIMIT = 900  # seconds for one line
DROPPED = ("PYTHON", "JAX_", "XLA_")  # variables that a fresh environment does not have


def environment_of(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"), "COLUMNS": "80"}
    path = f"{folder / 'bin'}{os.pathsep}{kept['PATH']}"
    return {**kept, **cache, "PYTHONNOUSERSITE": "1", "JAX_PLATFORMS": "cpu", "PATH": path}


def install(folder: Path, extras: tuple[str, ...]) -> None:
    """A new environment with laconic and these extras, nothing else."""
    venv.create(folder, with_pip=True)
    what = [f"{pages.ROOT}[{','.join(extras)}]" if extras else str(pages.ROOT)]
    what += [TORCH] if {"torch", "torchft", "hf"} & set(extras) else []
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *what], check=True, env=environment_of(folder))


def filled(words: list[str], folder: Path) -> list[str]:
    """The words with `…` completed to the newest path of that form."""

    def one(word: str) -> str:
        if "…" not in word:
            return word
        path, colon, options = word.partition(":")
        found = sorted(
            glob(path.replace("…", "*"), root_dir=folder),
            key=lambda name: (folder / name).stat().st_mtime,
        )
        return found[-1] + colon + options if found else word

    return [one(word) for word in words]


def run(words: list[str], folder: Path, env: dict[str, str]) -> dict:
    """Run a command to its end → what is recorded of it."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            words, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT
        )
        status, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        status, said = 124, f"took more than {LIMIT} s"
    found = {"status": status, "seconds": round(time.monotonic() - began, 1)}
    return found if not status else {**found, "said": said[-2000:]}


def check_page(path: Path, env: dict[str, str], home: Path):
    """Run a page's Python blocks and command lines in an empty folder → a record of each."""
    for name in ("examples", "results"):
        shutil.copytree(pages.ROOT / name, home / name, symlinks=True)
    if pages.python_blocks(path):
        words = ["python", "-c", PYTHON, str(Path(__file__).parent), str(path)]
        yield {"what": "Python blocks", **run(words, home, env)}
    for line in pages.command_lines(path):
        if why := pages.entry(pages.LEFT_OUT, line.text) or pages.entry(
            pages.ONLY_PARSED, line.text
        ):
            yield {"what": line.text, "left out": why}
            continue
        folder = home / line.folder
        words = filled(pages.small(line), folder)
        if "--out" in words:
            shutil.rmtree(folder / words[words.index("--out") + 1], ignore_errors=True)
        yield {"what": line.text, "ran": " ".join(words), **run(words, folder, env)}


def keep(file: Path, records: list[dict]) -> None:
    """Write the records; those of pages that were not run again stay."""
    again = {record["page"] for record in records}
    old = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    rows = [record for record in old if record["page"] not in again] + records
    rows.sort(key=lambda record: record["page"])
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", nargs="*", default=[pages.name_of(p) for p in pages.HOW_TOS])
    parser.add_argument("--record", type=Path, help="a file for what was run; it is amended")
    given = parser.parse_args()
    groups: dict[tuple[str, ...], list[Path]] = {}
    for name in given.pages:
        path = pages.ROOT / name
        groups.setdefault(pages.extras_of(path), []).append(path)
    at = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=pages.ROOT, capture_output=True, text=True
    )
    about = {"python": sys.version.split()[0], "commit": at.stdout.strip()}
    records = []
    for extras, paths in groups.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "env"
            install(folder, extras)
            for path in paths:
                home = Path(scratch) / path.stem
                for found in check_page(path, environment_of(folder), home):
                    page = {**WHAT, "page": pages.name_of(path), "extras": list(extras)}
                    when = datetime.now(UTC).isoformat(timespec="seconds")
                    records.append({**page, **found, **about, "at": when})
                    print(json.dumps(records[-1], ensure_ascii=False), flush=True)
            if given.record:
                keep(given.record, records)
    failed = [record for record in records if record.get("status")]
    print(f"{len(records)} records, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
