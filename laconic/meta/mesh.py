"""Groups of runs spread over devices: the mesh, and how arrays get onto it, also where it spans
several processes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from laconic.errors import LaconicError

AXIS = "groups"


def group_mesh(devices: int | None = None) -> Mesh:
    """A mesh along the axis of groups: so many devices (default: all), the same number of each
    process."""
    processes, found = jax.process_count(), jax.devices()
    count = len(found) if devices is None else devices
    if not 1 <= count <= len(found):
        raise LaconicError(
            f"a mesh of {count} devices cannot be made of the {len(found)} there are."
        )
    share = [
        [d for d in found if d.process_index == i][: count // processes] for i in range(processes)
    ]
    chosen = [device for part in share for device in part]
    if len(chosen) != count:
        raise LaconicError(
            f"{processes} processes cannot give the same number of their devices to a mesh of "
            f"{count}: choose another "
            f"multiple of {processes} (--devices counts those of all processes)."
        )
    return jax.make_mesh((count,), (AXIS,), axis_types=(AxisType.Auto,), devices=chosen)


def put(tree: Any, shardings: Any) -> Any:
    """`jax.device_put` that reaches the devices of other processes too; every process gives the
    same whole tree."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    return jax.tree.map(
        lambda sharding, part: jax.tree.map(partial(_put_leaf, sharding), part), shardings, tree
    )


def _put_leaf(sharding: NamedSharding, x: Any) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _put_leaf(sharding, jax.random.key_data(x)), impl=jax.random.key_impl(x)
        )
    array = np.asarray(x)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
