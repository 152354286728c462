"""Tensors of one shape as the kernels take them: small ones laid one after another, large ones
where they are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from laconic.outer.blocks import Big, Geometry
from laconic.outer.features import Ada
from laconic.outer.kernels import Tuning
from laconic.outer.layout import Layout, Split, padded
from laconic.outer.unpack import Piece, unpack

SMALL = 1 << 16  # parameters up to which a tensor is copied to share launches


class Tensor(NamedTuple):
    """One tensor's part in a step; `deltas` is [K, …], or None where the mean is all there is to
    see."""

    param: jax.Array
    ada: Ada
    mean: jax.Array
    deltas: jax.Array | None
    split: Split
    share: float  # of a whole step

    @property
    def small(self) -> bool:
        """Whether it shares its launches with others of its shape."""
        return self.param.size <= SMALL

    @property
    def kind(self) -> Any:
        """What tensors must agree in to share what is computed between the passes."""
        vector = self.param.ndim < 2
        length = (
            pl.next_power_of_2(self.param.size)
            if vector and self.small and self.param.size
            else self.param.size
        )
        shape = (length,) if vector else self.param.shape
        whole = self.split.axis is None
        dtypes = (self.param.dtype, self.mean.dtype, self.ada.v.dtype)
        return shape, None if whole else self.split, dtypes, self.share


class Stack(NamedTuple):
    """Tensors of one shape: what each launch works on, and accumulators along A and B [G·L, 3, …]
    if factored."""

    layout: Layout
    geometry: Geometry  # the layout's, or that of padded vectors
    launches: list[Big]
    lengths: jax.Array | None  # of padded vectors
    along_a: Any
    along_b: Any


def gather(tensors: Sequence[Tensor]) -> Stack:
    """The arrays of tensors of one kind."""
    layout = Layout.of(tensors[0].param.shape, tensors[0].split.pair)
    geometry, lengths, views = layout.geometry, None, [_view(t) for t in tensors]
    if tensors[0].small:
        if geometry.diagonal:
            geometry = geometry._replace(B=pl.next_power_of_2(geometry.B))
            views = [jax.tree.map(lambda x: padded(x, geometry.B), view) for view in views]
            lengths = jnp.asarray([t.param.size for t in tensors], jnp.int32)
        views = [jax.tree.map(lambda *x: jnp.concatenate(x, axis=-4), *views)]
    if geometry.diagonal:
        return Stack(layout, geometry, views, lengths, None, None)
    rows: list[Any] = [t.ada.row for t in tensors]
    cols: list[Any] = [t.ada.col for t in tensors]
    of_a, of_b = (rows, cols) if layout.wide else (cols, rows)
    along_a = jnp.concatenate([layout.along(x, 0) for x in of_a])
    return Stack(
        layout,
        geometry,
        views,
        lengths,
        along_a,
        jnp.concatenate([layout.along(x, 1) for x in of_b]),
    )


def scatter(
    tensors: Sequence[Tensor], stack: Stack, stepped: Sequence[Big], tuning: Tuning
) -> list[tuple[jax.Array, Ada]]:
    """What the kernels wrote, tensor by tensor and in the tensors' own shapes."""
    if stack.geometry.diagonal and len(stepped) == 1 and len(tensors) > 1:
        return _vectors(tensors, stack.geometry.B, stepped[0], tuning)
    sides, found = _sides(tensors, stack, tuning), []
    for g, tensor in enumerate(tensors):
        layout, shape = Layout.of(tensor.param.shape, tensor.split.pair), tensor.param.shape
        own, begin = (
            stepped[g if len(stepped) > 1 else 0],
            stack.geometry.L0 * (g if len(stepped) == 1 else 0),
        )
        part = lambda x, begin=begin: jax.lax.slice_in_dim(
            x, begin, begin + stack.geometry.L0, axis=x.ndim - 4
        )
        home = lambda x, layout=layout, part=part, shape=shape: layout.back(
            part(x)[..., : layout.geometry.B], shape
        )
        if layout.geometry.diagonal:
            row, col = home(own.diagonal).reshape(tensor.ada.row.shape), None
        else:
            along_a, along_b = (side[g] for side in sides)
            (row, at_row), (col, at_col) = ((along_a, 0), (along_b, 1))[:: 1 if layout.wide else -1]
            assert tensor.ada.col is not None
            row = layout.from_along(row, tensor.ada.row.shape, at_row)
            col = layout.from_along(col, tensor.ada.col.shape, at_col)
        found.append((home(own.param), Ada(home(own.m), home(own.v), row, col)))
    return found


def _vectors(
    tensors: Sequence[Tensor], B: int, own: Big, tuning: Tuning
) -> list[tuple[jax.Array, Ada]]:
    """The same of vectors padded to B and laid one after another."""
    G, sources = len(tensors), (own.param, own.m, own.v, own.diagonal)
    rows = [1, 3, 1, 3]
    sizes = [tensor.param.size for tensor in tensors]
    pieces = [
        Piece(i, g * B, rows[i], G * B, size)
        for g, size in enumerate(sizes)
        for i in range(len(sources))
    ]
    new, found = unpack(sources, pieces, tuning), []
    for g, t in enumerate(tensors):
        param, m, v, row = new[4 * g : 4 * g + 4]
        ada = Ada(
            m.reshape(t.ada.m.shape), v.reshape(t.ada.v.shape), row.reshape(t.ada.row.shape), None
        )
        found.append((param.reshape(t.param.shape), ada))
    return found


def _sides(tensors: Sequence[Tensor], stack: Stack, tuning: Tuning) -> list[list[jax.Array]]:
    """Accumulators along A and along B, each tensor's [L, 3, length]."""
    if stack.geometry.diagonal:
        return []
    both = (stack.along_a, stack.along_b)
    sizes = [side.size // len(tensors) for side in both]
    pieces = [Piece(i, g * sizes[i], 1, 0, sizes[i]) for i in range(2) for g in range(len(tensors))]
    new = unpack(both, pieces, tuning)
    shaped = [x.reshape(stack.geometry.L, 3, -1) for x in new]
    return [shaped[: len(tensors)], shaped[len(tensors) :]]


def _view(t: Tensor) -> Big:
    layout = Layout.of(t.param.shape, t.split.pair)
    see = lambda x: layout.see(x if t.param.ndim else x[..., None])
    deltas, mean = (t.mean[None], None) if t.deltas is None else (t.deltas, see(t.mean))
    diagonal = layout.see(t.ada.row) if layout.geometry.diagonal else None
    return Big(see(deltas), mean, see(t.param), see(t.ada.m), see(t.ada.v), diagonal)
