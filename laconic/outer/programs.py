"""What one program of the GPU kernels does; `outer/kernels.py` explains and launches the kernels.

A program works on `lanes` parameters at a time and goes on down its rows. Letters as in
`outer/layout.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.architecture import OF_FACTORED, OF_M, OF_V, SQUARE_EPSILON, epsilon_of
from laconic.outer.features import Fields, each_number, safe_rsqrt
from laconic.outer.layout import Big, Change, Cut, Geometry, Small
from laconic.outer.perceptron import perceptron


class Place(NamedTuple):
    """Where a program works."""

    layer: jax.Array  # in its own arrays
    of_all: jax.Array  # its layer among those of all tensors
    tensor: jax.Array
    down: jax.Array  # its block of rows
    across: jax.Array  # its block of columns


class Lanes(NamedTuple):
    """A program's lanes, and what stays the same for them while it goes down its rows."""

    place: Place
    columns: jax.Array  # [lanes]
    row: jax.Array | None  # [lanes]: how far below the first, if they go over several rows
    length: Any  # of a padded vector, else None
    rates: list[jax.Array]
    here: list[jax.Array]
    factors_b: list[jax.Array]


class Row(NamedTuple):
    """What a step reads of its lanes' parameters, as it lies in memory."""

    deltas: list[jax.Array]
    mean: jax.Array
    param: jax.Array
    m: list[jax.Array]
    v: jax.Array
    diagonal: list[jax.Array]
    factors_a: list[jax.Array]
    by_a: jax.Array  # [N], or [lanes, N] if the lanes go over several rows


def squares(geometry: Geometry, cut: Cut, *refs: Any) -> None:
    """Σ Δ² of a block: over its columns [layers, A, across] and over its rows [layers, down, B]."""
    *means, by_row, by_column = refs
    layers = by_row.shape[0] // len(means)

    def run(g: int, own: Any, mean: Any) -> None:
        place = _place(geometry, cut, own, 0)
        rows = place.down * cut.rows * cut.tall + jnp.arange(cut.rows * cut.tall)
        columns = place.across * cut.width + jnp.arange(cut.width)
        above = left = live = None
        if not cut.even(geometry):
            above, left = rows < geometry.A, columns < geometry.B
            live = above[:, None] & left[None, :]
        at = _offsets(geometry, place.layer, rows[:, None], columns[None, :])
        delta = _load(mean.at[at], live).astype(jnp.float32)
        square = delta * delta
        layer = g * layers + place.layer
        triton.store(by_row.at[layer, rows, place.across], jnp.sum(square, axis=1), mask=above)
        triton.store(by_column.at[layer, place.down, columns], jnp.sum(square, axis=0), mask=left)

    _each(cut, layers, means, run)


def moments(geometry: Geometry, cut: Cut, named: Any, fill_mean: bool, *refs: Any) -> None:
    """Σ x² of every per-parameter feature over this program's block [programs, F]."""
    *ins, out = refs
    small, *bigs = named(ins)
    programs = out.shape[0] // len(bigs)

    def run(g: int, own: Any, big: Big) -> None:
        lanes = _lanes(geometry, cut, small, g, own)

        def body(i: Any, sums: tuple[jax.Array, ...], row: Row) -> tuple[jax.Array, ...]:
            features, _ = _features(geometry, lanes, fill_mean, row)
            live = _live(geometry, cut, lanes, _index(cut, lanes, i))
            inside = lambda square: square if live is None else jnp.where(live, square, 0.0)
            return tuple(s + inside(x * x) for s, x in zip(sums, features, strict=True))

        read = partial(_read, geometry, cut, big, small, lanes, None)
        zeros = (jnp.zeros(cut.lanes, jnp.float32),) * out.shape[1]
        for f, total in enumerate(_down(cut.rows, 0, read, body, zeros)):
            out[g * programs + own, f] = jnp.sum(total)

    _each(cut, bigs[0].param.shape[0] // (geometry.A * geometry.B), bigs, run)


def apply(
    geometry: Geometry,
    cut: Cut,
    named: Any,
    fill_mean: bool,
    change: Change,
    tuning: Any,
    *refs: Any,
) -> None:
    """Features again, the MLP, and all new values written."""
    outs, count = 4 if geometry.diagonal else 3, len(named.kinds) - 2
    small, phi, *bigs = named(refs[: -outs * count])
    new = [refs[len(refs) - outs * (count - g) :][:outs] for g in range(count)]

    def run(g: int, own: Any, big: Big) -> None:
        new_param, new_m, new_v, *new_diagonal = new[g]
        lanes = _lanes(geometry, cut, small, g, own)
        place = lanes.place
        # The columns' share of the first layer stays in registers from row to row.
        by_b = None
        if phi.by_b is not None:
            by_b = _tile(phi.by_b, place.of_all, lanes.columns, geometry.B)
        outputs = perceptron(phi, place.tensor, by_b, cut.lanes, tuning)

        def body(i: Any, carry: tuple[()], row: Row) -> tuple[()]:
            features, (param, m_3, v, diagonal) = _features(geometry, lanes, fill_mean, row)
            by_a = row.by_a if len(row.by_a.shape) == 2 else row.by_a[None, :]
            direction, magnitude = outputs(features, by_a)
            step = change.lam * direction * jnp.exp(change.lam * magnitude)
            moved = change.share * step + change.decay * param
            a = _index(cut, lanes, i)
            live = _live(geometry, cut, lanes, a)
            at = _offsets(geometry, place.layer, a, lanes.columns)
            write = lambda ref, x, *lead: triton.store(
                ref.at[(*lead, at)], x.astype(ref.dtype), mask=live
            )
            write(new_param, param - moved if change.in_place else -moved)
            for c, m in enumerate(m_3):
                write(new_m, m, c)
            for c, r in enumerate(diagonal):
                write(new_diagonal[0], r, c)
            write(new_v, v)
            return carry

        read = partial(_read, geometry, cut, big, small, lanes, phi.by_a)
        _down(cut.rows, tuning.ahead, read, body, ())

    _each(cut, bigs[0].param.shape[0] // (geometry.A * geometry.B), bigs, run)


def _each(
    cut: Cut, layers: int, tensors: Sequence[Any], run: Callable[[int, Any, Any], None]
) -> None:
    """Run the tensor that this program belongs to, with its number among that tensor's programs."""
    tensor, own = _split(pl.program_id(0), layers * cut.down * cut.across)
    if len(tensors) == 1:
        run(0, own, tensors[0])
    else:
        jax.lax.switch(tensor, [partial(run, g, own, x) for g, x in enumerate(tensors)])


def _down(rows: int, ahead: int, read: Any, body: Any, carry: Any) -> Any:
    """Go down the rows; with `ahead` each is read while the one before it is worked on."""
    if not ahead or rows == 1:
        return jax.lax.fori_loop(0, rows, lambda i, carry: body(i, carry, read(i, None)), carry)

    def step(i: Any, both: Any) -> Any:
        row, carry = both
        following = read(i + 1, i + 1 < rows)
        return following, body(i, carry, row)

    return jax.lax.fori_loop(0, rows, step, (read(0, None), carry))[1]


def _place(geometry: Geometry, cut: Cut, program: jax.Array, begin: Any) -> Place:
    """Programs go through the columns first, then down the rows, then through the layers."""
    block, across = _split(program, cut.across)
    layer, down = _split(block, cut.down)
    own = jax.lax.div(layer, jnp.int32(geometry.L))
    return Place(layer, begin * geometry.L + layer, begin + own, down, across)


def _split(index: jax.Array, by: int) -> tuple[jax.Array, jax.Array]:
    return jax.lax.div(index, jnp.int32(by)), jax.lax.rem(index, jnp.int32(by))


def _lanes(geometry: Geometry, cut: Cut, small: Small, g: int, program: jax.Array) -> Lanes:
    place = _place(geometry, cut, program, small.first[0] + g)
    lane = jnp.arange(cut.lanes)
    row, column = (None, lane) if cut.tall == 1 else _split(lane, cut.width)
    columns = place.across * cut.width + column
    length = None if small.lengths is None else small.lengths[place.tensor]
    here = [] if small.here is None else [small.here[k] for k in range(small.here.shape[0])]
    along = partial(_along, small.factors_b, place.of_all, columns, geometry.B)
    factors_b = [] if geometry.diagonal else [along(c) for c in range(small.factors_b.shape[1])]
    rates = [small.rates[c] for c in range(small.rates.shape[0])]
    return Lanes(place, columns, row, length, rates, here, factors_b)


def _index(cut: Cut, lanes: Lanes, i: Any) -> jax.Array:
    """The row of the lanes in step i, or each one's own."""
    begin = (lanes.place.down * cut.rows + i) * cut.tall
    return begin if lanes.row is None else begin + lanes.row


def _live(geometry: Geometry, cut: Cut, lanes: Lanes, a: jax.Array) -> jax.Array | None:
    """Which lanes are inside the tensor; None if it is known that all are."""
    if lanes.length is None and cut.even(geometry):
        return None
    end = geometry.B if lanes.length is None else lanes.length
    return (lanes.columns < end) & (a < geometry.A)


def _offsets(geometry: Geometry, layer: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """Where parameters lie in [L₀, A, L₁, B]; every array of a tensor shares them."""
    l0, l1 = _split(layer, geometry.L1)
    return ((l0 * geometry.A + a) * geometry.L1 + l1) * geometry.B + b


def _load(at: Any, live: jax.Array | None) -> jax.Array:
    return triton.load(at) if live is None else triton.load(at, mask=live, other=0.0)


def _read(
    geometry: Geometry,
    cut: Cut,
    big: Big,
    small: Small,
    lanes: Lanes,
    by_a: Any,
    i: Any,
    inside: Any,
) -> Row:
    """All that step i needs from memory; `inside` is false past the program's last row."""
    a = _index(cut, lanes, i)
    live = _live(geometry, cut, lanes, a)
    at = _offsets(geometry, lanes.place.layer, a, lanes.columns)
    if inside is not None:
        live = jnp.broadcast_to(inside, lanes.columns.shape) if live is None else live & inside
    read = lambda ref, *lead: _load(ref.at[(*lead, at)], live)
    deltas = [read(big.deltas, k) for k in range(big.deltas.shape[0])]
    mean = deltas[0] if big.mean is None else read(big.mean)
    m_3, diagonal = [read(big.m, c) for c in range(big.m.shape[0])], []
    layer, factors_a = lanes.place.of_all, []
    if geometry.diagonal:
        diagonal = [read(big.diagonal, c) for c in range(big.diagonal.shape[0])]
    else:
        along = partial(_along, small.factors_a, layer, a, geometry.A)
        factors_a = [along(c) for c in range(small.factors_a.shape[1])]
    if by_a is None:
        added = jnp.float32(0)
    elif lanes.row is None:
        added = by_a[layer, jnp.minimum(a, geometry.A - 1), :]
    else:
        added = _tile(by_a, layer, a, geometry.A)
    return Row(deltas, mean, read(big.param), m_3, read(big.v), diagonal, factors_a, added)


def _features(
    geometry: Geometry, lanes: Lanes, fill_mean: bool, row: Row
) -> tuple[list[jax.Array], tuple[jax.Array, list[jax.Array], jax.Array, list[jax.Array]]]:
    """The lanes' features from updated accumulators; and W, m, v and diagonal accumulators."""
    row = jax.tree.map(lambda x: x.astype(jnp.float32), row)
    decay = lambda c, old, new: (1 - lanes.rates[c]) * old + lanes.rates[c] * new
    mean, deltas = row.mean, row.deltas
    if lanes.here:
        empty = mean if fill_mean else jnp.zeros_like(mean)
        deltas = [
            jnp.where(here > 0, delta, empty)
            for here, delta in zip(lanes.here, deltas, strict=True)
        ]
    square = mean * mean
    m_3 = [decay(OF_M.start + c, old, mean) for c, old in enumerate(row.m)]
    v = decay(OF_V, row.v, square)
    diagonal = [
        decay(OF_FACTORED.start + c, old, square + SQUARE_EPSILON)
        for c, old in enumerate(row.diagonal)
    ]
    if geometry.diagonal:
        of_delta = [(safe_rsqrt(r + epsilon_of("factored_delta")),) for r in diagonal]
        of_m = [(jax.lax.rsqrt(r + epsilon_of("factored_m")),) for r in diagonal]
    else:
        of_delta = [(a * b,) for a, b in zip(row.factors_a, lanes.factors_b, strict=True)]
        of_m = of_delta
    fields = Fields(deltas, mean, row.param, m_3, v, diagonal, diagonal, of_delta, of_m)
    found = [x for feature in geometry.features for x in each_number(feature, fields)]
    return found, (row.param, m_3, v, diagonal)


def _tile(ref: Any, layer: jax.Array, index: jax.Array, length: int) -> jax.Array:
    """[lanes, N]: what each lane's row or column adds to the first layer."""
    hidden = jnp.arange(ref.shape[2])
    inside = jnp.broadcast_to((index < length)[:, None], (index.shape[0], hidden.size))
    return triton.load(ref.at[layer, index[:, None], hidden[None, :]], mask=inside, other=0.0)


def _along(ref: Any, layer: jax.Array, index: jax.Array, length: int, c: int) -> jax.Array:
    """The c-th factor at a row, or at each lane's row or column."""
    if not index.shape:
        return ref[layer, c, jnp.minimum(index, length - 1)]
    return triton.load(ref.at[layer, c, index], mask=index < length, other=0.0)
