"""The code on README and the how-to pages: its Python blocks and command lines, which extras they
need, and how they run small. What does not run as written is listed here, with the reason."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
HOW_TOS = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "getting-started.md",
    ROOT / "docs" / "own-loop.md",
    ROOT / "docs" / "concepts.md",
    ROOT / "docs" / "meta-training.md",
    ROOT / "docs" / "federated.md",
    ROOT / "docs" / "flower.md",
    ROOT / "docs" / "distributed.md",
    ROOT / "docs" / "hub.md",
    ROOT / "docs" / "tracking.md",
    ROOT / "docs" / "pytorch.md",
    ROOT / "docs" / "server-step.md",
    ROOT / "docs" / "extending.md",
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(\w+=\S+ )*(laconic|make|pip|python|srun|torchrun|cd) ")
# Of an extra.
MODULES = {
    "torch": "torch",
    "torchft": "torchft",
    "hf": "transformers",
    "flower": "flwr",
    "flax": "flax",
    "hub": "huggingface_hub",
    "track": "wandb",
}

# --- what is not run as it stands -----------------------------------------------------------------

# Python blocks, by a part of them.
NOT_RUN = {
    "with DiLoCo(": "needs a Lighthouse and a second process: examples/torch_diloco.py runs it",
}
SMALLER = {"ROUNDS = 100": "ROUNDS = 25"}  # in Python blocks
# Command lines that are only parsed, by a part of them.
ONLY_PARSED = {
    "imagenet32-resnet50": "a model and data for a GPU",
    "imagenet64-vit-b": "a model and data for a GPU",
    "file=text/lm1b_train.txt": "a corpus that must be fetched by hand",
    "reproduce table-rounds": "minutes at its smallest scale; `make smoke` runs two others",
    "meta-train fed": "the same command as meta-train lopt-a-fmnist, and minutes to compile",
    "--here 1": "waits for other machines",
    "worker --join 10.0.0.1": "joins from another machine",
    "worker --devices all --join 10.0.0.1": "joins from another machine",
    "srun": "needs SLURM",
    "torchrun": "needs four processes; tests/cli/test_processes_command.py starts them",
    "--devices 4": "needs four devices",
}
# Command lines that are neither parsed nor run.
LEFT_OUT = {
    "make ": "the Makefile's targets are run by the workflows",
    "pip install": "the check in fresh environments installs each page's extras",
    "HOST:PORT": "a placeholder",
    "USER/REPO": "a placeholder",
    "sgd ./my-optimizer": "what pull USER/REPO fetched",
}
FEW = "--rounds 2 --workers 2 --batch 4"
META = (
    "--steps 1 --pairs 2 --truncation 2 --shortest 4 --longest 4 --ramp 0 --warmup 1 "
    "--judge-every 1 --judge-seeds 1"
)
SMALL = {  # flags added to a command
    "compare": f"{FEW} --seeds 1 --evaluate-every 2",
    "sweep": "--rounds 2 --batch 4",
    "train": "--rounds 2 --batch 4",
    "launch": "--rounds 2 --batch 4",
    "meta-train": META,
}
ALL_WORKERS = "--rounds 2 --batch 4 --seeds 1 --evaluate-every 2"
POINT = "--rounds 2 --batch 4 --grid gamma=0.1"  # one point instead of a grid of hundreds
BY_LINE = {  # other flags for a line with this part
    "lagg-a-fmnist": ALL_WORKERS,  # made for K = 8
    "compare federated": ALL_WORKERS,
    "federated.clients": ALL_WORKERS,
    "sweep slowmo": f"{POINT} alpha=1 beta=0.5",
    "sweep sign-momentum": f"{POINT} rate=0.003 beta=0.9",
    "sweep federated-fedadam": f"{POINT} eta=0.01",
    "sweep scaffold": POINT,
    "sweep fedlopt": f"{POINT} scale=1 weight_decay=0",
}


class Block(NamedTuple):
    """A fenced block, its snippets put in, and the extras that its section and page name."""

    language: str
    text: str
    extras: tuple[str, ...]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def section_of_file(include: re.Match[str]) -> str:
    """What `--8<-- "file:section"` stands for on the site."""
    file, _, section = include[1].partition(":")
    text = (ROOT / file).read_text()
    if section:
        text = text.split(f"# --8<-- [start:{section}]\n")[1]
        text = text.split(f"# --8<-- [end:{section}]\n")[0]
    return text


def expanded(path: Path) -> str:
    return re.sub(r'^--8<-- "([^"]+)"\n', section_of_file, path.read_text(), flags=re.MULTILINE)


def extras_in(text: str) -> tuple[str, ...]:
    """The extras that a text says to install."""
    named = re.findall(r"(?:laconic|`|: | )\[([a-z]+)\]", text)
    return tuple(sorted(set(named) & set(MODULES)))


def blocks(path: Path) -> list[Block]:
    """What a page says before its first section goes for all of it."""
    top, *sections = re.split(r"^(?=## )", expanded(path), flags=re.MULTILINE)
    everywhere = extras_in(top)
    return [
        Block(language, text, tuple(sorted({*everywhere, *extras_in(part)})))
        for part in (top, *sections)
        for language, text in FENCE.findall(part)
    ]


def python_blocks(path: Path) -> list[Block]:
    return [block for block in blocks(path) if block.language == "python"]


def missing(extras: tuple[str, ...]) -> list[str]:
    return [extra for extra in extras if importlib.util.find_spec(MODULES[extra]) is None]


def extras_of(path: Path) -> tuple[str, ...]:
    """All extras that a page names."""
    return tuple(sorted({extra for block in blocks(path) for extra in block.extras}))


def run_python(path: Path) -> Iterator[tuple[Block, ModuleType]]:
    """Run a page's Python blocks in one namespace, in order → each block once it has run. Blocks
    of missing extras and those in `NOT_RUN` are left out."""
    module = ModuleType("page")  # NamedTuples and dataclasses look their module up by name
    sys.modules[module.__name__] = module
    for number, block in enumerate(python_blocks(path), 1):
        if entry(NOT_RUN, block.text) or missing(block.extras):
            continue
        text = block.text
        for old, new in SMALLER.items():
            text = text.replace(old, new)
        exec(compile(text, f"{name_of(path)}, block {number}", "exec"), module.__dict__)
        yield block, module


def entry(table: dict[str, str], text: str) -> str | None:
    """What a table says of a text that contains one of its keys."""
    return next((value for part, value in table.items() if part in text), None)


class Line(NamedTuple):
    """A command line of a page, without prompt and comment, and the folder it is typed in."""

    words: list[str]
    folder: str
    extras: tuple[str, ...]

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def command_lines(path: Path) -> list[Line]:
    """Every command in the page's shell blocks; a `cd` holds to the end of its block. Other lines
    are what a command prints."""
    found = []
    for language, text, extras in blocks(path):
        if language not in ("", "console", "bash", "sh"):
            continue
        folder = "."
        for raw in text.replace("\\\n", " ").splitlines():
            raw = raw.removeprefix("$ ")
            if not COMMAND.match(raw):
                continue
            words = shlex.split(raw, comments=True)
            if words[0] == "cd":
                folder = words[1]
            else:
                found.append(Line(words, folder, extras))
    return found


def small(line: Line) -> list[str]:
    """The words with flags that make a run short; later flags win."""
    command = line.words[line.words.index("laconic") + 1] if "laconic" in line.words else ""
    if line.words[0] == "python" and len(line.words) > 2:
        command = line.words[2]
    if "--resume" in line.words or command not in SMALL:
        return line.words
    flags = entry(BY_LINE, line.text) or SMALL[command]
    return [*line.words, *flags.split()]
