"""The learned step of one tensor in plain XLA: the reference for every kernel, and what runs where there is none.

Two passes over the tensor, a tile at a time: the first reduces every feature's second moment, the second recomputes
the features and runs the MLP. The normalisers are folded into the first layer's weights and the time features into its
bias. The [n, 39] matrix never exists.
"""

from typing import Any

import jax
import jax.numpy as jnp

from laconic.architecture import LAMBDA
from laconic.outer import features, fused
from laconic.outer.layout import Split
from laconic.outer.tiles import Walk, default_strands

Theta = dict[str, jax.Array]


def tensor_step(
    theta: Theta,
    time: jax.Array,
    param: jax.Array,
    ada: features.Ada | None,
    mean: jax.Array,
    deltas: jax.Array,
    tile: int,
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
    walk = Walk((param.size // (A * B), A, B), tile, default_strands(param.size))
    sums = split.total(walk.reduce(lambda f, masks: features.square_sums(groups(f), masks), fields))
    count = sums.shape[0]
    first = {
        "w0": features.normaliser(sums / split.size)[:, None] * theta["w0"][:count],
        "b0": theta["b0"] + time @ theta["w0"][count:],
    }
    if kernel and isinstance(fields, features.Fields) and fused.serves(theta["b0"].size, ada):
        step = fused.learned_step(theta | first, fields, LAMBDA)
    else:
        phi = theta | first
        whole: Any = groups
        added = _along(phi, whole(fields), (A, B))
        fill = lambda both: _mlp(phi, groups(both[0]), both[1])
        step = walk.fill(fill, (fields, added))
    return features.from_view(view, step, param.shape)


def _along(theta: Theta, groups: list[jax.Array], axes: tuple[int, int]) -> list[jax.Array]:
    """What rows and what columns add to the first layer's sums, if that takes no more than 16 bytes a parameter."""
    (A, B), N = axes, theta["b0"].size
    shared = [(w, x) for w, x in _weighted(theta, groups) if x.shape[2:] != (A, B)]
    if (A + B) * N > 4 * A * B or not shared:
        return []
    sides: dict[tuple[int, ...], list[jax.Array]] = {}
    for w, x in shared:
        sides.setdefault(x.shape[1:], []).append(_dense(w, x))
    return [sum(terms[1:], terms[0]) for terms in sides.values()]


def _weighted(theta: Theta, groups: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    """Every group of features with its rows of the first layer."""
    ends = [sum(x.shape[0] for x in groups[: i + 1]) for i in range(len(groups))]
    return list(zip(jnp.split(theta["w0"], ends[:-1]), groups, strict=True))


def _mlp(theta: Theta, groups: list[jax.Array], added: list[jax.Array]) -> jax.Array:
    """One tile [1, l, a, b] of steps. Features run along the first axis, so no transpose is ever needed."""
    tile = jnp.broadcast_shapes(*(x.shape[1:] for x in groups))
    # Without the barrier XLA's CPU code computes the features inside the concatenation, one by one: 1.5 times slower.
    apart = jax.lax.optimization_barrier(groups) if jax.default_backend() == "cpu" else groups
    rows = _weighted(theta, apart)
    if added:  # rows and columns went through the first layer already; theirs are groups 7 to 10
        rows = rows[:7] + rows[11:]
    w, x = jnp.concatenate([w for w, _ in rows]), [jnp.broadcast_to(x, (x.shape[0], *tile)) for _, x in rows]
    h = sum(added, theta["b0"].reshape(-1, 1, 1, 1)) + _dense(w, jnp.concatenate(x))
    for i in (1, 2):
        h = _dense(theta[f"w{i}"], jax.nn.relu(h)) + theta[f"b{i}"].reshape(-1, 1, 1, 1)
    return LAMBDA * h[:1] * jnp.exp(LAMBDA * h[1:])


def _dense(w_FN: jax.Array, x: jax.Array) -> jax.Array:
    """[F, …] → [N, …]."""
    return jnp.tensordot(w_FN.T, x, axes=1)
