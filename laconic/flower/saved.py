"""What a strategy leaves on disk after every round: model, accumulators, norms, metrics, in one
file, in one step."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laconic.errors import LaconicError
from laconic.flower.model import Arrays, Model
from laconic.flower.server import ServerState
from laconic.store import checkpoint

Metrics = dict[str, Any]  # numbers and lists of numbers
History = dict[
    str, dict[int, Metrics]
]  # "train", "evaluate" and "server": the metrics of each round
SHOWN = 3


class Saved(NamedTuple):
    """A strategy after `round` rounds."""

    round: int
    arrays: Arrays
    state: ServerState
    history: History


def new_history() -> History:
    """Nothing yet."""
    return {"train": {}, "evaluate": {}, "server": {}}


def save(path: Path, label: str, model: Model, saved: Saved) -> None:
    """Replace the file; a crash leaves the old one."""
    meta = {
        "kind": "flower-strategy",
        "optimizer": label,
        "layout": model.layout,
        "averaged": sorted(model.averaged),
        "forms": _forms(model),
        "round": saved.round,
        "history": {
            kind: {str(r): _encode(metrics) for r, metrics in rounds.items()}
            for kind, rounds in saved.history.items()
        },
    }
    checkpoint.save(path, {"model": _bytes(saved.arrays), "state": saved.state}, meta)


def load(path: Path, label: str, model: Model, arrays: Arrays, state: ServerState) -> Saved:
    """What the file holds, if it is of this optimizer and of a model of this form; `arrays`,
    `state`: fresh ones."""
    meta = checkpoint.peek(path)
    if meta.get("kind") != "flower-strategy":
        raise LaconicError(
            f"{path} is a checkpoint of something else, not of a Flower strategy: give another "
            "path."
        )
    if meta["forms"] != _forms(model):
        have, want = meta["forms"], _forms(model)
        wrong = sorted(name for name in {*have, *want} if have.get(name) != want.get(name))
        said = [
            f"{n} is {have.get(n, 'missing')} there and {want.get(n, 'missing')} here"
            for n in wrong[:SHOWN]
        ]
        raise LaconicError(
            f"{path} holds weights of another architecture than the initial arrays "
            f"({'; '.join(said)}): "
            "train that model, or give another path."
        )
    here = {"optimizer": label, "layout": model.layout, "averaged": sorted(model.averaged)}
    for key, value in here.items():
        if meta[key] != value:
            raise LaconicError(
                f"{path} was written with {key} {meta[key]!r}, and this strategy has {value!r}: "
                "its accumulators would "
                "mean something else. Use the same as before, or give another path."
            )
    tree, _ = checkpoint.load(path, {"model": _bytes(arrays), "state": state})
    flat = {
        name: np.asarray(tree["model"][name]).view(form.dtype) for name, form in model.forms.items()
    }
    found = {name: flat[name].reshape(form.shape) for name, form in model.forms.items()}
    history = {
        kind: {int(r): _decode(metrics) for r, metrics in rounds.items()}
        for kind, rounds in meta["history"].items()
    }
    return Saved(meta["round"], found, tree["state"], history)


def _forms(model: Model) -> dict[str, Any]:
    return {name: [form.dtype.name, list(form.shape)] for name, form in model.forms.items()}


def _bytes(arrays: Arrays) -> Arrays:
    """As bytes, because JAX, which reads them back, would make float32 of float64."""
    return {name: np.ascontiguousarray(x).reshape(-1).view(np.uint8) for name, x in arrays.items()}


def _encode(value: Any) -> Any:
    """As JSON, floats to the last bit and NaN as well."""
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return float.fromhex(value) if isinstance(value, str) else value
