"""Whether a message may count. A bad one excludes its sender from the round.

Its bytes are checked on the host (`admit`): size, version, signature, run, sender, round,
structure, and the state it started from. Its numbers are checked on the device (`measure`,
`judge`): every float finite, the norm of Δ at most `limit` times the usual one, the weight at most
`limit` times the round's median. The usual norm is the largest median of any round so far, this one
included: a minority cannot raise it, and a change that most workers make together is no poison.
It never falls. Near loss 0 most honest messages are a thousandth of what they were, and one worker
that meets a hard example sends one of the old size.

The guard's state depends on the messages alone and is part of the replicated state, so all replicas
judge alike.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.engines.base import Digest
from laconic.engines.wire import EMPTY, Header, Layout, Seal, open_frame

LIMIT = 10.0
ON_HOST = ("garbage", "version", "token", "run", "worker", "round", "structure", "origin")
REASONS = ("ok", "absent", *ON_HOST, "not finite", "norm", "weight")
CODE = {reason: code for code, reason in enumerate(REASONS)}
SILENT = {CODE["ok"], CODE["absent"]}  # no fault


class GuardState(NamedTuple):
    """The usual norm, 0 before the first message, and each worker's exclusions so far."""

    usual: jax.Array
    excluded_K: jax.Array


class Admitted(NamedTuple):
    """The verdict on the bytes of one worker's message."""

    code: int
    header: Header | None = None


def admit(
    seal: Seal,
    layout: Layout,
    frame: np.ndarray | None,
    folded: np.ndarray | None,
    worker: int,
    round: int,
    origin: Digest,
) -> Admitted:
    """Check one worker's frame, or None, as bytes; `folded` is the fold of its body."""
    if frame is None:
        return Admitted(CODE["absent"])
    if folded is None:
        return Admitted(CODE["garbage"])  # a frame of the wrong size
    header, reason = open_frame(seal, frame, folded)
    return judge_header(layout, header, reason, worker, round, origin)


def judge_header(
    layout: Layout, header: Header | None, reason: str, worker: int, round: int, origin: Digest
) -> Admitted:
    """The verdict on a header, or on the `reason` why there is none."""
    if header is None:
        return Admitted(CODE[reason])
    if header.worker != worker:
        return Admitted(CODE["worker"], header)
    if header.flags & EMPTY:
        return Admitted(CODE["absent"], header)
    if header.round != round:
        return Admitted(CODE["round"], header)
    if header.structure != layout.structure or header.body != layout.size:
        return Admitted(CODE["structure"], header)
    if header.origin != origin:
        return Admitted(CODE["origin"], header)
    return Admitted(CODE["ok"], header)


def init_guard(K: int) -> GuardState:
    """Nothing seen yet."""
    return GuardState(jnp.float32(0), jnp.zeros(K, jnp.int32))


def measure(
    words: jax.Array, read: Callable[[jax.Array], Any], square: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The norm of a message's Δ, and whether all of its floats are finite. Traceable.

    `read(words)` gives the decoded Δ and its extra; `square` is the sum of Δ's squares, if known.
    """
    delta, extra = read(words)
    norm = jnp.sqrt(_square(delta) if square is None else square)
    # A finite norm has only finite terms, so mostly no second pass over the numbers is needed. The
    # branch reads the message itself: arrays handed in would be computed in any case.
    finite = jax.lax.cond(
        jnp.isfinite(norm),
        lambda words: jnp.array(True),
        lambda words: _finite(read(words)[0]),
        words,
    )
    return norm, finite & _finite(extra)


def judge(
    state: GuardState,
    norms_K: jax.Array,
    finite_K: jax.Array,
    weights_K: jax.Array,
    codes_K: jax.Array,
    limit: float,
) -> tuple[jax.Array, GuardState]:
    """The final verdicts [K] on messages so measured, and the guard's next state. Traceable."""
    codes_K = _first(codes_K, ~finite_K, "not finite")
    here_K = (codes_K == CODE["ok"]) & jnp.isfinite(norms_K)
    usual = jnp.maximum(state.usual, _lower_median(norms_K, here_K))
    far_K = ~jnp.isfinite(norms_K) | ((usual > 0) & (norms_K > limit * usual))
    codes_K = _first(codes_K, far_K, "norm")
    usual_weight = _lower_median(weights_K, codes_K == CODE["ok"])
    heavy_K = ~(weights_K >= 0) | (weights_K > limit * usual_weight)
    codes_K = _first(codes_K, heavy_K, "weight")
    bad_K = (codes_K != CODE["ok"]) & (codes_K != CODE["absent"])
    return codes_K, GuardState(usual, state.excluded_K + bad_K.astype(jnp.int32))


def _first(codes_K: jax.Array, fault_K: jax.Array, reason: str) -> jax.Array:
    return jnp.where((codes_K == CODE["ok"]) & fault_K, CODE[reason], codes_K)


def _square(tree: Any) -> jax.Array:
    return sum((jnp.sum(jnp.square(x.astype(jnp.float32))) for x in _leaves(tree)), jnp.float32(0))


def _finite(tree: Any) -> jax.Array:
    flags = [jnp.all(jnp.isfinite(x)) for x in _leaves(tree)]
    return jnp.all(jnp.stack(flags)) if flags else jnp.array(True)


def _leaves(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def _lower_median(x_N: jax.Array, here_N: jax.Array) -> jax.Array:
    """The lower median of the values that are here, which a minority cannot raise; 0 if none is."""
    count = jnp.sum(here_N)
    middle = jnp.sort(jnp.where(here_N, x_N, jnp.inf))[jnp.maximum(count - 1, 0) // 2]
    return jnp.where(count > 0, middle, 0.0)
