"""Records as they lie under results/: one JSON object a line, packed or not."""

import functools
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"

Record = dict[str, Any]


@functools.cache
def read(folder: str, name: str = "records.jsonl") -> list[Record]:
    """The records of a folder under results/."""
    path = RESULTS / folder / name
    packed = path.with_name(f"{name}.xz")
    text = lzma.decompress(packed.read_bytes()).decode() if packed.exists() else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def last(folder: str, kind: str) -> Record:
    """The last record of a kind."""
    return [record for record in read(folder) if record["kind"] == kind][-1]


def config(folder: str) -> Record:
    """The settings that a run began with."""
    return read(folder)[0]["config"]


@functools.cache
def methods(folder: str, name: str = "records.jsonl") -> dict[str, Record]:
    """The methods of a comparison by their labels."""
    return {r["label"]: r for r in read(folder, name) if r["kind"] == "method"}


def curves(folder: str, label: str, name: str = "records.jsonl") -> np.ndarray:
    """Train losses [seeds, rounds] of a method; what was not finite is NaN."""
    return np.array(methods(folder, name)[label]["train"], float)


def heldout(folder: str, label: str, metric: str) -> np.ndarray:
    """A held-out metric [seeds, looks] of a method."""
    return np.array(methods(folder)[label]["heldout"][metric], float)


def benchmark(name: str) -> Any:
    """A record of results/benchmarks."""
    return json.loads((RESULTS / "benchmarks" / f"{name}.json").read_text())


def card(name: str) -> Record:
    """The card in the header of a published optimizer's file."""
    data = (ROOT / "laconic" / "zoo" / "weights" / f"{name}.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["meta"])["card"]


def cards() -> dict[str, Record]:
    """Every published optimizer's card."""
    folder = ROOT / "laconic" / "zoo" / "weights"
    return {path.stem: card(path.stem) for path in sorted(folder.glob("*.safetensors"))}
