"""A small comparison under trackers, as a program: trains, then reads every tracker's files back
with that tracker's own reader, and writes what each holds as JSON.

python tracked.py FOLDER TRACKER …
"""

import json
import struct
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import laconic
from laconic.runs.folder import spelled

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
DATA = {"x": X, "y": (X @ np.linspace(-1, 1, 3)).astype(np.float32)}
OPTIMIZERS = ("local-sgd:gamma=0.02", "slowmo:gamma=0.02,beta=0.6,label=slow momentum")
CONFIG = laconic.CompareConfig(
    "fit", OPTIMIZERS, workers=2, local_steps=2, batch=4, rounds=5, seeds=2, evaluate_every=2
)
Curves = dict[str, dict[str, list[tuple[int, float]]]]  # by label, then by metric


def fit() -> laconic.Task:
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)

    return laconic.plain_task("fit", lambda key: {"w": jnp.zeros(3)}, loss, DATA, test=DATA)


def add(curves: Curves, label: str, metric: str, step: int, value: float) -> None:
    curves.setdefault(label, {}).setdefault(metric, []).append((step, value))


def read_csv(folder: Path, labels: list[str]) -> Curves:
    import csv

    curves: Curves = {}
    with open(folder / "track.csv", newline="") as file:
        for row in csv.DictReader(file):
            add(curves, row["curve"], row["metric"], int(row["step"]), float(row["value"]))
    return curves


def read_tensorboard(folder: Path, labels: list[str]) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves: Curves = {}
    for label in labels:
        events = EventAccumulator(str(folder / "tensorboard" / spelled(label)))
        events.Reload()
        for metric in events.Tags()["scalars"]:
            for event in events.Scalars(metric):
                add(curves, label, metric, event.step, event.value)
    return curves


def read_trackio(folder: Path, labels: list[str]) -> Curves:
    from trackio.sqlite_storage import SQLiteStorage

    curves: Curves = {}
    for label in labels:
        for row in SQLiteStorage.get_logs("laconic", f"{folder.name} {label}"):
            for metric in row.keys() - {"step", "timestamp"}:
                add(curves, label, metric, row["step"], row[metric])
    return curves


def read_wandb(folder: Path, labels: list[str]) -> Curves:
    """W&B's files are LevelDB logs of its own protobuf messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    curves: Curves = {}
    for path in (folder / "wandb").glob("offline-run-*/*.wandb"):
        records = [Record.FromString(data) for data in leveldb_log(path.read_bytes())]
        (name,) = {r.run.display_name for r in records if r.WhichOneof("record_type") == "run"}
        label = name.removeprefix(f"{folder.name} ")
        for record in records:
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                for metric in (name for name in row if not name.startswith("_")):
                    add(curves, label, metric, row["_step"], row[metric])
    return curves


def leveldb_log(data: bytes) -> list[bytes]:
    """The records of a log: blocks of 32 KiB with pieces {crc, size, kind}, after 7 bytes of W&B's
    own."""
    found, at, open_record = [], 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        open_record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last piece
            found.append(open_record)
            open_record = b""
    return found


READERS = {
    "csv": read_csv,
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
}

if __name__ == "__main__":
    home, names = Path(sys.argv[1]), sys.argv[2:]
    config = laconic.CompareConfig(**{**vars(CONFIG), "out": home / "run"})
    folder, records = laconic.compare(config, fit(), observer=laconic.track(*names))
    labels = [record["label"] for record in records if record["kind"] == "method"]
    found = {name: READERS[name](folder, labels) for name in names}
    (home / "found.json").write_text(json.dumps(found))
