"""The adaptive federated servers against their twins."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.outer.base import from_optax
from laconic.outer.fedopt import fedadagrad, fedadam, fedyogi
from tests import reference as ref
from tests.outer.trees import SMALL, assert_rounds_like, random_deltas, random_tree, run_outer

MEMBERS = {
    "adam": (fedadam, ref.FedAdam),
    "yogi": (fedyogi, ref.FedYogi),
    "adagrad": (fedadagrad, ref.FedAdagrad),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_like_the_twin(name):
    make, twin = MEMBERS[name]
    assert_rounds_like(
        make(eta=0.03, tau=1e-2, beta1=0.8), twin(eta=0.03, tau=1e-2, beta1=0.8), 1e-6
    )


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_the_second_moment_decays_as_told(name):
    make, twin = MEMBERS[name]
    numbers = {"eta": 0.1, "tau": 1e-3, "beta1": 0.9, "beta2": 0.7, "v0": 0.0}
    assert_rounds_like(make(**numbers), twin(**numbers), 1e-6)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_second_moment_starts_at_tau_squared(name):
    params = {"w": jnp.ones(3)}
    for v0, expected in [(None, 0.25), (0.0, 0.0), (2.0, 2.0)]:
        state = MEMBERS[name][0](tau=0.5, v0=v0).tx.init(params)
        np.testing.assert_array_equal(state.v["w"], np.full(3, expected, np.float32))
        np.testing.assert_array_equal(state.m["w"], np.zeros(3, np.float32))


def test_fedadam_is_not_adam():
    params, mean_T = (
        random_tree(SMALL, 3),
        {name: d[:, 0] for name, d in random_deltas(SMALL, 2, 1, 4).items()},
    )
    ours, _, _ = run_outer(fedadam(eta=0.1, tau=1e-3), params, mean_T)
    with jax.numpy_dtype_promotion("standard"):  # optax raises β to an integer power
        theirs, _, _ = run_outer(
            from_optax(optax.adam(0.1, b1=0.9, b2=0.99, eps=1e-3)), params, mean_T
        )
    assert not np.allclose(ours["wide"], theirs["wide"], rtol=0.01)
