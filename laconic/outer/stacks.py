"""Tensors of one shape as the kernels take them: small ones laid one after another, large ones where they are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from laconic.outer.blocks import Big, Geometry
from laconic.outer.features import Ada
from laconic.outer.layout import Layout, Split, padded

SMALL = 1 << 16  # parameters up to which a tensor is copied to share launches


class Tensor(NamedTuple):
    """One tensor's part in a step; `deltas` is [K, …], or None where the mean is all there is to see."""

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
        length = pl.next_power_of_2(self.param.size) if vector and self.small and self.param.size else self.param.size
        shape = (length,) if vector else self.param.shape
        whole = self.split.axis is None
        dtypes = (self.param.dtype, self.mean.dtype, self.ada.v.dtype)
        return shape, None if whole else self.split, dtypes, self.share


class Stack(NamedTuple):
    """Tensors of one shape: what each launch works on, and accumulators along A and B [G·L, 3, …] if factored."""

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
    return Stack(layout, geometry, views, lengths, along_a, jnp.concatenate([layout.along(x, 1) for x in of_b]))


def scatter(tensors: Sequence[Tensor], stack: Stack, stepped: Sequence[Big]) -> list[tuple[jax.Array, Ada]]:
    """What the kernels wrote, tensor by tensor and in the tensors' own shapes."""
    found = []
    for g, tensor in enumerate(tensors):
        layout, shape = Layout.of(tensor.param.shape, tensor.split.pair), tensor.param.shape
        own, begin = stepped[g if len(stepped) > 1 else 0], stack.geometry.L0 * (g if len(stepped) == 1 else 0)
        part = lambda x, begin=begin: jax.lax.slice_in_dim(x, begin, begin + stack.geometry.L0, axis=x.ndim - 4)
        home = lambda x, layout=layout, part=part, shape=shape: layout.back(part(x)[..., : layout.geometry.B], shape)
        if layout.geometry.diagonal:
            row, col = home(own.diagonal).reshape(tensor.ada.row.shape), None
        else:
            layers = slice(g * stack.geometry.L, (g + 1) * stack.geometry.L)
            sides = [(stack.along_a[layers], 0), (stack.along_b[layers], 1)]
            (row, at_row), (col, at_col) = sides if layout.wide else sides[::-1]
            assert tensor.ada.col is not None
            row = layout.from_along(row, tensor.ada.row.shape, at_row)
            col = layout.from_along(col, tensor.ada.col.shape, at_col)
        found.append((home(own.param), Ada(home(own.m), home(own.v), row, col)))
    return found


def _view(t: Tensor) -> Big:
    layout = Layout.of(t.param.shape, t.split.pair)
    see = lambda x: layout.see(x if t.param.ndim else x[..., None])
    deltas, mean = (t.mean[None], None) if t.deltas is None else (t.deltas, see(t.mean))
    diagonal = layout.see(t.ada.row) if layout.geometry.diagonal else None
    return Big(see(deltas), mean, see(t.param), see(t.ada.m), see(t.ada.v), diagonal)
