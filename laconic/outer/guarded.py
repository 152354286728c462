"""An optax transformation for other people's loops: bad deltas and foreign states are refused.

The engines and the simulator check messages before they count; a plain optax loop does not, and one
NaN would stay in a learned optimizer's accumulators for good.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from laconic.architecture import ON_NONFINITE
from laconic.errors import LaconicError, unknown

SKIPPABLE = "NaN, infinity or numbers too large to square: some worker diverged"


class GuardedState(NamedTuple):
    """The optimizer's own state, the number of rounds skipped, and whose state it is."""

    inner: Any
    skipped: jax.Array
    optimizer: jax.Array


def guarded(
    tx: optax.GradientTransformationExtraArgs,
    digest: str,
    on_nonfinite: str = "skip",
    scale: Callable[[jax.Array], Any] | None = None,
    whole: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """`tx` with checks: of the leaves at `init`, of every delta, and of whose state it is given.

    Args:
      tx: an outer optimizer's transformation; its state must have the field `round`.
      digest: the hexadecimal hash of the optimizer; a state of another one is refused.
      on_nonfinite: at a delta that holds NaN, infinity or numbers whose squares overflow, "skip"
        the round (no change, counted in the state's `skipped`) or "raise" an error.
      scale: an optax schedule, rounds → factor of the whole step.
      whole: refuse a part of a model, as `optax.masked` gives it.

    Returns:
      An optax transformation; inside `jit` its errors are raised by the compiled program.
    """
    if on_nonfinite not in ON_NONFINITE:
        raise unknown("on_nonfinite", on_nonfinite, ON_NONFINITE)
    own = np.frombuffer(bytes.fromhex(digest)[:8], np.uint32)

    def init(params: Any) -> GuardedState:
        if whole and any(map(_hidden, jax.tree.leaves(params, is_leaf=_hidden))):
            raise LaconicError(
                "this optimizer takes shorter steps the more matrices a model has, and it is given "
                "only a part of one: say matrices=N, the number in the whole model."
            )
        return GuardedState(tx.init(_real(params)), jnp.int32(0), jnp.asarray(own))

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        worker_deltas: Any = None,
        worker_squares: Any = None,
        **extra: Any,
    ) -> tuple[Any, GuardedState]:
        if not isinstance(state, GuardedState):
            raise LaconicError("the state is not of this optimizer: it must come from its init.")
        if params is None:
            raise LaconicError("a learned step needs the parameters: update(delta, state, params).")
        if not jax.tree.leaves(params):
            return updates, state
        mean = _real(updates)
        given = _like(mean, worker_deltas)
        if worker_squares is not None:
            extra["worker_squares"] = _like(mean, worker_squares)
        inner = _refuse(
            state.inner,
            jnp.any(state.optimizer != own),
            "this state belongs to another learned optimizer: load the one it was saved with, or "
            "start anew with init.",
        )
        sound = _sound(mean) & _sound(given)
        if on_nonfinite == "raise":
            inner = _refuse(inner, ~sound, f"a delta holds {SKIPPABLE}. Leave it out of the mean.")

        def step() -> tuple[Any, Any]:
            changes, after = tx.update(mean, inner, _real(params), worker_deltas=given, **extra)
            if scale is None:
                return changes, after
            factor = scale(inner.round)
            return jax.tree.map(lambda x: jnp.asarray(factor, x.dtype) * x, changes), after

        def skip() -> tuple[Any, Any]:
            return jax.tree.map(jnp.zeros_like, mean), inner

        changes, inner = jax.lax.cond(sound, step, skip)
        skipped = state.skipped + (~sound).astype(jnp.int32)
        return changes, GuardedState(inner, skipped, state.optimizer)

    return optax.GradientTransformationExtraArgs(init, update)


def _real(tree: Any) -> Any:
    """The tree with its leaves as arrays, once all are known to be real floating-point numbers."""

    def leaf(path: Any, x: Any) -> jax.Array:
        array = jnp.asarray(x)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise LaconicError(
                "a learned step is for real floating-point parameters, and "
                f"{jax.tree_util.keystr(path) or 'one'} is {array.dtype}: leave it out "
                "(optax.masked) or cast it."
            )
        return array

    return jax.tree_util.tree_map_with_path(leaf, tree)


def _like(mean: Any, worker_deltas: Any) -> Any:
    """The worker deltas without those that `optax.masked` took out of the mean."""
    if worker_deltas is None:
        return None
    kept = jax.tree.map(lambda d, w: d if _hidden(d) else w, mean, worker_deltas, is_leaf=_hidden)
    return _real(kept)


def _hidden(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)


def _sound(tree: Any) -> jax.Array:
    """Whether all is finite, and small enough for squares."""
    squares = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
    return jnp.all(jnp.isfinite(jnp.stack(squares))) if squares else jnp.bool_(True)


def _refuse(tree: Any, wrong: jax.Array, message: str) -> Any:
    """The tree, or an error if `wrong`: at once outside `jit`, by the program inside."""
    if isinstance(wrong, Tracer):
        return eqx.error_if(tree, wrong, message)
    if wrong:
        raise LaconicError(message)
    return tree
