"""The learned step with its state sharded: each device of a mesh updates its part of every tensor.

Accumulators are four numbers a parameter and the factored vectors; no device keeps more than its
part of them. A tensor is split along its longest axis that the devices divide; one without such an
axis stays whole on every device. Means along a split axis and the second moments of features are
added up over the devices, and nothing else is sent.

    mesh = shard_mesh()
    outer = sharded(LearnedOptimizer("lopt-a"), theta, mesh)
    state = outer.tx.init(params)                           # in parts
    updates, state = outer.tx.update(mean, state, params)   # in parts; the inputs may be anywhere

`placements(params, mesh)` says where to put parameters so that none has to move in any round.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from laconic.errors import LaconicError
from laconic.outer.base import OuterOptimizer
from laconic.outer.features import Ada
from laconic.outer.layout import Split
from laconic.outer.learned import LearnedOptimizer, LearnedState
from laconic.outer.relative import RelativeOptimizer
from laconic.outer.tensor import Theta

AXIS = "shards"
WHOLE = PartitionSpec()


def shard_mesh(devices: int | None = None) -> Mesh:
    """A mesh of the first `devices` devices (default: all)."""
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


def split_of(shape: tuple[int, ...], mesh: Mesh) -> Split:
    """Along the longest axis that the devices divide; of equal ones the first (adjacent parts)."""
    devices = mesh.shape[_axis(mesh)]
    axes = [axis for axis, n in enumerate(shape) if n and n % devices == 0]
    return Split(shape, max(axes, key=lambda axis: (shape[axis], -axis), default=None), _axis(mesh))


def placements(params: Any, mesh: Mesh) -> Any:
    """Where each tensor's parts lie, as shardings for `jax.device_put`."""
    return jax.tree.map(lambda p: NamedSharding(mesh, _spec(split_of(p.shape, mesh))), params)


def sharded(
    learned: LearnedOptimizer | RelativeOptimizer,
    theta: Theta,
    mesh: Mesh,
    *,
    scale: float = 1.0,
    weight_decay: float = 0.0,
    fill: str = "mean",
    horizon: int | None = None,
    path: str = "auto",
    accumulators: str = "float32",
) -> OuterOptimizer:
    """`learned(theta, …)` over the devices of a mesh with one axis, with the same options."""
    if not isinstance(learned, LearnedOptimizer):
        raise LaconicError(
            f"{learned.architecture} has no kernels of its own: place its parameters and state on "
            "the mesh, and a jitted update is spread over the devices by JAX."
        )
    make = partial(learned, theta, scale=scale, weight_decay=weight_decay, fill=fill)
    make = partial(make, path=path, accumulators=accumulators)
    _axis(mesh)

    def init(params: Any) -> LearnedState:
        shapes = jax.eval_shape(make().tx.init, params)
        placed = partial(NamedSharding, mesh)
        zeros = lambda spec, like: jnp.zeros(like.shape, like.dtype, device=placed(spec))
        return jax.tree.map(zeros, _state_specs(shapes, params, mesh), shapes)

    def run(
        choose: Callable[[OuterOptimizer], Any], mean: Any, state: Any, params: Any, seen: Any
    ) -> Any:
        splits = [split_of(p.shape, mesh) for p in jax.tree.leaves(params)]
        take = choose(make(splits=splits))
        own = jax.tree.map(lambda p: _spec(split_of(p.shape, mesh)), params)
        kept = _state_specs(state, params, mesh)
        deltas = None
        if seen[0] is not None:
            deltas = jax.tree.map(lambda spec: PartitionSpec(None, *spec), own)

        def local(mean: Any, state: Any, params: Any, deltas: Any, weights: Any) -> Any:
            return take(mean, state, params, worker_deltas=deltas, weights=weights)

        specs = (own, kept, own, deltas, None if seen[1] is None else WHOLE)
        # Loops over tiles begin with plain zeros, which `check_vma` refuses.
        over = partial(jax.shard_map, mesh=mesh, check_vma=False)
        return over(local, in_specs=specs, out_specs=(own, kept))(mean, state, params, *seen)

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        worker_deltas: Any = None,
        weights: Any = None,
        **extra: Any,
    ) -> Any:
        del extra
        if params is None:
            raise LaconicError(
                f"{learned.architecture} needs the parameters: call update(delta, state, params)."
            )
        seen = (worker_deltas if learned.gathers else None, weights)
        return run(lambda outer: outer.tx.update, updates, state, params, seen)

    def step(
        mean: Any, state: Any, params: Any, *, worker_deltas: Any = None, weights: Any = None
    ) -> Any:
        seen = (worker_deltas if learned.gathers else None, weights)
        return run(lambda outer: outer.step, mean, state, params, seen)

    plain = make(horizon=horizon)
    tx = optax.GradientTransformationExtraArgs(init, update)
    return plain._replace(tx=tx, step=step, part=None)


def _axis(mesh: Mesh) -> str:
    if len(mesh.axis_names) != 1:
        raise LaconicError(
            f"the state is shared out along one mesh axis, and this mesh has {mesh.axis_names}."
        )
    return mesh.axis_names[0]


def _spec(split: Split) -> PartitionSpec:
    if split.axis is None:
        return WHOLE
    axes = [split.mesh_axis if axis == split.axis else None for axis in range(len(split.shape))]
    return PartitionSpec(*axes)


def _state_specs(state: LearnedState, params: Any, mesh: Mesh) -> LearnedState:
    """How the state is split; an accumulator averaged over the split axis is whole everywhere."""

    def one(param: Any, ada: Ada) -> Ada:
        split = split_of(param.shape, mesh)
        own = PartitionSpec(None, *_spec(split))
        if ada.col is None:
            return Ada(own, _spec(split), own, None)  # pyright: ignore[reportArgumentType]
        row, col = (WHOLE if split.axis == averaged else own for averaged in split.pair)
        return Ada(own, _spec(split), row, col)  # pyright: ignore[reportArgumentType]

    return LearnedState(WHOLE, jax.tree.map(one, params, state.ada) if state.ada != () else ())  # pyright: ignore[reportArgumentType]
