"""The learned step of one tensor in plain XLA: the reference for every kernel, and what runs where
there is none.

Two passes over the tensor, a tile at a time: the first reduces every feature's second moment, the
second recomputes the features and runs the MLP. The normalisers are folded into the first layer's
weights and the time features into its bias. The [n, 39] matrix never exists.
"""

from typing import Any

import jax

from laconic.architecture import LAMBDA
from laconic.outer import features, fused, mlp
from laconic.outer.layout import Split
from laconic.outer.mlp import Theta
from laconic.outer.tiles import Tiles, Walk


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
    first = {
        "w0": features.normaliser(sums / split.size)[:, None] * theta["w0"][:count],
        "b0": theta["b0"] + time @ theta["w0"][count:],
    }
    if kernel and isinstance(fields, features.Fields) and fused.serves(theta["b0"].size, ada):
        step = fused.learned_step(theta | first, fields, LAMBDA)
    else:
        phi, walk = theta | first, tiles.walk(shape)
        whole: Any = groups(fields)
        added, last = mlp.along(phi, whole, (A, B)), mlp.default_last(phi, walk)
        scratch = mlp.scratch_for(phi, whole, added, walk)
        fill = lambda both, scratch: mlp.steps(phi, groups(both[0]), both[1], scratch, last)
        step = walk.fill(fill, (fields, added), scratch)
    return features.from_view(view, step, param.shape)
