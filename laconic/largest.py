"""Where the k largest magnitudes of a vector are, without sorting the vector.

A float32 that is not negative orders like its bits read as an integer, infinity above all finite
numbers and NaN above infinity. So the k-th largest magnitude is found one bit at a time, from the
highest: a bit is in it if at least k entries reach the number that the bit would make. These 31
passes only count, which a GPU does many times faster than it sorts; only the k that are kept are
sorted in the end.
"""

import jax
import jax.numpy as jnp

BITS = 31  # of a float32 without its sign


def largest(x_N: jax.Array, k: int) -> jax.Array:
    """Indices [k] of the largest |x|, the largest first; equal ones in order, NaN first of all."""
    # A CPU has a partial sort, which for k = n/100 is several times faster than 31 passes over n.
    return jax.lax.platform_dependent(
        jax.lax.stop_gradient(x_N),
        cpu=lambda x: by_partial_sort(x, k),
        default=lambda x: by_bisection(x, k),
    )


def by_partial_sort(x_N: jax.Array, k: int) -> jax.Array:
    """`largest` by XLA's own top-k."""
    return jax.lax.top_k(jnp.abs(x_N), k)[1]


def by_bisection(x_N: jax.Array, k: int) -> jax.Array:
    """`largest` by counting: the threshold first, then the places, then their order."""
    size_N = jax.lax.bitcast_convert_type(jnp.abs(x_N), jnp.uint32)
    threshold = kth_largest(size_N, k)
    above_N, equal_N = size_N > threshold, size_N == threshold
    room = k - jnp.sum(above_N, dtype=jnp.int32)  # of those at the threshold the first are kept
    equal_so_far_N = jnp.minimum(jnp.cumsum(equal_N, dtype=jnp.int32), room)
    kept_N = jnp.cumsum(above_N, dtype=jnp.int32) + equal_so_far_N
    places_k = jnp.searchsorted(kept_N, jnp.arange(1, k + 1, dtype=jnp.int32)).astype(jnp.int32)
    return jax.lax.sort((~size_N[places_k], places_k), num_keys=1, is_stable=True)[1]


def kth_largest(size_N: jax.Array, k: int) -> jax.Array:
    """The largest number below 2³¹ that at least k of N uint32 reach."""

    def with_bit(i: jax.Array, found: jax.Array) -> jax.Array:
        tried = found | jnp.uint32(1) << (BITS - 1 - i).astype(jnp.uint32)
        return jnp.where(jnp.sum(size_N >= tried, dtype=jnp.int32) >= k, tried, found)

    # The sum of nothing: inside `shard_map` it differs by device, as what is found does.
    zero = jnp.sum(size_N[:0], dtype=jnp.uint32)
    return jax.lax.fori_loop(0, BITS, with_bit, zero)
