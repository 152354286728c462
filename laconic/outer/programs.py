"""What one program of the GPU kernels does; `outer/kernels.py` says what the kernels are for and launches them.

A tensor is read in place as [L₀, A, L₁, B], A and B being its factored axes and L₀·L₁ = L the others; a vector is
[1, 1, 1, n] and has an accumulator of its own for every parameter ("diagonal"). A program works on `lanes` parameters
at a time and goes on down its rows.
Letters: n deltas (1 or K) · F features, padded to a power of two · N hidden units · G tensors of one shape.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.outer.products import product


class Geometry(NamedTuple):
    """A tensor as [L₀, A, L₁, B]; `diagonal` for vectors, whose accumulators are not factored."""

    L0: int
    A: int
    L1: int
    B: int
    diagonal: bool = False

    @property
    def L(self) -> int:
        """How many [A, B] layers there are."""
        return self.L0 * self.L1


class Big(NamedTuple):
    """What has a value for every parameter, of one tensor or of several laid one after another along L₀."""

    deltas: Any  # [n, L₀, A, L₁, B]
    mean: Any  # [L₀, A, L₁, B]; None if it is the only delta
    param: Any
    m: Any  # [3, L₀, A, L₁, B]
    v: Any
    diagonal: Any  # [3, L₀, A, L₁, B], of vectors, else None


class Small(NamedTuple):
    """What the G tensors of one shape share; layers count through all of them."""

    first: Any  # [1]: which of the tensors a launch begins with
    rates: Any  # [7]: 1 − β
    here: Any  # [n]: 1 for a worker that is there; None if nobody can be missing
    lengths: Any  # [G]: of vectors padded to one length, else None
    factors_a: Any  # [G·L, 3, A]: their product with those along B scales Δ and the momenta
    factors_b: Any  # [G·L, 3, B]


class Layers(NamedTuple):
    """φ as `apply` reads it: the first layer's weights with normalisers, and what rows and columns add to its sums."""

    w0: Any  # [G, F, N]
    by_a: Any  # [G·L, A, N], the bias and time included
    by_b: Any  # [G·L, B, N]
    w1: Any
    b1: Any
    w2: Any  # [2, N]
    b2: Any


class Change(NamedTuple):
    """W ← W − (share·step + decay·W); an absent worker's slot is filled with the mean or with 0."""

    share: float
    decay: float
    lam: float
    in_place: bool  # otherwise only the change of W is written, as updates in optax's sense


class Cut(NamedTuple):
    """How a tensor is cut into programs: `down` × `across` of them a layer, `rows` times `lanes` parameters each."""

    lanes: int
    width: int  # columns among the lanes; the other lanes are the rows below
    rows: int
    down: int
    across: int

    @property
    def tall(self) -> int:
        """Rows among the lanes."""
        return self.lanes // self.width

    @classmethod
    def of(cls, geometry: Geometry, lanes: int, rows: int) -> "Cut":
        """Lanes along B as far as it goes, and no more rows than there are."""
        width = min(lanes, max(16, pl.next_power_of_2(geometry.B)))
        tall = lanes // width
        rows = min(rows, pl.next_power_of_2(pl.cdiv(geometry.A, tall)))
        return cls(lanes, width, rows, pl.cdiv(geometry.A, tall * rows), pl.cdiv(geometry.B, width))


class Place(NamedTuple):
    """Where a program stands: its layer in its own arrays and among all tensors, its block of rows and of columns."""

    layer: jax.Array
    of_all: jax.Array
    tensor: jax.Array
    down: jax.Array
    across: jax.Array


class Lanes(NamedTuple):
    """Where a program's lanes stand, and what stays the same for them while it goes down its rows."""

    place: Place
    columns: jax.Array  # [lanes]
    row: jax.Array | None  # [lanes]: how far below the first, if they go over several rows
    length: Any  # of the rows
    rates: list[jax.Array]
    here: list[jax.Array]
    factors_b: list[jax.Array]


def squares(geometry: Geometry, cut: Cut, mean: Any, by_row: Any, by_column: Any) -> None:
    """Σ Δ² of a block: over its columns [layers, A, across] and over its rows [layers, down, B]."""
    place = _place(geometry, cut, None)
    rows = place.down * cut.rows * cut.tall + jnp.arange(cut.rows * cut.tall)
    columns = place.across * cut.width + jnp.arange(cut.width)
    live = (rows < geometry.A)[:, None] & (columns < geometry.B)[None, :]
    l0, l1 = _split(place.layer, geometry.L1)
    delta = triton.load(mean.at[l0, rows[:, None], l1, columns[None, :]], mask=live, other=0.0).astype(jnp.float32)
    square = delta * delta
    triton.store(by_row.at[place.layer, rows, place.across], jnp.sum(square, axis=1), mask=rows < geometry.A)
    triton.store(by_column.at[place.layer, place.down, columns], jnp.sum(square, axis=0), mask=columns < geometry.B)


def moments(geometry: Geometry, cut: Cut, named: Any, fill_mean: bool, *refs: Any) -> None:
    """Σ x² of every feature that differs from parameter to parameter, over this program's block [programs, F]."""
    *ins, out = refs
    small, big = named(ins)
    lanes, count = _lanes(geometry, cut, small), out.shape[1]

    def body(i: Any, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        a, live = _row(geometry, cut, lanes, i)
        features, _ = _features(geometry, big, small, lanes, fill_mean, a, live)
        return tuple(s + jnp.where(live, x * x, 0.0) for s, x in zip(sums, features, strict=True))

    sums = jax.lax.fori_loop(0, cut.rows, body, (jnp.zeros(cut.lanes, jnp.float32),) * count)
    for f, total in enumerate(sums):
        out[pl.program_id(0), f] = jnp.sum(total)


def apply(
    geometry: Geometry, cut: Cut, named: Any, fill_mean: bool, change: Change, how: tuple[str, str, bool], *refs: Any
) -> None:
    """Features again, the MLP, and everything that has a new value."""
    precision, first, interpret = how
    outs = 4 if geometry.diagonal else 3
    small, layers, big = named(refs[:-outs])
    new_param, new_m, new_v, *new_diagonal = refs[-outs:]
    lanes = _lanes(geometry, cut, small)
    place, columns, dot = lanes.place, lanes.columns, product(precision, interpret)
    w0, w1, b1 = layers.w0[place.tensor], layers.w1[...], layers.b1[...]
    of_direction, of_magnitude = layers.w2[0, :][None, :], layers.w2[1, :][None, :]
    direction_bias, magnitude_bias = layers.b2[0], layers.b2[1]
    hidden = jnp.arange(w1.shape[0])
    # The columns' share of the first layer stays in registers while the program goes down its rows.
    tile = lambda ref, index, live: triton.load(
        ref.at[place.of_all, index, hidden[None, :]], mask=jnp.broadcast_to(live, (cut.lanes, hidden.size)), other=0.0
    )
    inside = (columns < geometry.B)[:, None]
    second = jnp.broadcast_to(b1[None, :], (cut.lanes, hidden.size))
    by_b = None if layers.by_b is None else tile(layers.by_b, columns[:, None], inside)

    def body(i: Any, carry: None) -> None:
        a, live = _row(geometry, cut, lanes, i)
        features, (param, m_3, v, diagonal) = _features(geometry, big, small, lanes, fill_mean, a, live)
        if cut.tall == 1:
            by_a = layers.by_a[place.of_all, jnp.minimum(a, geometry.A - 1), :][None, :]
        else:
            by_a = tile(layers.by_a, a[:, None], (a < geometry.A)[:, None])
        h = jnp.broadcast_to(by_a, (cut.lanes, hidden.size)) if by_b is None else by_b + by_a
        if first == "dot":
            h = dot(h, _joined(features, w0.shape[0]), w0)
        else:
            for f, x in enumerate(features):
                h = h + x[:, None] * layers.w0[place.tensor, f, :][None, :]
        h = jnp.maximum(dot(second, jnp.maximum(h, 0.0), w1), 0.0)
        direction = jnp.sum(h * of_direction, axis=1) + direction_bias
        magnitude = jnp.sum(h * of_magnitude, axis=1) + magnitude_bias
        moved = change.share * (change.lam * direction * jnp.exp(change.lam * magnitude)) + change.decay * param
        write = partial(_write, geometry, place.layer, a, columns, live)
        write(new_param, (), param - moved if change.in_place else -moved)
        for c in range(3):
            write(new_m, (c,), m_3[c])
            if geometry.diagonal:
                write(new_diagonal[0], (c,), diagonal[c])
        write(new_v, (), v)

    jax.lax.fori_loop(0, cut.rows, body, None)


def _place(geometry: Geometry, cut: Cut, first: jax.Array | None) -> Place:
    """Programs go through the columns first, then down the rows, then through the layers."""
    block, across = _split(pl.program_id(0), cut.across)
    layer, down = _split(block, cut.down)
    begin = jnp.int32(0) if first is None else first
    own = jax.lax.div(layer, jnp.int32(geometry.L))
    return Place(layer, begin * geometry.L + layer, begin + own, down, across)


def _split(index: jax.Array, by: int) -> tuple[jax.Array, jax.Array]:
    return jax.lax.div(index, jnp.int32(by)), jax.lax.rem(index, jnp.int32(by))


def _lanes(geometry: Geometry, cut: Cut, small: Small) -> Lanes:
    place = _place(geometry, cut, small.first[0])
    lane = jnp.arange(cut.lanes)
    row, column = (None, lane) if cut.tall == 1 else _split(lane, cut.width)
    columns = place.across * cut.width + column
    length = geometry.B if small.lengths is None else small.lengths[place.tensor]
    here = [] if small.here is None else [small.here[k] for k in range(small.here.shape[0])]
    along = partial(_along, small.factors_b, place.of_all, columns, geometry.B)
    factors_b = [] if geometry.diagonal else [along(c) for c in range(3)]
    return Lanes(place, columns, row, length, [small.rates[c] for c in range(7)], here, factors_b)


def _row(geometry: Geometry, cut: Cut, lanes: Lanes, i: Any) -> tuple[jax.Array, jax.Array]:
    """The lanes' rows in step i, and which lanes are inside the tensor."""
    begin = (lanes.place.down * cut.rows + i) * cut.tall
    a = begin if lanes.row is None else begin + lanes.row
    return a, (lanes.columns < lanes.length) & (a < geometry.A)


def _features(
    geometry: Geometry, big: Big, small: Small, lanes: Lanes, fill_mean: bool, a: jax.Array, live: jax.Array
) -> tuple[list[jax.Array], tuple[jax.Array, list[jax.Array], jax.Array, list[jax.Array]]]:
    """The per-parameter features of the lanes from updated accumulators; and W, m, v and the diagonal ones."""
    l0, l1 = _split(lanes.place.layer, geometry.L1)
    at = (l0, a, l1, lanes.columns)
    read = lambda ref, *lead: triton.load(ref.at[(*lead, *at)], mask=live, other=0.0).astype(jnp.float32)
    decay = lambda c, old, new: (1 - lanes.rates[c]) * old + lanes.rates[c] * new
    deltas = [read(big.deltas, k) for k in range(big.deltas.shape[0])]
    mean = deltas[0] if big.mean is None else read(big.mean)
    if lanes.here:
        empty = mean if fill_mean else jnp.zeros_like(mean)
        deltas = [jnp.where(here > 0, delta, empty) for here, delta in zip(lanes.here, deltas, strict=True)]
    param, square = read(big.param), mean * mean
    m_3 = [decay(c, read(big.m, c), mean) for c in range(3)]
    v = decay(3, read(big.v), square)
    rsqrt_v = jax.lax.rsqrt(v + 1e-6)
    if geometry.diagonal:
        diagonal = [decay(4 + c, read(big.diagonal, c), square + 1e-30) for c in range(3)]
        of_delta = [jax.lax.rsqrt(jnp.maximum(r + 1e-9, 1e-9)) for r in diagonal]
        of_m = [jax.lax.rsqrt(r + 1e-6) for r in diagonal]
        more = [*diagonal, *(jax.lax.rsqrt(r + 1e-8) for r in diagonal)]
    else:
        along_a = partial(_along, small.factors_a, lanes.place.of_all, a, geometry.A)
        of_delta = [along_a(c) * factor for c, factor in enumerate(lanes.factors_b)]
        of_m, diagonal, more = of_delta, [], []
    features = [*deltas, param, *m_3, v, *(x * rsqrt_v for x in m_3), rsqrt_v]
    features += [mean * f for f in of_delta] + [x * f for x, f in zip(m_3, of_m, strict=True)] + more
    return features, (param, m_3, v, diagonal)


def _along(ref: Any, layer: jax.Array, index: jax.Array, length: int, c: int) -> jax.Array:
    """The c-th factor at a row, or at each lane's row or column."""
    if not index.shape:
        return ref[layer, c, jnp.minimum(index, length - 1)]
    return triton.load(ref.at[layer, c, index], mask=index < length, other=0.0)


def _joined(columns: Sequence[jax.Array], count: int) -> jax.Array:
    """Vectors [P] side by side as [P, count], the rest 0, in registers: pairs, then pairs of pairs, and so on."""
    parts = [*columns, *[jnp.zeros_like(columns[0])] * (count - len(columns))]
    while len(parts) > 1:
        half = len(parts) // 2
        pairs = zip(parts[:half], parts[half:], strict=True)
        parts = [jnp.concatenate([x[..., None], y[..., None]], axis=-1) for x, y in pairs]
    return parts[0].reshape(columns[0].shape[0], count)


def _write(
    geometry: Geometry, layer: jax.Array, a: jax.Array, columns: jax.Array, live: jax.Array, ref: Any, lead: Any, x: Any
) -> None:
    l0, l1 = _split(layer, geometry.L1)
    triton.store(ref.at[(*lead, l0, a, l1, columns)], x.astype(ref.dtype), mask=live)
