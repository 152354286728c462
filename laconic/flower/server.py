"""The server's part of a round, apart from Flower: which outer optimizer it holds, which replies
count, the outer step on those that do, and its checkpoint."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.engines import guard
from laconic.errors import LaconicError, require_positive
from laconic.flower.model import Arrays, Model, weighted_mean
from laconic.flower.replies import Refused, Reply
from laconic.means import MEAN, RobustMean
from laconic.methods import definition_of, optimizer_sha256, parse_method
from laconic.outer import OuterOptimizer
from laconic.outer.base import told
from laconic.runs.folder import is_another
from laconic.runs.settings import read_config, require_same
from laconic.store import checkpoint
from laconic.store.records import plain
from laconic.workers import check_robust

FLOWERS_MINIMUM = 2  # of clients to sample, unless told otherwise
# a fraction of nodes that rounds down to nobody, so that the minimum decides how many are sampled
NEXT_TO_NONE = 1e-9

Metrics = dict[str, Any]  # numbers and lists of numbers
History = dict[str, dict[int, Metrics]]  # metrics by round for "train", "evaluate" and "server"


class Chosen(NamedTuple):
    """An outer optimizer, its name, and how many clients Flower is to sample for it."""

    label: str
    outer: OuterOptimizer
    fraction: float
    minimum: int


def choose(
    optimizer: str | os.PathLike[str] | OuterOptimizer,
    min_train_nodes: int | None,
    fraction_train: float | None,
) -> Chosen:
    """An outer optimizer as `laconic compare` spells it, from a file, or as it is."""
    if isinstance(optimizer, OuterOptimizer):
        label, outer = "own", optimizer
    else:
        label, outer = _named(optimizer, min_train_nodes)
    K = outer.workers
    if K is None:
        minimum = FLOWERS_MINIMUM if min_train_nodes is None else min_train_nodes
        return Chosen(label, outer, 1.0 if fraction_train is None else fraction_train, minimum)
    if fraction_train is not None:
        raise LaconicError(
            f"{label} samples exactly K = {K} clients a round: leave fraction_train out."
        )
    if min_train_nodes not in (None, K):
        raise LaconicError(
            f"{label} looks at each client's change and was made for K = {K} of them, and "
            f"min_train_nodes says {min_train_nodes}: leave that out, or take an optimizer of the "
            "mean such as lopt-r."
        )
    return Chosen(label, outer, NEXT_TO_NONE, K)


def _named(
    optimizer: str | os.PathLike[str], min_train_nodes: int | None
) -> tuple[str, OuterOptimizer]:
    if not isinstance(optimizer, str | os.PathLike):
        raise LaconicError(
            f"a {type(optimizer).__name__} is no outer optimizer: give a name, a .safetensors file "
            "or an OuterOptimizer, which laconic.from_optax makes of any optax optimizer."
        )
    spec = os.fspath(optimizer)
    name = spec.partition(":")[0]
    # A published one has its own K, which `choose` compares; another is made for the sample.
    found = definition_of(name, "flower").published
    made_for = None if found is None else found.learned.workers
    method = parse_method(spec, made_for or min_train_nodes or FLOWERS_MINIMUM)
    if method.compressor.name != "dense":
        raise LaconicError(
            f"optimizer {spec!r}: Flower's clients send whole arrays; leave compress out."
        )
    return spec, method.outer


class ServerState(NamedTuple):
    """The outer optimizer's accumulators, the guard's usual norm, and its usual norm of each
    averaged array, in the order of their names, if there are any."""

    outer: Any
    usual: jax.Array
    statistics: Any = ()


class Limits(NamedTuple):
    """How many times the usual norm of Δ and of each averaged array, and the median weight, a reply
    may have."""

    norm: float = guard.LIMIT
    weight: float = 100.0


class OuterServer:
    """An outer optimizer, the guard before it, and how replies become one, compiled."""

    def __init__(
        self, outer: OuterOptimizer, limits: Limits, aggregate: RobustMean | None = None
    ) -> None:
        require_positive(norm_limit=limits.norm, weight_limit=limits.weight)
        check_robust(aggregate, outer.combine)
        self.outer, self.limits, self.aggregate = outer, limits, aggregate
        self._init = jax.jit(outer.tx.init)
        self._judge = jax.jit(partial(guard.judge, limit=limits.norm))
        self._bounded = jax.jit(partial(guard.bounded, limit=limits.norm))
        self._update = jax.jit(self._step)
        self._robust = None if aggregate is None else jax.jit(aggregate.combine)

    def told(self, local_steps: int | None, rounds: int) -> "OuterServer":
        """The same for a run of so many local steps and rounds, where that matters."""
        return OuterServer(told(self.outer, None, local_steps, rounds), self.limits, self.aggregate)

    def init(self, model: Model, arrays: Arrays) -> ServerState:
        """The state before the first round."""
        past = guard.init_guard(0, len(model.averaged))
        return ServerState(self._init(model.params(arrays)), past.usual, past.statistics)

    def judge(
        self, state: ServerState, model: Model, before: Arrays, replies: Sequence[Reply]
    ) -> tuple[list[Reply], list[Refused], ServerState]:
        """The replies that may count, some with less weight, those that may not, and the next
        state."""
        if not replies:
            return [], [], state
        norms_K = np.array([_norm(reply.delta) for reply in replies])
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused
            norms_K = norms_K.astype(np.float32)
        heavy_K = self._heavy([reply.weight for reply in replies])
        codes_K = np.where(heavy_K, guard.CODE["weight"], guard.CODE["ok"]).astype(np.int32)
        K = len(replies)
        past = guard.GuardState(state.usual, jnp.zeros(K, jnp.int32), state.statistics)
        finite_K, same_K = np.ones(K, bool), np.ones(K, np.float32)
        sizes_KA = _sizes(replies, model)
        scale = np.float32(max(1.0, _norm(model.params(before))))
        verdicts_K, past = self._judge(
            past, norms_K, finite_K, same_K, codes_K, sizes_KA=sizes_KA, scale=scale
        )
        codes_K = np.asarray(verdicts_K)
        good_K = codes_K == guard.CODE["ok"]
        weights_K = np.array([reply.weight for reply in replies])
        most_K = np.asarray(self._bounded(norms_K, weights_K.astype(np.float32), good_K))
        good, bad = [], []
        for k, reply in enumerate(replies):
            if good_K[k]:
                heavy = most_K[k] < np.float32(reply.weight)
                good.append(reply._replace(weight=float(most_K[k])) if heavy else reply)
            else:
                bad.append(_refused(reply, guard.REASONS[codes_K[k]], norms_K[k]))
        return good, bad, ServerState(state.outer, past.usual, past.statistics)

    def step(
        self,
        state: ServerState,
        model: Model,
        before: Arrays,
        replies: Sequence[Reply],
        slots: Sequence[int],
    ) -> tuple[Arrays, ServerState]:
        """The model after a round; `slots` are the nodes that were asked."""
        counting = [reply for reply in replies if reply.weight > 0]
        if not counting:
            return before, state
        deltas = {reply.node: reply.delta for reply in counting}
        weights = {reply.node: reply.weight for reply in counting}
        mean, averaged = self._mean(counting)
        seen: dict[str, Any] = {}
        if self.outer.tell is not None:  # it asks how many count
            seen["weights"] = np.array(list(weights.values()), np.float32)
        if self.outer.combine == "gather":  # in the order of slots; absent ones have weight 0
            absent = {name: np.zeros_like(x) for name, x in mean.items()}
            rows = [deltas.get(node, absent) for node in slots]
            stacked = {name: np.stack([row[name] for row in rows]) for name in mean}
            weights_K = [weights.get(node, 0.0) for node in slots]
            seen = {"worker_deltas": stacked, "weights": np.array(weights_K, np.float32)}
        elif self.outer.combine == "norms":  # of those that count
            each = {name: [_square(d[name]) for d in deltas.values()] for name in mean}
            squares = {name: np.array(x, np.float32) for name, x in each.items()}
            weights_K = np.array(list(weights.values()), np.float32)
            if self.aggregate is not None:
                squares = self.aggregate.squares(squares, jnp.asarray(weights_K))
            seen = {"worker_squares": squares, "weights": weights_K}
        updates, outer = self._update(mean, state.outer, model.params(before), seen)
        after = model.moved(before, jax.tree.map(np.asarray, updates))
        after |= averaged
        return {name: after[name] for name in model.forms}, state._replace(outer=outer)

    def _mean(self, replies: Sequence[Reply]) -> tuple[Arrays, Arrays]:
        """The combined change, and the combined averaged arrays in their own dtypes."""
        deltas = [reply.delta for reply in replies]
        averaged = [reply.averaged for reply in replies]
        if self._robust is None:
            weights = [reply.weight for reply in replies]
            return weighted_mean(deltas, weights), weighted_mean(averaged, weights)
        floats = [{n: x for n, x in one.items() if x.dtype.kind == "f"} for one in averaged]
        stack = lambda trees: {n: np.stack([t[n] for t in trees]) for n in trees[0]}
        combined = self._robust(stack(deltas), stack(floats), np.ones(len(replies), np.float32))
        delta, found, _ = jax.tree.map(np.asarray, combined)
        # JAX would cut whole numbers to 32 bits.
        whole = {
            n: np.sort(np.stack([one[n] for one in averaged]), axis=0)[(len(replies) - 1) // 2]
            for n, x in averaged[0].items()
            if x.dtype.kind != "f"
        }
        return delta, {**{n: x.astype(averaged[0][n].dtype) for n, x in found.items()}, **whole}

    def _step(self, mean: Any, state: Any, params: Any, seen: dict[str, Any]) -> Any:
        return self.outer.tx.update(mean, state, params, **seen)

    def _heavy(self, weights: Sequence[float]) -> np.ndarray:
        """Which weights are far above the lower median, which a minority cannot raise."""
        present = sorted(weight for weight in weights if weight > 0)
        usual = present[(len(present) - 1) // 2] if present else 0.0
        return np.array([weight > self.limits.weight * usual for weight in weights])


def _refused(reply: Reply, reason: str, norm: float) -> Refused:
    details = {
        "weight": f"its weight of {reply.weight:g} is far above the others'",
        "norm": f"the norm of its change, {norm:g}, is far above the usual",
        "statistics": "an averaged array is far larger than the others', or a variance negative",
    }
    return Refused(reply.node, reason, details[reason])


def _sizes(replies: Sequence[Reply], model: Model) -> Any:
    """The norms of the replies' averaged arrays, [replies, arrays], infinite for a negative
    variance."""
    if not model.averaged:
        return ()

    def size(name: str, x: np.ndarray) -> float:
        return np.inf if guard.is_variance(name) and (x < 0).any() else np.sqrt(_square(x))

    rows = [[size(n, one.averaged[n]) for n in sorted(model.averaged)] for one in replies]
    with np.errstate(over="ignore"):
        return np.array(rows, np.float64).astype(np.float32)


def _norm(delta: Arrays) -> float:
    return float(np.sqrt(sum(map(_square, delta.values()))))


def _square(x: np.ndarray) -> float:
    return np.sum(np.square(x, dtype=np.float64))


# --- the checkpoint -------------------------------------------------------------------------------


class Saved(NamedTuple):
    """A strategy after `round` rounds."""

    round: int
    arrays: Arrays
    state: ServerState
    history: History


@dataclass(frozen=True)
class Settings:
    """What a strategy must have in common with the one that saved its state."""

    optimizer: str = "own"
    layout: str = "torch"
    averaged: tuple[str, ...] = ()
    aggregate: str = MEAN


class About(NamedTuple):
    """The names of an optimizer and of a mean, and the model they train."""

    label: str
    aggregate: str
    model: Model

    @property
    def settings(self) -> Settings:
        """As a file holds them."""
        averaged = tuple(sorted(self.model.averaged))
        return Settings(self.label, self.model.layout, averaged, self.aggregate)


def save_round(path: Path, about: About, saved: Saved) -> None:
    """Replace the file; a crash leaves the old one."""
    meta = {
        "kind": "flower-strategy",
        **plain(about.settings),
        "optimizer_sha256": optimizer_sha256(about.label),
        "forms": _forms(about.model),
        "round": saved.round,
        "history": _converted(saved.history, float, float.hex),
    }
    checkpoint.save(path, {"model": _bytes(saved.arrays), "state": saved.state}, meta)


def load_round(path: Path, about: About, arrays: Arrays, state: ServerState) -> Saved:
    """What the file holds, if it fits this optimizer and model; `arrays`, `state`: fresh ones."""
    label, model = about.label, about.model
    meta = checkpoint.peek(path)
    if meta.get("kind") != "flower-strategy":
        raise LaconicError(
            f"{path} is a checkpoint of something else, not of a Flower strategy: give another "
            "path."
        )
    if meta["forms"] != _forms(model):
        have, want = meta["forms"], _forms(model)
        wrong = sorted(name for name in {*have, *want} if have.get(name) != want.get(name))
        both = [(n, have.get(n, "missing"), want.get(n, "missing")) for n in wrong[:3]]
        said = [f"{name} is {there} there and {here} here" for name, there, here in both]
        raise LaconicError(
            f"{path} holds weights of another architecture than the initial arrays "
            f"({'; '.join(said)}): train that model, or give another path."
        )
    known = {f.name: meta[f.name] for f in fields(Settings) if f.name in meta}
    theirs = read_config(Settings, known, str(path))
    require_same(str(path), plain(theirs), plain(about.settings))
    if is_another(meta, optimizer_sha256(label)):
        raise LaconicError(
            f"{path} was begun with another {label} than there is now: give another path."
        )
    tree, _ = checkpoint.load(path, {"model": _bytes(arrays), "state": state})
    found = {
        name: np.asarray(tree["model"][name]).view(form.dtype).reshape(form.shape)
        for name, form in model.forms.items()
    }
    past = _converted(meta["history"], str, float.fromhex)
    history = {kind: {int(r): one for r, one in rounds.items()} for kind, rounds in past.items()}
    return Saved(meta["round"], found, tree["state"], history)


def _forms(model: Model) -> dict[str, Any]:
    return {name: [form.dtype.name, list(form.shape)] for name, form in model.forms.items()}


def _bytes(arrays: Arrays) -> Arrays:
    """As bytes, because JAX, which reads them back, would make float32 of float64."""
    return {name: np.ascontiguousarray(x).reshape(-1).view(np.uint8) for name, x in arrays.items()}


def _converted(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """JSON with values of one type converted: floats as hexadecimal keep every bit, and NaN."""
    if isinstance(value, dict):
        return {key: _converted(item, kind, convert) for key, item in value.items()}
    if isinstance(value, list):
        return [_converted(item, kind, convert) for item in value]
    return convert(value) if isinstance(value, kind) else value
