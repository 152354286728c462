"""A training run small enough for NumPy: gradient descent with momentum on a noisy quadratic in
three dimensions.

φ holds the logarithms of three learning rates and the momentum, and every run here also exists in
float64, from which the gradient of its losses follows by finite differences. `CALM` runs are
smooth, for questions of bias. `STORMY` ones have losses above the ceiling, NaNs in one or both
signs of a pair, and some are beyond hope from a certain round on.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.meta.problem import InnerProblem

CURVATURE = np.array([1.0, 0.3, 0.1], np.float32)
MOMENTUM, RATES = 0.5, (0.1, 0.15, 0.2)
# Flat, in the order of φ's names.
PHI = np.array([*np.log(RATES), MOMENTUM], np.float32).astype(np.float64)
CEILING = 0.8  # of stormy runs: they start above it now and then
DOOM, NEVER = 4, 1 << 20


def unflatten(phi: np.ndarray = PHI) -> dict[str, jax.Array]:
    return {
        "log_rates": jnp.asarray(phi[:3], jnp.float32),
        "momentum": jnp.asarray(phi[3], jnp.float32),
    }


def flatten(tree: Any) -> np.ndarray:
    """φ, or anything of its structure with leaves [N, …], as float64 [..., 4]."""
    rates, momentum = (
        np.asarray(tree["log_rates"], np.float64),
        np.asarray(tree["momentum"], np.float64),
    )
    return np.concatenate([rates, momentum[..., None]], axis=-1)


def begin(theta: Any, key: jax.Array) -> dict[str, jax.Array]:
    w_key, doom_key, run_key = jax.random.split(key, 3)
    doom = jnp.where(jax.random.uniform(doom_key) < 0.3, jnp.int32(DOOM), jnp.int32(NEVER))
    w = 1.0 + 0.5 * jax.random.normal(w_key, (3,))
    return {"w": w, "v": jnp.zeros(3), "round": jnp.int32(0), "doom": doom, "key": run_key}


def draw(run: Any, rounds: int) -> dict[str, jax.Array]:
    def one(t: jax.Array) -> dict[str, jax.Array]:
        target_key, luck_key = jax.random.split(jax.random.fold_in(run["key"], t))
        return {
            "target": 0.3 * jax.random.normal(target_key, (3,)),
            "luck": jax.random.uniform(luck_key),
        }

    return jax.vmap(one)(run["round"] + jnp.arange(rounds))


def unroll(theta: Any, run: Any, items: Any) -> tuple[Any, jax.Array]:
    def one(run: Any, item: Any) -> tuple[Any, jax.Array]:
        away = run["w"] - item["target"]
        v = theta["momentum"] * run["v"] + CURVATURE * away
        w = run["w"] - jnp.exp(theta["log_rates"]) * v
        return run | {"w": w, "v": v, "round": run["round"] + 1}, 0.5 * jnp.sum(CURVATURE * away**2)

    return jax.lax.scan(one, run, items)


def stormy_unroll(theta: Any, run: Any, items: Any) -> tuple[Any, jax.Array]:
    after, losses_T = unroll(theta, run, items)
    rounds_T = run["round"] + jnp.arange(losses_T.shape[0])
    one_sign = (items["luck"] < 0.15) & (theta["momentum"] > np.float32(MOMENTUM))
    return after, jnp.where(
        one_sign | (items["luck"] > 0.9) | (rounds_T >= run["doom"]), jnp.nan, losses_T
    )


CALM = InnerProblem(begin, draw, unroll)
STORMY = InnerProblem(begin, draw, stormy_unroll, CEILING)


# --- the same in float64 --------------------------------------------------------------------------


def numpy_unroll(
    phi: np.ndarray, run: dict[str, Any], items: dict[str, Any]
) -> tuple[dict[str, Any], np.ndarray]:
    """Runs with leaves [..., 3] on targets [..., T, 3] → the runs and their losses [..., T]."""
    w, v, losses = np.asarray(run["w"], np.float64), np.asarray(run["v"], np.float64), []
    curvature, target = CURVATURE.astype(np.float64), np.asarray(items["target"], np.float64)
    for t in range(target.shape[-2]):
        away = w - target[..., t, :]
        losses.append(0.5 * np.sum(curvature * away**2, axis=-1))
        v = phi[3] * v + curvature * away
        w = w - np.exp(phi[:3]) * v
    return run | {"w": w, "v": v, "round": run["round"] + target.shape[-2]}, np.stack(
        losses, axis=-1
    )


def numpy_stormy_unroll(phi: np.ndarray, run: Any, items: Any) -> tuple[Any, np.ndarray]:
    after, losses = numpy_unroll(phi, run, items)
    for t, luck in enumerate(items["luck"]):
        if (luck < 0.15 and phi[3] > MOMENTUM) or luck > 0.9 or run["round"] + t >= run["doom"]:
            losses[t] = np.nan
    return after, losses


def mean_loss_gradients(run: Any, items: Any) -> np.ndarray:
    """d/dφ of each run's mean loss over the rounds of `items`, [..., 4], by central differences in
    float64."""
    columns, step = [], 1e-5
    for nudge in step * np.eye(4):
        up, down = (
            numpy_unroll(PHI + side * nudge, run, items)[1].mean(axis=-1) for side in (1, -1)
        )
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=-1)
