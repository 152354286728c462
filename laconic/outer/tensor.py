"""The learned step of one tensor in plain XLA: the reference for every kernel, and what runs where
there is none.

Two passes over the tensor, a tile at a time: the first reduces every feature's second moment, the
second recomputes the features and runs the MLP. The normalisers are folded into the first layer's
weights and the time features into its bias. The [n, 39] matrix never exists. Features run along the
first axis, so nothing is transposed. On a CPU the sums are written so that XLA's code for them is
fast: `docs/server-step.md` says what each trick buys.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from laconic.architecture import LAMBDA, features_along, normalised_features
from laconic.outer import features, fused
from laconic.outer.layout import Split
from laconic.outer.tiles import Tiles, Walk

Theta = dict[str, jax.Array]
Last = Callable[[Theta, jax.Array], tuple[jax.Array, jax.Array]]
# The last layer's sums are written out from so many parameters on, up to so many hidden units.
LARGE = 1 << 20
NARROW = 64
CHAINS = 4  # sums side by side: one alone would wait for each addition


def tensor_step(
    theta: Theta,
    time: jax.Array,
    param: jax.Array,
    ada: features.Ada | None,
    mean: jax.Array,
    deltas: jax.Array,
    tiles: Tiles,
    split: Split,
    kernel: bool,
) -> jax.Array:
    """λ₁·d·exp(λ₂·m) for every parameter of one tensor, `deltas` being [n, *shape].

    With `kernel` the second pass of a factored tensor is one GPU kernel.
    """
    if not param.size:
        return param
    groups: Any
    if ada is None:
        view = features.view_of(split)
        fields = [features.to_view(view, x, param.shape) for x in (deltas, param)]
        groups = list
    else:
        view, fields = features.fields_of(param, ada, mean, deltas, split)
        groups = features.groups
    A, B = fields[0].shape[2:]
    shape = (param.size // (A * B), A, B)
    squares = lambda f, masks: features.square_sums(groups(f), masks)
    sums = split.total(Walk(shape, tiles.sums).reduce(squares, fields))
    count = sums.shape[0]
    phi = theta | {
        "w0": features.normaliser(sums / split.size)[:, None] * theta["w0"][:count],
        "b0": theta["b0"] + time @ theta["w0"][count:],
    }
    if kernel and isinstance(fields, features.Fields) and fused.serves(phi["b0"].size, ada):
        step = fused.learned_step(phi, fields, LAMBDA)
    else:
        walk = tiles.walk(shape)
        whole: Any = groups(fields)
        added = along(phi, whole, (A, B))
        last = default_last(phi, walk)
        scratch = scratch_for(phi, whole, added, walk)
        fill = lambda both, scratch: mlp(phi, groups(both[0]), both[1], scratch, last)
        step = walk.fill(fill, (fields, added), scratch)
    return features.from_view(view, step, param.shape)


def along(theta: Theta, groups: list[jax.Array], axes: tuple[int, int]) -> list[jax.Array]:
    """What rows and columns add to the first layer's sums, if in at most 16 bytes a parameter."""
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
    """Memory for a tile's inputs, where a CPU walks over many tiles."""
    if jax.default_backend() != "cpu" or walk.whole:
        return None
    return jnp.zeros((sum(x.shape[0] for _, x in _inputs(theta, groups, added)), 1, *walk.size))


def default_last(theta: Theta, walk: Walk) -> Last:
    """How the last layer is best computed on the platform JAX runs on."""
    large = math.prod(walk.shape) >= LARGE and theta["b1"].size <= NARROW
    return written_out if large and jax.default_backend() == "cpu" else product


def mlp(
    theta: Theta,
    groups: list[jax.Array],
    added: list[jax.Array],
    scratch: jax.Array | None,
    last: Last,
) -> tuple[jax.Array, jax.Array | None]:
    """A tile [1, l, a, b] of λ₁·d·exp(λ₂·m), and the scratch; rows and columns add `added`."""
    tile = jnp.broadcast_shapes(*(x.shape[1:] for x in groups))
    rows = _inputs(theta, groups, added)
    w = jnp.concatenate([w for w, _ in rows])
    parts = [jnp.broadcast_to(x, (x.shape[0], *tile)) for _, x in rows]
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
    """The same sum by sum: unlike a matrix product, XLA's CPU code fuses it with what follows."""
    row = jax.lax.slice_in_dim
    # The two columns of w2 alternate.
    w2, b1, b2 = (theta[name].reshape(-1, 1, 1, 1) for name in ("w2", "b1", "b2"))
    hidden = [jax.lax.max(row(h, j, j + 1) + row(b1, j, j + 1), 0.0) for j in range(h.shape[0])]

    def one(i: int) -> jax.Array:
        terms = [row(w2, 2 * j + i, 2 * j + i + 1) * x for j, x in enumerate(hidden)]
        count = min(CHAINS, len(terms))
        chains = [sum(terms[c + CHAINS :: CHAINS], terms[c]) for c in range(count)]
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
    """A concatenation in place: XLA's CPU code for one looks up the part of every number."""
    begin = 0
    for part in parts:
        scratch = jax.lax.dynamic_update_slice_in_dim(scratch, part, begin, axis=0)
        begin += part.shape[0]
    return scratch
