"""Robust means in a round: on one device, over a mesh, in the engine; under attack; with absent
workers, compression and learned optimizers; and what is refused beside them."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.client import Message
from laconic.compress import parse_compressor
from laconic.engines.base import SimulatedEngine
from laconic.engines.loop import Loop
from laconic.engines.wire import FIELDS, HEADER, VERSION, Header, Seal
from laconic.means import parse_aggregate
from laconic.method import Method, Setting, check_workers, local_method
from laconic.methods import parse_method, parse_swept
from laconic.outer import OUTER
from laconic.round import Server, communication_round, init_round
from laconic.runs.compare import CompareConfig, compare
from laconic.runs.grid import Sweep
from laconic.runs.simulate import Simulation
from laconic.runs.train import TrainConfig, run_name
from laconic.workers import Meshed, Simulated, worker_mesh
from tests import reference_means as twin
from tests import tiny
from tests.engines.poison import sign
from tests.outer.trees import QUICK, assert_close
from tests.tiny import SGD, B, H

ROBUST = ["median", "trimmed:0.2", "krum:f=1", "multi-krum:f=1", "clip:1", "centred-clip:1"]
SEAL = Seal.of("secret", "robust")
K = 5


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Most of the time here is compiling, and no test looks at speed."""
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))


def method(aggregate: str, outer: str = "average", spec: str = "dense", **options: Any) -> Method:
    made = OUTER[outer].make(**options)
    return local_method("test", SGD, made, parse_compressor(spec), parse_aggregate(aggregate))


def simulated(made: Method, task: Any = tiny.TASK) -> Simulated:
    return Simulated(made.client(task), made.compressor, made.aggregate)


# --- attackers ------------------------------------------------------------------------------------

# What an attacker sends in the place of Δ, which it may shape by all honest ones [K, …].
Attack = Callable[..., Any]


def _sign_flip(x_K: Any, k: int, seed: int) -> Any:
    return -10 * x_K[k]


def _noise(x_K: Any, k: int, seed: int) -> Any:
    size = 10 * jnp.sqrt(jnp.mean(jnp.square(x_K)))
    return size * jax.random.normal(jax.random.key(97 * seed + k), x_K.shape[1:])


def _huge(x_K: Any, k: int, seed: int) -> Any:
    return jnp.full(x_K.shape[1:], jnp.nan if (seed + k) % 2 else 1e30, x_K.dtype)


def _a_little(x_K: Any, k: int, seed: int) -> Any:
    """Baruch et al. (2019): all attackers shifted alike, within the crowd."""
    return jnp.mean(x_K, axis=0) - 1.5 * jnp.std(x_K, axis=0)


ATTACKS: dict[str, Attack] = {
    "sign flip ×10": _sign_flip,
    "noise": _noise,
    "huge or NaN": _huge,
    "a little": _a_little,
}


@dataclass(frozen=True)
class Attacked(Simulated):
    """The last workers of a round send something else."""

    attack: Attack = _sign_flip
    attackers: int = 1

    def map(self, phase: Callable) -> Callable:
        def attacked(*args: Any) -> Any:
            message, *rest = super(Attacked, self).map(phase)(*args)
            return message._replace(
                delta=spoiled(message.delta, self.attack, self.attackers)
            ), *rest

        return attacked


def spoiled(deltas: Any, attack: Attack, attackers: int) -> Any:
    """The deltas [K, …] with those of the last workers replaced."""
    leaves, treedef = jax.tree.flatten(deltas)
    for i, x in enumerate(leaves):
        first = x.shape[0] - attackers
        for k in range(first, x.shape[0]):
            x = x.at[k].set(jnp.asarray(attack(leaves[i][:first], k - first, i)).astype(x.dtype))
        leaves[i] = x
    return jax.tree.unflatten(treedef, leaves)


@cache
def trained(aggregate: str, attackers: int) -> Any:
    """(attack) → the loss over all data after 40 rounds; one program for all attacks."""
    made = method(aggregate)
    server = Server(made.outer)

    def run(attack: jax.Array) -> jax.Array:
        def chosen(x_K: Any, k: int, seed: int) -> Any:
            kinds = [partial(kind, k=k, seed=seed) for kind in ATTACKS.values()]
            return jax.lax.switch(attack, kinds, x_K)

        base = (made.client(tiny.TASK), made.compressor, made.aggregate)
        crew = Attacked(*base, chosen, attackers) if attackers else Simulated(*base)
        state = init_round(tiny.TASK, crew, server, K, jax.random.key(0))
        step = lambda s, i: (communication_round(crew, server, s, i)[0], 0)
        state, _ = jax.lax.scan(step, state, items)
        return tiny.loss(state.shared.params, (tiny.X, tiny.Y))

    first = init_round(tiny.TASK, simulated(made), server, K, jax.random.key(0))
    items = tiny.draw(first, workers=K, rounds=40)
    return jax.jit(run)


def final_loss(aggregate: str, attack: str = "noise", attackers: int = 0) -> float:
    return float(trained(aggregate, attackers)(jnp.int32(list(ATTACKS).index(attack))))


CALM = 0.16  # what 40 rounds without attackers reach, and a bit


@pytest.mark.parametrize("aggregate", ROBUST)
def test_one_attacker_of_five_stops_no_robust_mean(aggregate):
    for attack in ATTACKS:
        assert final_loss(aggregate, attack, 1) < CALM, attack


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", ["median", "trimmed:0.4", "centred-clip:1"])
def test_two_attackers_of_five_stop_none_that_is_made_for_them(aggregate):
    for attack in ("sign flip ×10", "noise", "huge or NaN"):
        assert final_loss(aggregate, attack, 2) < 2 * CALM, attack


def test_without_a_robust_mean_one_attacker_is_enough():
    assert final_loss("mean") < CALM
    for attack in ("sign flip ×10", "noise", "huge or NaN"):
        assert not final_loss("mean", attack, 1) < 5 * CALM, attack


# --- where workers live ---------------------------------------------------------------------------


def one_round(workers: Any, made: Method, task: Any, present: Any = None) -> Any:
    server = Server(made.outer)
    state = init_round(task, workers, server, 8, jax.random.key(0))
    items = tiny.draw(state, workers=8)._replace(present=present)
    step = jax.jit(lambda s, i: communication_round(workers, server, s, i)[0])
    return step(step(state, items), items)


@pytest.mark.parametrize(
    ("aggregate", "spec"),
    [pytest.param("median", "topk:0.5+ef", marks=pytest.mark.slow), ("krum:f=2", "dense")],
)
def test_a_mesh_does_what_the_simulation_does(aggregate, spec):
    made, task = method(aggregate, "slowmo", spec), tiny.stateful_task()
    present = jnp.array([1.0, 1, 0, 1, 1, 1, 1, 1])
    one = one_round(simulated(made, task), made, task, present)
    meshed = Meshed(made.client(task), made.compressor, worker_mesh(4), made.aggregate)
    many = one_round(meshed, made, task, present)
    for a, b in zip(jax.tree.leaves(one.shared), jax.tree.leaves(many.shared), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_round_is_the_twins_on_decoded_messages_of_those_present():
    made = method("trimmed:0.2", spec="topk:0.5")
    workers = simulated(made)
    state = init_round(tiny.TASK, workers, Server(made.outer), 8, jax.random.key(0))
    deltas = jax.vmap(lambda key: tiny.init(key))(jax.random.split(jax.random.key(1), 8))
    encode = lambda d: made.compressor.encode(d, (), jax.random.key(0))[0]
    weights_K = jnp.array([1.0, 3, 0, 1, 1, 2, 1, 1])
    payload = jax.vmap(encode)(deltas)
    combined = workers.combine(Message(payload, (), weights_K), "mean", state.shared.params)
    sent = jax.vmap(made.compressor.decode, in_axes=(0, None))(payload, state.shared.params)
    here = np.flatnonzero(np.asarray(weights_K))
    trees = [{n: np.asarray(x[k]) for n, x in sent.items()} for k in here]
    assert_close(combined.mean_delta, twin.trimmed(trees, 20), 1e-6, "Δ")
    np.testing.assert_array_equal(combined.weights_K, weights_K)


@pytest.mark.parametrize("outer", ["fedexp", "lopt-a"])
def test_optimizers_that_need_no_more_than_the_mean_and_norms_take_it(outer):
    made = method("median", outer)
    workers, server = simulated(made), Server(made.outer)
    state = init_round(tiny.TASK, workers, server, K, jax.random.key(0))
    step = jax.jit(lambda s, i: communication_round(workers, server, s, i)[0])
    after = step(state, tiny.draw(state, workers=K))
    moved = jax.tree.map(lambda a, b: jnp.any(a != b), after.shared, state.shared)
    assert any(jax.tree.leaves(moved))


def test_a_round_in_which_nobody_is_finite_changes_nothing():
    made = method("median")
    crew = Attacked(*(made.client(tiny.TASK), made.compressor, made.aggregate), _nan, K)
    server = Server(made.outer)
    state = init_round(tiny.TASK, crew, server, K, jax.random.key(0))
    step = jax.jit(lambda s, i: communication_round(crew, server, s, i)[0])
    after = step(state, tiny.draw(state, workers=K))
    for a, b in zip(
        jax.tree.leaves((after.shared, after.outer)),
        jax.tree.leaves((state.shared, state.outer)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def _nan(x_K: Any, k: int, seed: int) -> Any:
    return jnp.full(x_K.shape[1:], jnp.nan, x_K.dtype)


# --- the engine -----------------------------------------------------------------------------------


class Bad(SimulatedEngine):
    """Some of its workers' messages are not what they computed, and properly signed."""

    def __init__(self, workers: int, attack: Attack, attackers: int):
        super().__init__(workers)
        self.attack, self.bad = attack, range(workers - attackers, workers)

    def gather(self, frames: Any, size: int) -> Any:
        found = {k: np.array(frame) for k, frame in frames.items()}
        honest = [found[k][HEADER:].view(np.float32) for k in found if k not in self.bad]
        for k in self.bad:
            numbers = found[k][HEADER:].view(np.float32)
            numbers[:] = np.asarray(self.attack(jnp.stack(honest), k - self.bad[0], 0))
            header = Header(*FIELDS.unpack_from(found[k].data, 0)[2:])
            found[k] = sign(found[k], header, VERSION, SEAL)
        return found


def loop(made: Method, engine: SimulatedEngine, rounds: int, **more: Any) -> Loop:
    setting = Setting(engine.slots, H, B, rounds, (0,))
    return Loop(tiny.TASK, made, setting, engine, SEAL, **more)


@pytest.mark.parametrize("aggregate", ["median", "multi-krum:f=1"])
def test_the_engine_does_what_the_simulator_does(aggregate):
    made = method(aggregate, "slowmo", "topk:0.5+ef")
    first, *_, last = loop(made, SimulatedEngine(K), 4).rounds()
    assert f"{aggregate} needs every message" in first.notes[0]
    simulation = Simulation(tiny.TASK, made, Setting(K, H, B, 4, (0,), evaluate_every=4))
    (chunk,) = simulation.run(simulation.start())
    for a, b in zip(jax.tree.leaves(last.shared), jax.tree.leaves(chunk.state.shared), strict=True):
        np.testing.assert_allclose(a, b[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("aggregate", ["median", "krum:f=1", "centred-clip:1"])
def test_one_attacker_of_five_does_not_spoil_the_engine(aggregate):
    """With all kinds in turn, and the norms' limit out of the way of the robust mean."""
    kinds, count = list(ATTACKS.values()), itertools.count()
    in_turn = lambda *seen: kinds[next(count) % len(kinds)](*seen)
    *_, last = loop(method(aggregate), Bad(K, in_turn, 1), 40, norm_limit=1e30).rounds()
    assert float(tiny.loss(last.shared.params, (tiny.X, tiny.Y))) < CALM


def test_an_attacker_within_the_engines_limits_spoils_the_plain_mean():
    *_, last = loop(method("mean"), Bad(K, _sign_flip, 1), 40).rounds()
    assert not float(tiny.loss(last.shared.params, (tiny.X, tiny.Y))) < 5 * CALM


# --- by name, and what is refused -----------------------------------------------------------------


def test_a_method_says_its_mean_and_that_it_needs_every_message():
    plain, named = parse_method("slowmo", 5), parse_method("slowmo:aggregate=krum:f=1", 5)
    assert plain.aggregate is None
    assert not plain.every_message
    assert named.aggregate is not None
    assert (named.aggregate.name, named.every_message) == ("krum:f=1", True)
    for_all = parse_method("slowmo", 5, aggregate=named.aggregate)
    assert for_all.aggregate is named.aggregate
    back = parse_method("slowmo:aggregate=mean", 5, aggregate=named.aggregate)
    assert back.aggregate is None


def test_settings_of_old_runs_keep_their_names():
    old = run_name(TrainConfig(optimizer="slowmo"))
    assert "aggregate" not in old
    assert '"aggregate": "median"' in run_name(TrainConfig(optimizer="slowmo", aggregate="median"))
    definition, point = parse_swept("local-sgd"), {"gamma": 0.5}
    assert definition.spec(point, "dense", "mean") == definition.spec(point)
    assert definition.spec(point, aggregate="median") == "local-sgd:gamma=0.5,aggregate=median"


def test_what_a_robust_mean_cannot_protect_is_refused(raises_clearly):
    setting = Setting(4, H, B, 4, (0,))
    with raises_clearly("median protects the mean delta", "each worker's own", "lopt-a"):
        check_workers(parse_method("lagg-a:aggregate=median", 4), 4)
    with raises_clearly("krum:f=1 needs 5 workers at least", "got 4"):
        check_workers(parse_method("local-sgd:aggregate=krum:f=1", 4), 4)
    with raises_clearly("control variates are summed", "fedavgm"):
        Simulation(tiny.TASK, parse_method("scaffold:aggregate=median", 4), setting)
    with raises_clearly("control variates are summed", "fedavgm"):
        Sweep(tiny.TASK, "scaffold", setting, aggregate=parse_aggregate("median"))
    with raises_clearly("a ring sums as it goes"):
        Simulation(tiny.TASK, parse_method("local-sgd:aggregate=median", 4), setting).traffic(
            "ring"
        )


def test_a_comparison_records_its_mean_and_a_sweep_trains_with_it(tmp_path):
    words = ("local-sgd:gamma=0.3", "local-sgd:gamma=0.3,aggregate=mean,label=plain")
    config = CompareConfig(
        optimizers=words, aggregate="median", workers=K, rounds=4, seeds=1, evaluate_every=4
    )
    _, records = compare(replace(config, out=tmp_path / "run"), tiny.TASK)
    first, second = (r for r in records if r["kind"] == "method")
    assert first["aggregate"] == "median"
    assert "aggregate" not in second
    assert first["train"] != second["train"]
    setting = Setting(K, 4, 16, 4, (0,), evaluate_every=4)
    engine = Sweep(tiny.TASK, "local-sgd", setting, aggregate=parse_aggregate("median"))
    curves = engine.run([{"gamma": 0.3}], 1).curves[0, 0]
    np.testing.assert_allclose(curves, first["train"][0], rtol=1e-5)
