"""Whether the sources and optimizers that records name by sha256 are those that they should be.

A record with `sources_sha256` says which files ran, whatever commit it names: where git has that
commit and the record does not say that its files differed, both must agree. A published optimizer
that a headline names by its hash must be the file that is shipped; other records may be of files
that were replaced since, and are counted.
"""

import functools
import hashlib
import json
import subprocess
from pathlib import Path

from evidence.records import RESULTS, ROOT, Record, read
from evidence.seeds import HEADLINES

WEIGHTS = ROOT / "laconic" / "zoo" / "weights"
PACKAGE = "laconic"
# A machine's repository was at the first commit while it ran the files of the second.
WRITTEN_BY = {
    "e6e3fda40757326d56d3e7c13ff9be3d0ce92263": "36b693f0f71d63a1ca3a1139e977c310b661c858"
}
# What an architecture is by default; only what differs is part of a digest.
USUAL = {
    **{"architecture": "lopt-a", "workers": None, "hidden": 32, "time": "shifted"},
    **{"output_scale": 1.0, "widest": 0, "deepest": 0},
}


def digest_of(named: dict[str, bytes]) -> str:
    """The sha256 of files by their paths in the package."""
    digest = hashlib.sha256()
    for name in sorted(named):
        digest.update(f"{name} {len(named[name])}\n".encode() + named[name])
    return digest.hexdigest()


@functools.cache
def at_commit(commit: str) -> str | None:
    """The digest of the package's Python files at a commit; None if git does not have it."""
    listed = _git("ls-tree", "-r", "-z", "--name-only", commit, f"{PACKAGE}/")
    if listed is None:
        return None
    names = [name for name in listed.decode().split("\0") if name.endswith(".py")]
    asked = "".join(f"{commit}:{name}\n" for name in names)
    found = _git("cat-file", "--batch", given=asked.encode())
    if found is None:
        return None
    contents = {}
    for name in names:
        head, _, found = found.partition(b"\n")
        size = int(head.split()[2])
        contents[name.removeprefix(f"{PACKAGE}/")] = found[:size]
        found = found[size + 1 :]
    return digest_of(contents)


def _git(*words: str, given: bytes = b"") -> bytes | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, input=given, capture_output=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def optimizer_digest(path: Path) -> str:
    """The sha256 that records name an optimizer of a file by: what differs from the defaults, and
    φ."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    told = json.loads(header.pop("__metadata__")["meta"])["learned"]
    if told["architecture"] != "lopt-r":
        told = {name: value for name, value in told.items() if value != USUAL[name]}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    parts = {
        stored[2:-2]: data[
            8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]
        ]
        for stored, entry in header.items()
    }
    for name in sorted(parts):
        digest.update(name.encode() + parts[name])
    return digest.hexdigest()


def check() -> tuple[list[str], dict[str, int]]:
    """What does not agree, and how many records of each kind were looked at."""
    wrong: list[str] = []
    counts = {"sources": 0, "sources_unknown": 0, "optimizers": 0, "optimizers_replaced": 0}
    shipped = {path.stem: optimizer_digest(path) for path in sorted(WEIGHTS.glob("*.safetensors"))}
    for path in sorted({path.parent for path in RESULTS.rglob("records.jsonl*")}):
        folder = path.relative_to(RESULTS).as_posix()
        for record in read(folder):
            _sources(folder, record, wrong, counts)
            known = record.get("optimizer_sha256")
            name = str(record.get("spec", record.get("label", ""))).partition(":")[0]
            if known is not None and name in shipped:
                same = known == shipped[name]
                counts["optimizers" if same else "optimizers_replaced"] += 1
                if not same and folder.startswith(HEADLINES):
                    wrong.append(f"{folder}: {name} is another one than is shipped by that name")
    return wrong, counts


def _sources(folder: str, record: Record, wrong: list[str], counts: dict[str, int]) -> None:
    made = record.get("provenance") or {}
    said = made.get("sources_sha256")
    named = made.get("commit")
    if said is None or (made.get("dirty") and named not in WRITTEN_BY):
        return
    commit = WRITTEN_BY.get(named, named) if named else None
    known = at_commit(commit) if commit else None
    counts["sources" if known else "sources_unknown"] += 1
    if commit and known is not None and known != said:
        wrong.append(f"{folder}: its sources are not those of {commit[:9]}, as is said of it")
