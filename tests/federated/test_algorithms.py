"""Every federated algorithm over ten rounds with sampled clients, against the twin in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import LocalOptimizer, Work
from laconic.compress import parse_compressor
from laconic.federated.population import Federated, draw_population
from laconic.method import Setting, local_method
from laconic.methods import parse_method
from laconic.outer import OUTER, LearnedOptimizer
from laconic.round import RoundState
from laconic.runs.simulate import Simulation
from laconic.workers import worker_mesh
from tests import reference as ref
from tests import reference_compress as twin
from tests import tiny
from tests.federated.federated_twin import Momentum, Round, Twin
from tests.outer.trees import assert_close, float64, random_theta

N, K, B, ROUNDS, GAMMA = 8, 3, 2, 10, 0.2
PLAIN = Federated(N, epochs=1)  # 64 samples: 8 each, H = 4
HARD = Federated(N, epochs=2, spread=0.7, dropout=0.4, least_work=0.3)


def simulate(method: Any, options: Federated) -> tuple[RoundState, list[RoundState], Simulation]:
    setting = Setting(K, 1, B, ROUNDS, (3,), 1, options)
    simulation = Simulation(tiny.task(), method, setting)
    start = simulation.start()
    return start, [chunk.state for chunk in simulation.run(start)], simulation


def rounds_of(simulation: Simulation, start: RoundState) -> list[Round]:
    """What the rounds handed out, as plain arrays."""
    plan, population = simulation.plan, jax.tree.map(lambda x: x[0], simulation._population)
    first: Any = jax.tree.map(lambda x: x[0], start)
    assert plan is not None
    draw = jax.jit(lambda t: draw_population(plan, population, first._replace(round=t)))
    found = []
    for t in range(ROUNDS):
        items = jax.device_get(draw(jnp.int32(t)))
        work = (
            items.batches
            if isinstance(items.batches, Work)
            else Work(items.batches, np.full(K, plan.local_steps))
        )
        present = np.ones(K) if items.present is None else items.present
        weights = np.ones(K) if items.weights is None else items.weights
        found.append(Round(items.ids, work.batches, work.steps, present, weights))
    return found


def check(
    method: Any, hand: Twin, options: Federated = PLAIN, tolerance: float = 1e-5
) -> tuple[Any, list[Round]]:
    start, states, simulation = simulate(method, options)
    rounds = rounds_of(simulation, start)
    now = float64(jax.device_get({n: x[0] for n, x in start.shared.params.items()}))
    for t, handed in enumerate(rounds):
        now = hand.round(now, handed)
        assert_close(
            {n: x[0] for n, x in states[t].shared.params.items()}, now, tolerance, f"round {t}"
        )
    assert len({tuple(sorted(r.ids)) for r in rounds}) > 3  # others are sampled each time
    return states, rounds


SERVERS = {
    "fedavg:gamma=0.2": lambda: ref.Average(),
    "fedavgm:gamma=0.2,eta=0.7,beta=0.8": lambda: Momentum(0.7, 0.8),
    "fedadam:gamma=0.2,eta=0.03": lambda: ref.FedAdam(0.03),
    "fedyogi:gamma=0.2,eta=0.03": lambda: ref.FedYogi(0.03),
    "fedadagrad:gamma=0.2,eta=0.05": lambda: ref.FedAdagrad(0.05),
}


@pytest.mark.parametrize("spec", SERVERS)
def test_servers(spec):
    check(parse_method(spec, K), Twin(SERVERS[spec](), GAMMA, N))


def test_fedprox():
    check(parse_method("fedprox:gamma=0.2,mu=0.5", K), Twin(ref.Average(), GAMMA, N, mu=0.5))


@pytest.mark.parametrize("weighting", ["samples", "uniform", "fednova"])
@pytest.mark.parametrize(
    "spec", ["fedavg:gamma=0.2", "scaffold:gamma=0.2,eta=0.9"], ids=["fedavg", "scaffold"]
)
def test_unequal_clients_that_do_part_of_the_work_or_drop_out(spec, weighting):
    options = Federated(**{**vars(HARD), "weighting": weighting})
    scaffold = spec.startswith("scaffold")
    outer = Momentum(0.9, 0.0) if scaffold else ref.Average()
    hand = Twin(outer, GAMMA, N, scaffold=scaffold, nova=weighting == "fednova")
    states, rounds = check(parse_method(spec, K), hand, options)
    assert {0.0, 1.0} == {float(p) for r in rounds for p in r.present}
    assert len({int(s) for r in rounds for s in r.steps}) > 2
    assert (len({float(w) for r in rounds for w in r.weights}) > 1) == (weighting != "uniform")
    if scaffold:
        variates_agree(states, hand)


def test_scaffold():
    hand = Twin(ref.Average(), GAMMA, N, scaffold=True)
    states, _ = check(parse_method("scaffold:gamma=0.2", K), hand)
    variates_agree(states, hand)
    assert max(float(jnp.max(jnp.abs(c))) for c in states[-1].shared.control.values()) > 1e-2


def variates_agree(states: Any, hand: Twin) -> None:
    """Every client's variate is the twin's, and in every round the server's is the mean of all
    clients'."""
    for state in states:
        for name, c in state.shared.control.items():
            mean = np.asarray(state.clients.local.control[name][0], np.float64).mean(axis=0)
            np.testing.assert_allclose(c[0], mean, rtol=1e-5, atol=1e-6)
    last = states[-1].clients.local.control
    for i in range(N):
        assert_close(
            {n: x[0, i] for n, x in last.items()}, hand.c_i[i], 1e-4, f"variate of client {i}"
        )


@pytest.mark.parametrize("architecture", ["lopt-a", "lagg-a"])
def test_learned(architecture):
    learned = LearnedOptimizer(architecture, K if architecture == "lagg-a" else None)
    theta = random_theta(38 + K if architecture == "lagg-a" else 39, 1, decay=True)
    local, outer = LocalOptimizer("sgd", GAMMA), learned(jax.tree.map(jnp.asarray, theta))
    start = jax.tree.map(np.zeros, tiny.SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    hand = ref.Learned(
        "lagg_a" if architecture == "lagg-a" else "lopt_a", float64(theta), ref.ada_init(start)
    )
    check(local_method("learned", local, outer), Twin(hand, GAMMA, N), tolerance=2e-5)


def test_error_feedback_follows_the_client():
    residuals = [twin.ErrorFeedback(lambda tree: twin.topk_global(tree, 0.4)) for _ in range(N)]
    sgd, outer = LocalOptimizer("sgd", GAMMA), OUTER["average"].make()
    method = local_method("sparse", sgd, outer, parse_compressor("topk:0.4+ef"))
    states, _ = check(method, Twin(ref.Average(), GAMMA, N, send=residuals))
    kept = states[-1].clients.residual[0]
    for i, own in enumerate(residuals):
        expected = own.e or {n: np.zeros(s) for n, s in tiny.SHAPES.items()}
        assert_close(
            {n: x[0, i] for n, x in kept.items()}, expected, 1e-4, f"residual of client {i}"
        )


@pytest.mark.usefixtures("standard_promotion")
def test_moments_of_adamw_follow_the_client():
    own = [twin.AdamW(0.003, weight_decay=0.1) for _ in range(N)]
    method = local_method(
        "adamw", LocalOptimizer("adamw", 0.003, weight_decay=0.1), OUTER["average"].make()
    )
    states, rounds = check(method, Twin(ref.Average(), GAMMA, N, locals=own))
    counts = np.asarray(states[-1].clients.local[0].count[0])
    met = np.bincount(np.concatenate([r.ids for r in rounds]), minlength=N)
    np.testing.assert_array_equal(counts, 4 * met)
    for i in np.flatnonzero(met):
        moment = {n: x[0, i] for n, x in states[-1].clients.local[0].mu.items()}
        assert_close(moment, own[i].m, 1e-4, f"moment of client {i}")


def test_a_population_of_everyone_is_scaffold_without_sampling():
    """K = N: the server's variate moves by the plain mean, and no client is missed."""
    simulation = Simulation(
        tiny.task(), parse_method("scaffold:gamma=0.1", 4), Setting(4, 2, 4, 3, (0,), 3)
    )
    (chunk,) = simulation.run(simulation.start())
    for name, c in chunk.state.shared.control.items():
        mean = np.asarray(chunk.state.clients.local.control[name][0], np.float64).mean(axis=0)
        np.testing.assert_allclose(c[0], mean, rtol=1e-5, atol=1e-6)


def test_over_a_mesh_control_variates_are_the_same():
    setting = Setting(4, 1, B, 3, (0,), 3, HARD)
    here, spread = (
        Simulation(tiny.task(), parse_method("scaffold:gamma=0.2", 4), setting, mesh)
        for mesh in (None, worker_mesh(2))
    )
    (one,), (two,) = (simulation.run(simulation.start()) for simulation in (here, spread))
    for a, b in zip(
        jax.tree.leaves(one.state.shared), jax.tree.leaves(two.state.shared), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.losses, two.losses, rtol=1e-5)
