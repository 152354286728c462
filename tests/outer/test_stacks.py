"""Pieces of long arrays, copied many at a time, against NumPy's slices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.outer import stacks
from laconic.outer.kernels import Tuning, bound
from laconic.outer.stacks import Piece, unpack

INTERPRETED = Tuning(interpret=True)


def expected(sources, piece):
    flat = np.asarray(sources[piece.source]).reshape(-1)
    begins = [piece.begin + i * piece.stride for i in range(piece.rows)]
    return np.stack([flat[begin : begin + piece.length] for begin in begins])


def pieces_of(rng, sizes, count):
    """Pieces of one and of three rows, short, as long as a program's lanes, and longer, anywhere in
    either source."""
    found = []
    for _ in range(count):
        source, rows = int(rng.integers(len(sizes))), int(rng.choice([1, 3]))
        length = int(rng.choice([1, 7, 100, 1024, 1500]))
        stride = length + int(rng.integers(5)) if rows > 1 else 0
        begin = int(rng.integers(sizes[source] - (rows - 1) * stride - length))
        found.append(Piece(source, begin, rows, stride, length))
    return found


@pytest.mark.parametrize("count", [1, stacks.FEW, 2 * 8 + 5])
def test_every_piece_is_the_slice(monkeypatch, count):
    monkeypatch.setattr(stacks, "MOST", 8)
    rng, sizes = np.random.default_rng(count), (6_000, 9_000)
    sources = [
        jnp.asarray(rng.normal(size=(3, sizes[0] // 3)), jnp.float32),
        jnp.asarray(rng.normal(size=sizes[1]), jnp.bfloat16),
    ]
    pieces = pieces_of(rng, sizes, count)
    found = jax.jit(lambda *sources: unpack(sources, pieces, INTERPRETED))(*sources)
    assert len(found) == count
    for piece, got in zip(pieces, found, strict=True):
        assert got.dtype == sources[piece.source].dtype
        np.testing.assert_array_equal(np.asarray(got), expected(sources, piece))


def test_pieces_of_several_models_in_a_vmap():
    rng = np.random.default_rng(7)
    source = jnp.asarray(rng.normal(size=(2, 40)), jnp.float32)
    pieces = [Piece(0, begin, 3, 11, length) for begin, length in ((0, 7), (3, 1), (9, 9), (5, 5))]
    found = jax.jit(jax.vmap(lambda x: unpack([x], pieces, INTERPRETED)))(source)
    for piece, got in zip(pieces, found, strict=True):
        np.testing.assert_array_equal(
            np.asarray(got), np.stack([expected([x], piece) for x in source])
        )


def test_launches_of_the_same_pattern_share_their_code():
    """Where pieces begin is an argument: a second launch of the same lengths has the same kernel,
    object for object."""
    pattern = [Piece(0, 0, 1, 0, 5), Piece(0, 0, 3, 20, 7)]
    at = lambda begin: tuple(piece._replace(begin=begin).kind for piece in pattern)
    assert bound(stacks._program, at(3)) is bound(stacks._program, at(11))
    assert bound(stacks._program, at(3)) is not bound(stacks._program, at(3)[:1])
