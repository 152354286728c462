"""The devices of one process: each local step's minibatch is split over them.

One program runs on all of them, and its meaning is that of one device: weights, the local
optimizer and the message are the same on each, sums over a minibatch are sums over devices. So
BatchNorm sees the whole minibatch and a random mask is drawn for all of it, as in the simulator.
Everything else of a round, the outer step and the guard among it, stays on the first device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from laconic.data.feed import count_rows
from laconic.engines.devices import Devices, check_devices, check_divides
from laconic.errors import LaconicError
from laconic.tasks.base import Task

AXIS = "examples"


@dataclass(frozen=True)
class Machine:
    """Some devices of this process, over which minibatches are split.

    Example:
        >>> import jax
        >>> Machine.of(jax.local_devices()[:1]).mesh.size
        1
    """

    mesh: Mesh

    @staticmethod
    def of(devices: Sequence[Any]) -> "Machine":
        """A machine of these devices."""
        types = (AxisType.Auto,)
        return Machine(jax.make_mesh((len(devices),), (AXIS,), axis_types=types, devices=devices))

    @property
    def whole(self) -> NamedSharding:
        """How an array lies that every device has a copy of."""
        return NamedSharding(self.mesh, PartitionSpec())

    def everywhere(self, tree: Any) -> Any:
        """A pytree with a copy on every device."""
        return jax.device_put(tree, self.whole)

    def first(self, tree: Any) -> Any:
        """What lies everywhere, as the first device holds it; nothing is copied."""
        return jax.tree.map(lambda x: x.addressable_data(0), tree)

    def apart(self, batches: Any) -> Any:
        """Minibatches with leaves [workers, H, B, …], each device with its share of the B."""
        self.check_divides(jax.tree.leaves(batches)[0].shape[2])
        share = NamedSharding(self.mesh, PartitionSpec(None, None, AXIS))
        return jax.device_put(batches, share)

    def split(self, task: Task) -> Task:
        """The task with a loss that takes each minibatch's rows from all devices."""
        share = NamedSharding(self.mesh, PartitionSpec(AXIS))

        def loss(params: Any, model_state: Any, batch: Any, key: jax.Array) -> Any:
            rows = count_rows(batch)
            self.check_divides(rows)
            spread = lambda x: (
                jax.lax.with_sharding_constraint(x, share) if x.shape[:1] == (rows,) else x
            )
            return task.loss(params, model_state, jax.tree.map(spread, batch), key)

        return replace(task, loss=loss)

    def check_divides(self, examples: int) -> None:
        """Every device takes the same number of a minibatch's examples."""
        check_divides(examples, self.mesh.size)


def local_devices(devices: Devices, batch: int) -> list[Any]:
    """So many devices of this process, the first ones, to split minibatches of `batch` over."""
    here = jax.local_devices()
    if devices == "all":
        check_divides(batch, len(here))
        return here
    check_devices(devices, batch)
    if devices > len(here):
        raise LaconicError(
            f"{devices} devices were asked for, and this process has {len(here)} "
            f"({here[0].device_kind}, platform {here[0].platform}): {_more(here[0], devices)}, or "
            f"ask for at most {len(here)} with --devices."
        )
    return here[:devices]


def _more(device: Any, wanted: int) -> str:
    """How a process comes by more devices."""
    if device.platform == "cpu":
        return (
            f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted} divides the CPU in so many"
        )
    if device.platform == "gpu":
        return "see what CUDA_VISIBLE_DEVICES leaves it"
    return f"see which {device.platform} devices it is given"
