"""The MLP of a learned step, on one tile [l, a, b] of parameters. Features run along the first
axis: no transposes.

On a CPU the same sums are written so that XLA's code for them is fast: see `docs/server-step.md`
for what each buys.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from laconic.architecture import LAMBDA, features_along, normalised_features
from laconic.outer.tiles import Walk

Theta = dict[str, jax.Array]
Last = Callable[[Theta, jax.Array], tuple[jax.Array, jax.Array]]
LARGE, NARROW = (
    1 << 20,
    64,
)  # parameters from which, hidden units up to which, sums are worth writing out
CHAINS = 4  # sums side by side: one alone would wait for each addition


def along(theta: Theta, groups: list[jax.Array], axes: tuple[int, int]) -> list[jax.Array]:
    """What rows and what columns add to the first layer's sums, if that takes no more than 16 bytes
    a parameter."""
    (A, B), N = axes, theta["b0"].size
    shared = [(w, x) for w, x in _weighted(theta, groups) if x.shape[2:] != (A, B)]
    all_shared = len(shared) == len(features_along("row", "column"))  # not if an axis has length 1
    if (A + B) * N > 4 * A * B or not all_shared:
        return []
    sides: dict[tuple[int, ...], list[jax.Array]] = {}
    for w, x in shared:
        sides.setdefault(x.shape[1:], []).append(_dense(w, x))
    return [sum(terms[1:], terms[0]) for terms in sides.values()]


def scratch_for(
    theta: Theta, groups: list[jax.Array], added: list[jax.Array], walk: Walk
) -> jax.Array | None:
    """Memory to put a tile's inputs together in, where a CPU walks over many of them."""
    if jax.default_backend() != "cpu" or walk.whole:
        return None
    return jnp.zeros((sum(x.shape[0] for _, x in _inputs(theta, groups, added)), 1, *walk.size))


def default_last(theta: Theta, walk: Walk) -> Last:
    """How the last layer is best computed on the platform JAX runs on."""
    large = math.prod(walk.shape) >= LARGE and theta["b1"].size <= NARROW
    return written_out if large and jax.default_backend() == "cpu" else product


def steps(
    theta: Theta,
    groups: list[jax.Array],
    added: list[jax.Array],
    scratch: jax.Array | None,
    last: Last,
) -> tuple[jax.Array, jax.Array | None]:
    """A tile [1, l, a, b] of λ₁·d·exp(λ₂·m), and the scratch; `added` is what rows and columns add."""
    tile = jnp.broadcast_shapes(*(x.shape[1:] for x in groups))
    rows = _inputs(theta, groups, added)
    w, parts = (
        jnp.concatenate([w for w, _ in rows]),
        [jnp.broadcast_to(x, (x.shape[0], *tile)) for _, x in rows],
    )
    h = sum(added, theta["b0"].reshape(-1, 1, 1, 1))
    if scratch is None:
        x = jnp.concatenate(parts)
    else:
        x = scratch = _written(scratch, parts)
    h = h + _dense(w, x)
    d, m = last(theta, _dense(theta["w1"], jax.nn.relu(h)))
    return LAMBDA * d * jnp.exp(LAMBDA * m), scratch


def product(theta: Theta, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    """d and m from the second layer's sums."""
    h = jax.nn.relu(h + theta["b1"].reshape(-1, 1, 1, 1))
    out = _dense(theta["w2"], h) + theta["b2"].reshape(-1, 1, 1, 1)
    return out[:1], out[1:]


def written_out(theta: Theta, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same sum by sum: a CPU gets one loop of them and all that comes after, which no product
    can be part of."""
    row = jax.lax.slice_in_dim
    w2, b1, b2 = (
        theta[name].reshape(-1, 1, 1, 1) for name in ("w2", "b1", "b2")
    )  # w2's two columns alternate
    hidden = [jax.lax.max(row(h, j, j + 1) + row(b1, j, j + 1), 0.0) for j in range(h.shape[0])]

    def one(i: int) -> jax.Array:
        terms = [row(w2, 2 * j + i, 2 * j + i + 1) * x for j, x in enumerate(hidden)]
        chains = [
            sum(terms[c + CHAINS :: CHAINS], terms[c]) for c in range(min(CHAINS, len(terms)))
        ]
        return sum(chains, row(b2, i, i + 1))

    return one(0), one(1)


def _weighted(theta: Theta, groups: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    """Every group of features with its rows of the first layer."""
    ends = [sum(x.shape[0] for x in groups[: i + 1]) for i in range(len(groups))]
    return list(zip(jnp.split(theta["w0"], ends[:-1]), groups, strict=True))


def _inputs(
    theta: Theta, groups: list[jax.Array], added: list[jax.Array]
) -> list[tuple[jax.Array, jax.Array]]:
    """What the MLP sees of every parameter, with its rows of the first layer."""
    rows = _weighted(theta, groups)
    if not added:
        return rows
    known = zip(normalised_features(), rows, strict=True)
    return [row for feature, row in known if feature.along == "parameter"]


def _dense(w_FN: jax.Array, x: jax.Array) -> jax.Array:
    """[F, …] → [N, …]."""
    return jnp.tensordot(w_FN.T, x, axes=1)


def _written(scratch: jax.Array, parts: list[jax.Array]) -> jax.Array:
    """A concatenation in place. XLA's CPU code for a concatenation asks of every number which part
    it comes from."""
    begin = 0
    for part in parts:
        scratch = jax.lax.dynamic_update_slice_in_dim(scratch, part, begin, axis=0)
        begin += part.shape[0]
    return scratch
