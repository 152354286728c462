"""How much of the package a run walks through: modules that run, and calls between packages.

    python benchmarks/walks.py                       all commands, as a Markdown table
    python benchmarks/walks.py compare sweep         two of them
    python benchmarks/walks.py --out docs/walks.md --label before

Every process of a command is watched by a profile function, set by a `sitecustomize` in front of
its path. What is new is written at once, so that it is kept however the process ends.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "benchmarks" / "walks.jsonl"
LIMIT = 900  # seconds a command may take
LIBRARIES = ("jax", "jaxlib", "optax", "equinox", "numpy", "torch", "torchft-nightly")
HOOK = """\
import importlib.util
spec = importlib.util.spec_from_file_location("walks", {script!r})
walks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(walks)
walks.watch({folder!r}, {package!r})
"""

_SMALL = "--task digits-mlp --workers 2 --local-steps 2 --batch 16 --rounds 20"
_SHORT = "--steps 4 --pairs 2 --truncation 5 --shortest 10 --longest 20 --ramp 0 --warmup 1"
COMMANDS: dict[str, str] = {
    "compare": f"compare {_SMALL} --seeds 2 --optimizers local-sgd slowmo lopt-a-digits --out out",
    "sweep": f"sweep {_SMALL} --method slowmo --grid gamma=0.3,0.1 alpha=1 beta=0.5,0.9 --out out",
    "meta-train": f"meta-train lopt-a-digits {_SHORT} --judge-every 4 --judge-seeds 1 --out out",
    "launch": "launch --workers 2 -- train digits --rounds 20 --out out",
    "reproduce": "reproduce fig-ablation --scale smoke --out out",
}

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Walk:
    """Modules in which a function ran, and pairs (caller, callee) of packages that call."""

    modules: frozenset[str]
    crossings: frozenset[tuple[str, str]]


# --- inside the watched process -----------------------------------------------------------------


def watch(folder: str, package: str) -> None:
    """Write to `folder` which modules of `package` run from now on, and who calls whom."""
    file = os.open(f"{folder}/{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    seen: set[tuple[str, ...]] = set()

    def note(*finding: str) -> None:
        if finding not in seen:
            seen.add(finding)
            os.write(file, json.dumps(finding).encode() + b"\n")

    def place_of(frame: FrameType) -> tuple[str, str] | None:
        """The module and the package that a frame's code belongs to, generated code too."""
        name = frame.f_globals.get("__name__")
        if name == "__main__":
            spec = frame.f_globals.get("__spec__")
            name = None if spec is None else spec.name
        if not isinstance(name, str) or not f"{name}.".startswith(f"{package}."):
            return None
        return name, frame.f_globals.get("__package__") or name.rpartition(".")[0]

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_function(frame):
            return
        place = place_of(frame)
        if place is None:
            return
        caller = None
        below = frame.f_back
        while below is not None:
            there = place_of(below)
            if there is not None:
                if _is_import(below):
                    return
                if caller is None and _is_function(below):
                    caller = there[1]
            below = below.f_back
        note(place[0])
        if caller is not None and caller != place[1]:
            note(caller, place[1])

    threading.setprofile(profile)
    sys.setprofile(profile)


def _is_function(frame: FrameType) -> bool:
    """Bodies of modules and classes are not: their names are looked up in a dictionary."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def _is_import(frame: FrameType) -> bool:
    return frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__"


# --- walking ------------------------------------------------------------------------------------


def walk(words: Sequence[str], package: str = "laconic", path: Path = ROOT) -> Walk:
    """Run `python -m package words` in an empty folder, with all processes that it starts."""
    with tempfile.TemporaryDirectory(prefix="walk-") as temporary:
        hook, found, work = (Path(temporary) / name for name in ("hook", "found", "work"))
        for folder in (hook, found, work):
            folder.mkdir()
        text = HOOK.format(script=__file__, folder=str(found), package=package)
        (hook / "sitecustomize.py").write_text(text)
        paths = [str(hook), str(path), os.environ.get("PYTHONPATH", "")]
        given = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", package, *words]
        env = os.environ | given
        subprocess.run(command, cwd=work, env=env, stdout=2, check=True, timeout=LIMIT)
        lines = [line for file in found.iterdir() for line in file.read_text().splitlines()]
    findings = {tuple(json.loads(line)) for line in lines}
    modules = frozenset(finding[0] for finding in findings if len(finding) == 1)
    return Walk(modules, frozenset(finding for finding in findings if len(finding) == 2))


# --- the record and the page --------------------------------------------------------------------


def provenance() -> Record:
    """The last commit that changed the package, whether it has changed since, and versions."""
    versions = {"python": platform.python_version()}
    installed = {found.name: found.version for found in importlib.metadata.distributions()}
    versions |= {name: installed[name] for name in LIBRARIES if name in installed}
    return {
        "commit": _git("log", "-1", "--format=%H", "--", "laconic"),
        "dirty": _git("status", "--porcelain", "--", "laconic") != "",
        "versions": versions,
        "device": {"kind": "cpu", "count": 1, "platform": "cpu"},
        "host_cpus": os.cpu_count(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _git(*words: str) -> str:
    return subprocess.check_output(["git", "-C", str(ROOT), *words], text=True).strip()


def record_of(label: str, walks: dict[str, Walk]) -> Record:
    """What is kept of walks under a label."""
    kept = {}
    for name, found in walks.items():
        pairs = sorted(f"{caller} → {callee}" for caller, callee in found.crossings)
        kept[name] = {
            "command": f"laconic {COMMANDS[name]}",
            "modules": len(found.modules),
            "crossings": len(found.crossings),
            "which_modules": sorted(found.modules),
            "which_crossings": pairs,
        }
    return {"benchmark": "walks", "label": label, **provenance(), "walks": kept}


def merged(records: list[Record], new: Record) -> list[Record]:
    """The records with this label's replaced; walks of the same commit that are not anew stay."""
    labels = [record["label"] for record in records]
    if new["label"] not in labels:
        return [*records, new]
    at = labels.index(new["label"])
    if records[at]["commit"] == new["commit"]:
        both = records[at]["walks"] | new["walks"]
        new = new | {"walks": {name: both[name] for name in COMMANDS if name in both}}
    return [*records[:at], new, *records[at + 1 :]]


def table(records: list[Record]) -> str:
    """A row a command, and for each label how many modules run and how many crossings there are."""
    head = ["command"]
    for record in records:
        head += [f"modules, {record['label']}", f"crossings, {record['label']}"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name in COMMANDS:
        walks = [record["walks"].get(name, {}) for record in records]
        if any(walks):
            counts = [str(one.get(key, "–")) for one in walks for key in ("modules", "crossings")]
            lines.append([name, *counts])
    union = [str(n) for record in records for n in _union(record)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [*lines, ["all together", *union]])


def _union(record: Record) -> tuple[int, int]:
    walks = record["walks"].values()
    modules = {name for one in walks for name in one["which_modules"]}
    return len(modules), len({pair for one in walks for pair in one["which_crossings"]})


def page(records: list[Record]) -> str:
    """docs/walks.md."""
    of = [f"- {r['label']}: commit `{r['commit'][:12]}`, {r['started'][:10]}" for r in records]
    commands = [f"laconic {words}" for words in COMMANDS.values()]
    return PAGE.format(table=table(records), commits="\n".join(of), commands="\n".join(commands))


PAGE = """\
# Walks through the code

How much of the package does somebody read who follows one command from the command line to its
records? Two counts, taken from small real runs by `benchmarks/walks.py`:

- **modules** in which a function ran. A module that is only imported does not count, nor does
  anything that runs while one is imported.
- **crossings**: pairs of packages of which one calls the other. A package is a folder; modules
  right below `laconic/` are of the package `laconic`. The caller is the nearest function of ours
  on the stack, so a call through JAX counts too. A and B that call each other are two crossings.

{table}
Measured at:

{commits}

The record, `results/benchmarks/walks.jsonl`, names every module and crossing. The commands:

```
{commands}
```

`launch` counts all its processes: workers, Lighthouse and the one that watches them. To measure
again: `python benchmarks/walks.py --out docs/walks.md --label after`. Other labels are kept.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commands", nargs="*", help=f"of {', '.join(COMMANDS)}; all by default")
    parser.add_argument("--label", default="now", help="the name of the columns")
    parser.add_argument("--out", type=Path, help="write this page, and the record it is made from")
    options = parser.parse_args()
    unknown = sorted(set(options.commands) - set(COMMANDS))
    if unknown:
        parser.error(f"no such command: {', '.join(unknown)}")
    names = options.commands or list(COMMANDS)
    new = record_of(options.label, {name: walk(COMMANDS[name].split()) for name in names})
    if options.out is None:
        print(table([new]))
        return
    before = RECORD.read_text().splitlines() if RECORD.exists() else []
    records = merged([json.loads(line) for line in before], new)
    RECORD.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    options.out.write_text(page(records))
    print(table(records))


if __name__ == "__main__":
    main()
