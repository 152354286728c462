"""Where workers run: all on one device (`Simulated`) or over the devices of a mesh (`Meshed`).

Only this file knows where. Both run the same `local_phase` and combine the same messages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

from laconic.client import Client, Message
from laconic.compress import Compressor
from laconic.errors import LaconicError
from laconic.outer.relative import squared_norms

AXIS = "workers"
How = Literal["mean", "norms", "gather"]
UNROLLED = 32  # workers up to which a sum over them is written out


class Combined(NamedTuple):
    """The messages of a round as the server sees them."""

    mean_delta: Any  # a weighted mean
    extra: Any  # a weighted mean
    weights_K: jax.Array
    worker_deltas: Any = None  # leaves [K, …], if the server gathers
    control: Any = ()  # the sum of the present workers' changes, divided by K
    worker_squares: Any = None  # leaves [K], every worker's ‖Δ‖², if the server asks for norms


@dataclass(frozen=True)
class Simulated:
    """K workers as one `vmap` on one device.

    Args:
        client: what each worker does.
        compressor: how messages are encoded.

    Example:
        >>> import optax
        >>> import laconic
        >>> client = laconic.local_client(laconic.make_task("digits-mlp"), optax.sgd(0.1))
        >>> workers = laconic.Simulated(client, laconic.parse_compressor("int8"))
    """

    client: Client
    compressor: Compressor

    def map(self, phase: Callable) -> Callable:
        """`phase(shared, client, item)` over the first axis of clients and items."""
        return jax.vmap(phase, in_axes=(None, 0, 0))

    def combine(self, messages: Message, how: How, like: Any) -> Combined:
        """Decode the K messages, then line 9's mean; "gather" also keeps every worker's Δ, and
        "norms" its squared norms."""
        deltas, weights_K = decode(self.compressor, messages, like)
        mean_delta, extra = weighted_mean((deltas, messages.extra), weights_K)
        each_K = _present(weights_K) / len(weights_K)
        control = jax.tree.map(partial(weighted_sum, shares_K=each_K), messages.control)
        kept = deltas if how == "gather" else None
        squares = squared_norms(deltas) if how == "norms" else None
        return Combined(mean_delta, extra, weights_K, kept, control, squares)


@dataclass(frozen=True)
class Meshed:
    """K workers over the devices of a mesh; each device runs K/devices of them.

    Args:
        client: what each worker does.
        compressor: how messages are encoded.
        mesh: a mesh with an axis named "workers", as `worker_mesh` makes it.

    Example:
        >>> import optax
        >>> import laconic
        >>> client = laconic.local_client(laconic.make_task("digits-mlp"), optax.sgd(0.1))
        >>> dense = laconic.parse_compressor("dense")
        >>> workers = laconic.Meshed(client, dense, laconic.worker_mesh(1))
    """

    client: Client
    compressor: Compressor
    mesh: Mesh

    def map(self, phase: Callable) -> Callable:
        """As `Simulated.map`, each device over its own share of the workers."""

        def local(shared: Any, clients: Any, items: Any) -> Any:
            # Without the cast, gradients of the replicated weights would be summed over devices.
            shared = jax.tree.map(lambda x: jax.lax.pcast(x, AXIS, to="varying"), shared)
            return jax.vmap(phase, in_axes=(None, 0, 0))(shared, clients, items)

        def spread(shared: Any, clients: Any, items: Any) -> Any:
            check_divides(jax.tree.leaves(items)[0].shape[0], self.mesh)
            split, whole = PartitionSpec(AXIS), PartitionSpec()
            run = jax.shard_map(
                local, mesh=self.mesh, in_specs=(whole, split, split), out_specs=split
            )
            return run(shared, clients, items)

        return spread

    def combine(self, messages: Message, how: How, like: Any) -> Combined:
        """As `Simulated.combine`, by sums on and then over devices; the result is replicated."""
        split, whole = PartitionSpec(AXIS), PartitionSpec()

        def local(messages: Message, like: Any) -> tuple[Any, Any, Any, Any]:
            deltas, weights_K = decode(self.compressor, messages, like)
            total = jax.lax.psum(jnp.sum(weights_K), AXIS)
            sums = jax.tree.map(
                partial(weighted_sum, shares_K=weights_K / positive(total)),
                (deltas, messages.extra),
            )
            each_K = _present(weights_K) / (len(weights_K) * self.mesh.shape[AXIS])
            sums = (*sums, jax.tree.map(partial(weighted_sum, shares_K=each_K), messages.control))
            floats = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
            add = lambda x: jax.lax.psum(x, AXIS) if floats(x) else jax.lax.pmax(x, AXIS)
            squares = squared_norms(deltas) if how == "norms" else None
            kept = deltas if how == "gather" else None
            return jax.tree.map(add, sums), weights_K, kept, squares

        run = jax.shard_map(
            local, mesh=self.mesh, in_specs=(split, whole), out_specs=(whole, split, split, split)
        )
        (mean_delta, extra, control), *seen = run(messages, like)
        everywhere = jax.sharding.NamedSharding(self.mesh, whole)
        weights_K, deltas, squares = jax.lax.with_sharding_constraint(seen, everywhere)
        return Combined(mean_delta, extra, weights_K, deltas, control, squares)


Workers = Simulated | Meshed


def check_divides(K: int, mesh: Mesh) -> None:
    """Every device must run the same number of workers."""
    devices = mesh.shape[AXIS]
    if K % devices:
        raise LaconicError(
            f"{K} workers do not divide over {devices} devices; choose K a multiple of {devices}."
        )


def worker_mesh(devices: int | None = None) -> Mesh:
    """A mesh of devices along the workers' axis, for `Meshed`.

    Args:
        devices: how many of JAX's devices; None: all.

    Returns:
        A `jax.sharding.Mesh` with the axis "workers".

    Example:
        >>> from laconic import worker_mesh
        >>> dict(worker_mesh(1).shape)
        {'workers': 1}
    """
    here = len(jax.devices())
    count = here if devices is None else devices
    if not 1 <= count <= here:
        raise LaconicError(
            f"a mesh of {count} devices cannot be made of the {here} there are; ask for 1 to "
            f"{here}."
        )
    return jax.make_mesh(
        (count,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
    )


def decode(compressor: Compressor, messages: Message, like: Any) -> tuple[Any, jax.Array]:
    """Every worker's Δ (leaves [K, …]) and weight."""
    deltas = jax.vmap(compressor.decode, in_axes=(0, None))(messages.delta, like)
    return deltas, jnp.asarray(messages.weight, jnp.float32)


def weighted_mean(tree: Any, weights_K: jax.Array) -> Any:
    """Σ w_k x_k / Σ w_k over the first axis, 0 if no weight is positive; see `weighted_sum`."""
    shares_K = weights_K / positive(jnp.sum(weights_K))
    return jax.tree.map(partial(weighted_sum, shares_K=shares_K), tree)


def _present(weights_K: jax.Array) -> jax.Array:
    """1 for every present worker, whatever its weight, and 0 for the others."""
    return (weights_K > 0).astype(jnp.float32)


def positive(total: jax.Array) -> jax.Array:
    """A sum of weights that is safe to divide by."""
    return jnp.where(total > 0, total, 1.0)


def weighted_sum(x_K: jax.Array, shares_K: jax.Array) -> jax.Array:
    """Σ_k s_k x_k, where a share of 0 drops even NaN; of integers and flags the largest."""
    if not jnp.issubdtype(x_K.dtype, jnp.floating):
        lowest = False if x_K.dtype == bool else jnp.iinfo(x_K.dtype).min
        here = jnp.broadcast_to((shares_K > 0).reshape(-1, *[1] * (x_K.ndim - 1)), x_K.shape)
        return jnp.max(x_K, axis=0, where=here, initial=lowest)

    # In bfloat16 three thirds would be more than one.
    wide = jnp.float32 if x_K.dtype.itemsize < 4 else x_K.dtype
    shares_K = shares_K.astype(wide)

    def part(k: int | jax.Array) -> jax.Array:
        return jnp.where(shares_K[k] > 0, x_K[k].astype(wide) * shares_K[k], 0)

    # Written out, the sum is one pass over memory; a reduction is 40 times slower on CPUs.
    if x_K.shape[0] > UNROLLED:
        start = jnp.zeros_like(x_K[0], wide)
        total = jax.lax.fori_loop(0, x_K.shape[0], lambda k, total: total + part(k), start)
    else:
        total = sum(map(part, range(1, x_K.shape[0])), part(0))
    return total.astype(x_K.dtype)
