"""Whether a message may count. A bad one excludes its sender from the round.

Its bytes are checked on the host (`admit`): size, version, signature, run, sender, round,
structure, and the state it started from. Its numbers are checked on the device (`measure`,
`judge`): every float finite, the norm of Δ at most `limit` times the usual one, the weight at most
`limit` times the round's median. The usual norm is the largest median of any round so far, this one
included: a minority cannot raise it, and a change that most workers make together is no poison.
It never falls. Near loss 0 most honest messages are a thousandth of what they were, and one worker
that meets a hard example sends one of the old size. Where most have sent no change at all so far,
the lower median of those that did stands for it, up to the norm of the weights themselves.

Statistics that travel beside Δ (`Message.extra`: running means and variances, counters) are held to
the same rule, array by array, and a variance must not be negative. What passes and weighs more than
most has its weight lowered (`bounded`): weight × norm is at most `limit` times the round's usual.

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
REASONS = ("ok", "absent", *ON_HOST, "not finite", "norm", "weight", "statistics", "piece")
CODE = {reason: code for code, reason in enumerate(REASONS)}
SILENT = {CODE["ok"], CODE["absent"]}  # no fault


class GuardState(NamedTuple):
    """The usual norm, 0 before the first message, each worker's exclusions so far, and the usual
    norm of each array of statistics [A], if there are any."""

    usual: jax.Array
    excluded_K: jax.Array
    statistics: Any = ()


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


def init_guard(K: int, arrays: int = 0) -> GuardState:
    """Nothing seen yet; `arrays` counts those of the statistics."""
    statistics = jnp.zeros(arrays, jnp.float32) if arrays else ()
    return GuardState(jnp.float32(0), jnp.zeros(K, jnp.int32), statistics)


def is_variance(name: str) -> bool:
    """Whether an array of that name holds variances, which are never negative."""
    return name.rstrip("'\"])").lower().endswith(("var", "variance"))


def measure(
    words: jax.Array, read: Callable[[jax.Array], Any], square: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, Any]:
    """The norm of a message's Δ, whether all of its floats are finite, and the norms of its
    statistics [A], infinite for a negative variance. Traceable.

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
    extra_finite, sizes = measure_extra(extra)
    return norm, finite & extra_finite, sizes


def measure_extra(extra: Any) -> tuple[jax.Array, Any]:
    """Whether all statistics are finite, and their norms [A]. Traceable."""
    return _finite(extra), _sizes(extra)


def _sizes(extra: Any) -> Any:
    found = []
    for path, x in jax.tree_util.tree_leaves_with_path(extra):
        norm = jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32))))
        if is_variance(jax.tree_util.keystr(path)):
            norm = jnp.where(jnp.any(x < 0), jnp.inf, norm)
        found.append(norm)
    return jnp.stack(found) if found else ()


def judge(
    state: GuardState,
    norms_K: jax.Array,
    finite_K: jax.Array,
    weights_K: jax.Array,
    codes_K: jax.Array,
    limit: float,
    sizes_KA: Any = (),
    scale: jax.Array | float = 1.0,
) -> tuple[jax.Array, GuardState]:
    """The final verdicts [K] on messages so measured, and the guard's next state. Traceable.

    sizes_KA: the norms of their statistics; () if there are none
    scale: the norm of the weights, which a first change may have where most send none
    """
    codes_K = _first(codes_K, ~finite_K, "not finite")
    far_K, usual = _far(norms_K, state.usual, codes_K, limit, scale)
    codes_K = _first(codes_K, far_K, "norm")
    statistics = state.statistics
    if not isinstance(sizes_KA, tuple):
        each = jax.vmap(_far, (1, 0, None, None, None), (1, 0))
        far_KA, statistics = each(sizes_KA, statistics, codes_K, limit, 1.0)
        codes_K = _first(codes_K, jnp.any(far_KA, axis=1), "statistics")
    usual_weight = _lower_median(weights_K, codes_K == CODE["ok"])
    heavy_K = ~(weights_K >= 0) | (weights_K > limit * usual_weight)
    codes_K = _first(codes_K, heavy_K, "weight")
    bad_K = (codes_K != CODE["ok"]) & (codes_K != CODE["absent"])
    return codes_K, GuardState(usual, state.excluded_K + bad_K.astype(jnp.int32), statistics)


def _far(
    norms_K: jax.Array,
    past: jax.Array,
    codes_K: jax.Array,
    limit: float,
    scale: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Which norms are far above the usual one [K], and the usual one from now on."""
    here_K = (codes_K == CODE["ok"]) & jnp.isfinite(norms_K)
    usual = jnp.maximum(past, _lower_median(norms_K, here_K))
    first = jnp.minimum(_lower_median(norms_K, here_K & (norms_K > 0)), scale)
    most = limit * jnp.where(usual > 0, usual, first)
    return ~jnp.isfinite(norms_K) | (norms_K > most), usual


def bounded(norms_K: jax.Array, weights_K: jax.Array, good_K: jax.Array, limit: float) -> jax.Array:
    """The weights [K] of messages that passed, lowered so that weight × norm is at most `limit`
    times the product of the round's lower medians; none falls below the median weight. Traceable.

    A message with less than the median norm is taken to have that: its weight thins out the others.
    """
    counted_K = good_K & (weights_K > 0)
    usual = _lower_median(norms_K, counted_K)
    times_K = jnp.where(usual > 0, norms_K / jnp.where(usual > 0, usual, 1.0), jnp.inf)
    times_K = jnp.where(norms_K > 0, times_K, 1.0)
    most_K = jnp.maximum(1.0, limit / jnp.maximum(1.0, times_K))
    return jnp.minimum(weights_K, _lower_median(weights_K, counted_K) * most_K)


def _first(codes_K: jax.Array, fault_K: jax.Array, reason: str) -> jax.Array:
    return jnp.where((codes_K == CODE["ok"]) & fault_K, CODE[reason], codes_K)


def norm_of(tree: Any) -> jax.Array:
    """The norm of all floats of a pytree."""
    return jnp.sqrt(_square(tree))


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
