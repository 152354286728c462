"""Tensors of one shape as the kernels take them: small ones copied into one array, large ones in
place.

`unpack` takes them apart again, a hundred pieces by one kernel. XLA would copy every piece by a
launch of its own: a model of a hundred layers has hundreds of small vectors, and launching the
copies would take a tenth of the whole step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.outer.features import Ada
from laconic.outer.kernels import Tuning, bound, whole
from laconic.outer.layout import Big, Geometry, Layout, Split, padded

SMALL = 1 << 16  # parameters up to which a tensor is copied to share launches
FEW = 4  # pieces that are as well copied by XLA
# Pieces of a launch: a kernel's arguments are 4 KiB at most, and each piece lengthens its code.
MOST = 96
LANES = 1024


class Tensor(NamedTuple):
    """One tensor's part in a step; `deltas` is [K, …], or None if only the mean is seen."""

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
        shape = self.param.shape
        if self.param.ndim < 2:
            padded = self.small and self.param.size
            shape = (pl.next_power_of_2(self.param.size) if padded else self.param.size,)
        dtypes = (self.param.dtype, self.mean.dtype, self.ada.v.dtype)
        return shape, None if self.split.axis is None else self.split, dtypes, self.share


class Stack(NamedTuple):
    """Tensors of one shape; if factored, with accumulators along A and B [G·L, 3, …]."""

    layout: Layout
    geometry: Geometry  # the layout's, or that of padded vectors
    launches: list[Big]  # what each launch works on
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
    along_b = jnp.concatenate([layout.along(x, 1) for x in of_b])
    return Stack(layout, geometry, views, lengths, along_a, along_b)


def scatter(
    tensors: Sequence[Tensor], stack: Stack, stepped: Sequence[Big], tuning: Tuning
) -> list[tuple[jax.Array, Ada]]:
    """What the kernels wrote, tensor by tensor and in the tensors' own shapes."""
    if stack.geometry.diagonal and len(stepped) == 1 and len(tensors) > 1:
        return _vectors(tensors, stack.geometry.B, stepped[0], tuning)
    sides = _sides(tensors, stack, tuning)
    L0 = stack.geometry.L0
    found = []
    for g, tensor in enumerate(tensors):
        own = stepped[0] if len(stepped) == 1 else stepped[g]
        begin = L0 * g if len(stepped) == 1 else 0
        found.append(_tensor(tensor, own, begin, L0, [side[g] for side in sides]))
    return found


def _tensor(
    tensor: Tensor, own: Big, begin: int, L0: int, sides: Sequence[jax.Array]
) -> tuple[jax.Array, Ada]:
    """One tensor's parameters and accumulators, from row `begin` of L₀ on."""
    layout = Layout.of(tensor.param.shape, tensor.split.pair)

    def home(x: jax.Array) -> jax.Array:
        part = jax.lax.slice_in_dim(x, begin, begin + L0, axis=x.ndim - 4)
        return layout.back(part[..., : layout.geometry.B], tensor.param.shape)

    if tensor.ada.col is None:
        row, col = home(own.diagonal).reshape(tensor.ada.row.shape), None
    else:
        at_row, at_col = (0, 1) if layout.wide else (1, 0)
        row = layout.from_along(sides[at_row], tensor.ada.row.shape, at_row)
        col = layout.from_along(sides[at_col], tensor.ada.col.shape, at_col)
    return home(own.param), Ada(home(own.m), home(own.v), row, col)


def _vectors(
    tensors: Sequence[Tensor], B: int, own: Big, tuning: Tuning
) -> list[tuple[jax.Array, Ada]]:
    """The same of vectors padded to B and concatenated."""
    sources = (own.param, own.m, own.v, own.diagonal)
    stride = len(tensors) * B
    pieces = [
        Piece(i, g * B, source.size // stride, stride, tensor.param.size)
        for g, tensor in enumerate(tensors)
        for i, source in enumerate(sources)
    ]
    new = unpack(sources, pieces, tuning)
    found = []
    for g, t in enumerate(tensors):
        like = (t.param, t.ada.m, t.ada.v, t.ada.row)
        shaped = (x.reshape(y.shape) for x, y in zip(new[4 * g :], like, strict=False))
        param, m, v, row = shaped
        found.append((param, Ada(m, v, row, None)))
    return found


def _sides(tensors: Sequence[Tensor], stack: Stack, tuning: Tuning) -> list[list[jax.Array]]:
    """Accumulators along A and along B, each tensor's [L, 3, length]."""
    if stack.geometry.diagonal:
        return []
    both = (stack.along_a, stack.along_b)
    sizes = [side.size // len(tensors) for side in both]
    pieces = [Piece(i, g * sizes[i], 1, 0, sizes[i]) for i in range(2) for g in range(len(tensors))]
    new = unpack(both, pieces, tuning)
    shaped = [x.reshape(stack.geometry.L, *stack.along_a.shape[1:2], -1) for x in new]
    return [shaped[: len(tensors)], shaped[len(tensors) :]]


def _view(t: Tensor) -> Big:
    layout = Layout.of(t.param.shape, t.split.pair)
    see = lambda x: layout.see(x if t.param.ndim else x[..., None])
    deltas, mean = (t.mean[None], None) if t.deltas is None else (t.deltas, see(t.mean))
    diagonal = layout.see(t.ada.row) if layout.geometry.diagonal else None
    return Big(see(deltas), mean, see(t.param), see(t.ada.m), see(t.ada.v), diagonal)


class Piece(NamedTuple):
    """out[i, j] = source[begin + i·stride + j], of `rows` × `length` numbers."""

    source: int
    begin: int
    rows: int
    stride: int
    length: int

    @property
    def kind(self) -> "Piece":
        """What the kernel's code depends on; where a piece begins is an argument at run time."""
        return self._replace(begin=0)


def unpack(
    sources: Sequence[jax.Array], pieces: Sequence[Piece], tuning: Tuning
) -> list[jax.Array]:
    """The pieces [rows, length], in order."""
    flat = [source.reshape(-1) for source in sources]
    found = []
    if len(pieces) < FEW:
        return [_sliced(flat[piece.source], piece) for piece in pieces]
    for begin in range(0, len(pieces), MOST):
        some = pieces[begin : begin + MOST]
        begins = jnp.asarray([piece.begin for piece in some], jnp.int32)
        like = lambda piece: flat[piece.source].dtype
        outs = [jax.ShapeDtypeStruct((p.rows * p.length,), like(p)) for p in some]
        run = pl.pallas_call(
            bound(_program, tuple(piece.kind for piece in some)),
            grid=(len(some), max(piece.rows for piece in some)),
            in_specs=[whole(x.shape) for x in (begins, *flat)],
            out_specs=[whole(out.shape) for out in outs],
            out_shape=outs,
            interpret=tuning.interpret,
            name="learned_unpack",
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        )
        new = zip(run(begins, *flat), some, strict=True)
        found += [x.reshape(piece.rows, piece.length) for x, piece in new]
    return found


def _sliced(source: jax.Array, piece: Piece) -> jax.Array:
    begins = [piece.begin + i * piece.stride for i in range(piece.rows)]
    return jnp.stack([source[begin : begin + piece.length] for begin in begins])


def _program(kinds: tuple[Piece, ...], begins: Any, *refs: Any) -> None:
    """Copy a row of a piece; where others have more rows, some programs have no work."""
    ins, outs = refs[: -len(kinds)], refs[-len(kinds) :]
    number, row = pl.program_id(0), pl.program_id(1)
    both = zip(kinds, outs, strict=True)
    copies = [partial(_copy, kind, ins[kind.source], out) for kind, out in both]
    _branch(number, 0, copies, (begins[number], row))


def _branch(
    number: jax.Array, first: int, copies: Sequence[Any], given: tuple[jax.Array, jax.Array]
) -> None:
    """Run the copy of that number by halving: a hundred cases in a chain compile for seconds."""
    if len(copies) == 1:
        copies[0](*given)
        return
    half = len(copies) // 2
    low = lambda: _branch(number, first, copies[:half], given)
    high = lambda: _branch(number, first + half, copies[half:], given)
    jax.lax.cond(number < first + half, low, high)


def _copy(kind: Piece, source: Any, out: Any, begin: jax.Array, row: jax.Array) -> None:
    lanes = jnp.arange(LANES)

    def block(i: Any, carry: tuple[()]) -> tuple[()]:
        at = i * LANES + lanes
        live = (at < kind.length) & (row < kind.rows)
        x = triton.load(source.at[begin + row * kind.stride + at], mask=live, other=0.0)
        triton.store(out.at[row * kind.length + at], x, mask=live)
        return carry

    jax.lax.fori_loop(0, pl.cdiv(kind.length, LANES), block, ())
