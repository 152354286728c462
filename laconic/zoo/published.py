"""A published optimizer: φ, the architecture it belongs to and a card, together in one file.

The file is a checkpoint (safetensors, hashed) whose meta is {format, version, learned, card}. A file from someone else
loads safely or is refused with a reason: every claim of its header is checked before anything is made from it.
"""

import contextlib
import os
import reprlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors

from laconic.client import LocalOptimizer
from laconic.errors import LaconicError
from laconic.outer.base import OuterOptimizer
from laconic.outer.learned import LearnedOptimizer, Theta
from laconic.store import checkpoint
from laconic.zoo.card import ARCHITECTURE, Card, from_json, to_json
from laconic.zoo.schema import NUMBER, TEXT, Schema, fault, nullable, whole

FORMAT = "laconic-optimizer"
VERSION = 1
SUFFIX = ".safetensors"
LARGEST_BYTES = 2**28  # twice what the widest allowed φ takes
LEARNED: dict[str, Schema] = {
    "architecture": ARCHITECTURE,
    "workers": nullable(whole(1, 4096)),
    "hidden": whole(1, 4096),
    "time": TEXT,
    "output_scale": NUMBER,
}


@dataclass(frozen=True, eq=False)
class Published:
    """A learned optimizer with its trained weights φ (`theta`) and its card."""

    learned: LearnedOptimizer
    theta: Theta
    card: Card

    @property
    def name(self) -> str:
        """The name on its card."""
        return self.card.name

    @property
    def recommended_local(self) -> LocalOptimizer:
        """The local optimizer it was meta-trained with."""
        return LocalOptimizer(**self.card.local)

    def outer(self, scale: float = 1.0, weight_decay: float = 0.0) -> OuterOptimizer:
        """The outer optimizer for a round; `scale` and `weight_decay` as `LearnedOptimizer` takes them."""
        return self.learned(self.theta, scale=scale, weight_decay=weight_decay, horizon=self.card.horizon[1])

    def optax(self, scale: float = 1.0, weight_decay: float = 0.0) -> optax.GradientTransformationExtraArgs:
        """The same as an optax optimizer: `update(mean_delta, state, params)`.

        lagg-a and lagg need the keyword `worker_deltas` as well, with leaves [K, …].
        """
        return self.outer(scale, weight_decay).tx

    def check_workers(self, K: int) -> None:
        """Refuse a number of workers that it cannot serve."""
        if K < 1:
            raise LaconicError(f"a round has at least one worker, got K = {K}.")
        if self.learned.workers not in (None, K):
            raise LaconicError(
                f"{self.name} sees the deltas of K = {self.learned.workers} workers and cannot serve {K}: "
                f"run {self.learned.workers} workers, or load an optimizer that sees only the mean (lopt-a)."
            )


def publish(path: str | os.PathLike[str], learned: LearnedOptimizer, theta: Theta, card: Card) -> None:
    """Write weights and card to one .safetensors file, in one step; what `load` would refuse is refused here."""
    path = Path(path)
    if path.suffix != SUFFIX:
        raise LaconicError(f"{path} must end in {SUFFIX}, or load would take it for a name.")
    card = from_json(to_json(card), str(path))
    fields = asdict(learned)
    _learned_from(fields, card, path)
    learned.check(theta)
    wrong = sorted(name for name, x in theta.items() if np.asarray(x).dtype != np.float32)
    if wrong:
        raise LaconicError(f"published weights are float32, but {', '.join(wrong)} is not: cast it first.")
    _require_finite("φ", theta)
    meta = {"format": FORMAT, "version": VERSION, "learned": fields, "card": to_json(card)}
    checkpoint.save(path, theta, meta)


def read(path: Path) -> Published:
    """The optimizer in a file, once every part of it is known to be sound."""
    learned, card = read_meta(path)
    _require_weights(path, learned)
    like = {name: jax.ShapeDtypeStruct(x.shape, jnp.float32) for name, x in _shapes(learned).items()}
    with _refusing_nonsense(path):
        theta, _ = checkpoint.load(path, like)
    _require_finite(str(path), theta)
    return Published(learned, theta, card)


def read_meta(path: Path) -> tuple[LearnedOptimizer, Card]:
    """The architecture and card of a file, once they are known to be sound and to agree."""
    if not os.path.isfile(path):
        raise LaconicError(f"{path} is not a file: give a {SUFFIX} file, or the name of a published optimizer.")
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise LaconicError(f"{path} has {size} bytes, more than any learned optimizer: it must be something else.")
    with _refusing_nonsense(path):
        meta = checkpoint.peek(path)
    kind = meta.get("format") if isinstance(meta, dict) else None
    if kind != FORMAT:
        raise LaconicError(f"{path} is a checkpoint, but not a published optimizer: its meta is not {FORMAT}.")
    version = meta.get("version")
    if type(version) is not int or version != VERSION:
        raise LaconicError(
            f"{path} is a {FORMAT} of version {version!r:.20}, and this laconic reads version {VERSION}: "
            "install the laconic that wrote it or a later one."
        )
    if meta.get("card") is None:
        raise LaconicError(f"{path} holds weights without a card, so nobody can tell what they are: use another copy.")
    card = from_json(meta["card"], str(path))
    return _learned_from(meta.get("learned"), card, path), card


def _learned_from(fields: Any, card: Card, path: Path) -> LearnedOptimizer:
    wrong = fault(fields, LEARNED, "learned")
    if wrong:
        raise LaconicError(f"{path}: {wrong}.")
    try:
        learned = LearnedOptimizer(**fields)
    except LaconicError as error:
        raise LaconicError(f"{path}: {error}") from None
    for field in ("architecture", "workers"):
        ours, theirs = getattr(learned, field), getattr(card, field)
        if ours != theirs:
            raise LaconicError(f"{path}: card.{field} is {theirs}, but the optimizer's is {ours}.")
    return learned


def _shapes(learned: LearnedOptimizer) -> dict[str, Any]:
    return jax.eval_shape(learned.init, jax.eval_shape(lambda: jax.random.key(0)))


def _require_weights(path: Path, learned: LearnedOptimizer) -> None:
    """Refuse other tensors than the architecture's, by the header alone."""
    names = {jax.tree_util.keystr((jax.tree_util.DictKey(name),)): name for name in _shapes(learned)}
    with safetensors.safe_open(path, "numpy") as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        shapes: dict[str, Any] = {
            name: jax.ShapeDtypeStruct(part.get_shape(), jnp.float32) for name, part in found.items()
        }
        wrong = [f"{reprlib.repr(n)} is {part.get_dtype()}" for n, part in found.items() if part.get_dtype() != "F32"]
        wrong += [f"{reprlib.repr(name)} belongs to no {learned.architecture}" for name in found if name not in names]
    if not found:
        raise LaconicError(f"{path} holds a card but no weights: use another copy.")
    if wrong:
        raise LaconicError(f"{path}: weights must be w0, b0, … in float32 (F32), but {', '.join(wrong[:3])}.")
    try:
        learned.check({names[name]: shape for name, shape in shapes.items()})
    except LaconicError as error:
        raise LaconicError(f"{path}: {error}") from None


def _require_finite(what: str, theta: Theta) -> None:
    wrong = sorted(name for name, x in theta.items() if not np.all(np.isfinite(np.asarray(x))))
    if wrong:
        raise LaconicError(f"{what}: the weights {', '.join(wrong)} are not all finite, so any step would be NaN.")


@contextlib.contextmanager
def _refusing_nonsense(path: Path) -> Iterator[None]:
    """A header may be whole and hash right, and still hold what laconic never writes."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LaconicError(f"{path} has a header that laconic never writes: use another copy.") from error
