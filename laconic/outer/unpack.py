"""Many short pieces of a few long arrays, each as an array of its own, by one kernel for a hundred
of them.

XLA copies every piece by a launch of its own. A model of a hundred layers has hundreds of small
vectors, and launching the copies then takes a tenth of the whole step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from laconic.outer.kernels import Tuning, bound, whole

FEW = 4  # pieces that are as well copied by XLA
# pieces of a launch: a kernel's arguments are 4 KiB at most, and each piece lengthens its code
MOST = 96
LANES = 1024


class Piece(NamedTuple):
    """out[i, j] = source[begin + i·stride + j], of `rows` × `length` numbers."""

    source: int
    begin: int
    rows: int
    stride: int
    length: int

    @property
    def kind(self) -> "Piece":
        """What the kernel's code depends on: where it begins is told at run time, so that launches
        share their code."""
        return self._replace(begin=0)


def unpack(
    sources: Sequence[jax.Array], pieces: Sequence[Piece], tuning: Tuning
) -> list[jax.Array]:
    """The pieces [rows, length], in order."""
    flat, found = [source.reshape(-1) for source in sources], []
    if len(pieces) < FEW:
        return [_sliced(flat[piece.source], piece) for piece in pieces]
    for begin in range(0, len(pieces), MOST):
        some = pieces[begin : begin + MOST]
        begins = jnp.asarray([piece.begin for piece in some], jnp.int32)
        outs = [
            jax.ShapeDtypeStruct((piece.rows * piece.length,), flat[piece.source].dtype)
            for piece in some
        ]
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
        found += [
            x.reshape(piece.rows, piece.length)
            for x, piece in zip(run(begins, *flat), some, strict=True)
        ]
    return found


def _sliced(source: jax.Array, piece: Piece) -> jax.Array:
    begins = [piece.begin + i * piece.stride for i in range(piece.rows)]
    return jnp.stack([source[begin : begin + piece.length] for begin in begins])


def _program(kinds: tuple[Piece, ...], begins: Any, *refs: Any) -> None:
    """Copy a row of a piece; where others have more rows, some programs have no work."""
    ins, outs = refs[: -len(kinds)], refs[-len(kinds) :]
    number, row = pl.program_id(0), pl.program_id(1)
    copies = [
        partial(_copy, kind, ins[kind.source], out) for kind, out in zip(kinds, outs, strict=True)
    ]
    _branch(number, 0, copies, (begins[number], row))


def _branch(
    number: jax.Array, first: int, copies: Sequence[Any], given: tuple[jax.Array, jax.Array]
) -> None:
    """Run the copy of that number by halving: a chain of a hundred cases takes Triton many seconds
    to compile."""
    if len(copies) == 1:
        copies[0](*given)
        return
    half = len(copies) // 2
    low = lambda: _branch(number, first, copies[:half], given)
    jax.lax.cond(
        number < first + half, low, lambda: _branch(number, first + half, copies[half:], given)
    )


def _copy(kind: Piece, source: Any, out: Any, begin: jax.Array, row: jax.Array) -> None:
    lanes = jnp.arange(LANES)

    def block(i: Any, carry: tuple[()]) -> tuple[()]:
        at = i * LANES + lanes
        live = (at < kind.length) & (row < kind.rows)
        x = triton.load(source.at[begin + row * kind.stride + at], mask=live, other=0.0)
        triton.store(out.at[row * kind.length + at], x, mask=live)
        return carry

    jax.lax.fori_loop(0, pl.cdiv(kind.length, LANES), block, ())
