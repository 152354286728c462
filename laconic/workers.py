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
from laconic.means import RobustMean, positive, weighted_mean, weighted_sum
from laconic.outer.relative import squared_norms

AXIS = "workers"
How = Literal["mean", "norms", "gather"]


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
        aggregate: a robust mean instead of the weighted one.

    Example:
        >>> import optax
        >>> import laconic
        >>> client = laconic.local_client(laconic.make_task("digits-mlp"), optax.sgd(0.1))
        >>> workers = laconic.Simulated(client, laconic.parse_compressor("int8"))
    """

    client: Client
    compressor: Compressor
    aggregate: RobustMean | None = None

    def map(self, phase: Callable) -> Callable:
        """`phase(shared, client, item)` over the first axis of clients and items."""
        return jax.vmap(phase, in_axes=(None, 0, 0))

    def combine(self, messages: Message, how: How, like: Any) -> Combined:
        """Decode the K messages, then line 9's mean; "gather" also keeps every worker's Δ, and
        "norms" its squared norms."""
        deltas, weights_K = decode(self.compressor, messages, like)
        if self.aggregate is not None:
            return _robust(self.aggregate, how, deltas, messages, weights_K)
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
        aggregate: a robust mean instead of the weighted one; every device then gets all messages.

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
    aggregate: RobustMean | None = None

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
        everywhere = jax.sharding.NamedSharding(self.mesh, whole)
        if self.aggregate is not None:
            messages = jax.lax.with_sharding_constraint(messages, everywhere)
            deltas, weights_K = decode(self.compressor, messages, like)
            return _robust(self.aggregate, how, deltas, messages, weights_K)

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


def _robust(
    aggregate: RobustMean, how: How, deltas: Any, messages: Message, weights_K: jax.Array
) -> Combined:
    """What a robust mean lets an outer optimizer see; of every worker's norms only the median."""
    check_robust(aggregate, how, messages.control)
    delta, extra, weights_K = aggregate.combine(deltas, messages.extra, weights_K)
    squares = aggregate.squares(squared_norms(deltas), weights_K) if how == "norms" else None
    return Combined(delta, extra, weights_K, worker_squares=squares)


def check_robust(aggregate: RobustMean | None, how: How, control: Any = ()) -> None:
    """Refuse a robust mean where attackers would enter beside it."""
    if aggregate is None:
        return
    if how == "gather":
        raise LaconicError(
            f"{aggregate.name} protects the mean delta, but this optimizer looks at each worker's "
            "own delta, an attacker's too: take one of the mean, such as lopt-a, or the plain mean."
        )
    if jax.tree.leaves(control):
        raise LaconicError(
            f"{aggregate.name} protects the mean delta, but control variates are summed beside it, "
            "an attacker's too: take fedavgm instead of scaffold, or the plain mean."
        )


def _present(weights_K: jax.Array) -> jax.Array:
    """1 for every present worker, whatever its weight, and 0 for the others."""
    return (weights_K > 0).astype(jnp.float32)
