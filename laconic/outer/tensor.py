"""The learned step of one tensor in plain XLA: the reference for every kernel, and what runs where there is none.

Two passes over the tensor, a tile at a time: the first reduces every feature's second moment, the second recomputes
the features and runs the MLP. The normalisers are folded into the first layer's weights and the time features into its
bias. The [n, 39] matrix never exists.
"""

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
        step = walk.fill(lambda f: _mlp(theta | first, groups(f)), fields)
    return features.from_view(view, step, param.shape)


def _mlp(theta: Theta, groups: list[jax.Array]) -> jax.Array:
    """One tile [1, l, a, b] of steps. Features run along the first axis, so no transpose is ever needed."""
    tile = jnp.broadcast_shapes(*(x.shape[1:] for x in groups))
    # Without the barrier XLA's CPU code computes the features inside the concatenation, one by one: 1.5 times slower.
    apart = jax.lax.optimization_barrier(groups) if jax.default_backend() == "cpu" else groups
    ends = [sum(x.shape[0] for x in groups[: i + 1]) for i in range(len(groups))]
    weights = jnp.split(theta["w0"], ends[:-1])
    # What is the same along a row or a column goes through the first layer once for all of it.
    own = [(w, x) for w, x in zip(weights, apart, strict=True) if x.shape[1:] == tile]
    shared = [(w, x) for w, x in zip(weights, apart, strict=True) if x.shape[1:] != tile]
    h = _dense(jnp.concatenate([w for w, _ in own]), jnp.concatenate([x for _, x in own]))
    h = sum((_dense(w, x) for w, x in shared), theta["b0"].reshape(-1, 1, 1, 1)) + h
    for i in (1, 2):
        h = _dense(theta[f"w{i}"], jax.nn.relu(h)) + theta[f"b{i}"].reshape(-1, 1, 1, 1)
    return LAMBDA * h[:1] * jnp.exp(LAMBDA * h[1:])


def _dense(w_FN: jax.Array, x: jax.Array) -> jax.Array:
    """[F, …] → [N, …]."""
    return jnp.tensordot(w_FN.T, x, axes=1)
