"""DES-LOC and NoLoCo against their float64 twins, with exact bits, and refused where they cannot
be."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.compress import DENSE, tree_bits
from laconic.fragments import Fragments
from laconic.method import Setting
from laconic.methods import parse_method
from laconic.peers.noloco import pairs
from laconic.round import PEERS, Server, communication_round, init_round
from laconic.runs.simulate import Simulation
from laconic.workers import Meshed, Simulated, worker_mesh
from tests import reference_peers as twin
from tests import tiny
from tests.outer.trees import QUICK, assert_close, float64
from tests.reference_compress import AdamW
from tests.tiny import TASK, H, draw

pytestmark = pytest.mark.usefixtures("standard_promotion")  # optax's Adam
GAMMA, T = 0.01, 7
DECAY = 0.1


def trained(spec, K, task=TASK, present=None, mesh=None):
    """Every state after the first, [T, …], the first weights and the minibatches."""
    method = parse_method(f"{spec},gamma={GAMMA},decay={DECAY}", K)
    client = method.client(task)
    workers = Simulated(client, DENSE) if mesh is None else Meshed(client, DENSE, mesh)
    server = Server(method.outer)
    state = init_round(task, workers, server, K, jax.random.key(0))
    items = draw(state, K, H, T)
    if present is not None:
        items = items._replace(present=jnp.asarray(present, jnp.float32))

    def one(state, items):
        state = communication_round(workers, server, state, items)[0]
        return state, (state.shared, state.clients.local)

    _, seen = jax.jit(lambda *a: jax.lax.scan(one, *a), compiler_options=QUICK)(state, items)
    return jax.device_get(seen), float64(state.shared.params), np.asarray(items.batches), state


def twins(K):
    return [AdamW(GAMMA, weight_decay=DECAY) for _ in range(K)]


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 3), (100, 100)])
@pytest.mark.parametrize("absent", [False, True])
def test_desloc_averages_weights_and_moments_at_periods_of_their_own(first, second, absent):
    K = 4
    present = np.ones((T, K))
    if absent:
        present[[1, 3, 5], [0, 2, 0]] = 0
        present[2, 1:] = 0
    spec = f"desloc:first={first},second={second}"
    (shared, _), start, batches, _ = trained(spec, K, present=present if absent else None)
    here = [np.flatnonzero(row).tolist() for row in present]
    expected = twin.desloc(start, tiny.gradient, batches, twins(K), first, second, here)
    for t, params in enumerate(expected):
        assert_close({n: x[t] for n, x in shared.params.items()}, params, 2e-5, f"round {t}")


def test_deslocs_periods_matter():
    """Endless ones are DiLoCo's workers, who keep their moments; shorter ones are not."""
    last = lambda spec: trained(spec, 4)[0][0].params["w1"][-1]
    far = last("desloc:first=100,second=100")
    np.testing.assert_array_equal(far, last("diloco:lr=1,momentum=0"))
    for periods in ("first=1,second=100", "first=100,second=1"):
        assert np.abs(last(f"desloc:{periods}") - far).max() > 1e-5


def meetings_of(state, K):
    """Who met in each round, as groups."""
    found = []
    for t in range(T):
        key = jax.random.fold_in(jax.random.fold_in(state.key, t), PEERS)
        partners = np.asarray(pairs(key, K)).tolist()
        found.append(sorted({tuple(sorted({k, partner})) for k, partner in enumerate(partners)}))
    return found


@pytest.mark.parametrize("K", [1, 4, 5])
def test_noloco_follows_its_twin_and_the_shared_weights_are_the_mean(K):
    (shared, clients), start, batches, state = trained("noloco:alpha=0.4,beta=0.8,pull=0.7", K)
    groups = meetings_of(state, K)
    expected = twin.noloco(start, tiny.gradient, batches, twins(K), groups, 0.4, 0.8, 0.7)
    for t, trees in enumerate(expected):
        for k, tree in enumerate(trees):
            own = {n: x[t, k] for n, x in clients.params.items()}
            assert_close(own, tree, 5e-5, f"worker {k} after round {t}")
        middle = {n: x[t] for n, x in shared.params.items()}
        assert_close(middle, twin.mean(trees), 5e-5, f"round {t}")
    if K > 1:  # they do differ, and other pairs meet in other rounds
        assert np.ptp(clients.params["w1"][-1], axis=0).max() > 1e-4
        assert len({tuple(group) for group in groups}) > 1


@pytest.mark.parametrize("K", [1, 2, 5, 8])
def test_everyone_meets_one_other_and_only_an_odd_one_nobody(K):
    for seed in range(20):
        partners = np.asarray(pairs(jax.random.key(seed), K))
        np.testing.assert_array_equal(partners[partners], np.arange(K))
        assert (partners == np.arange(K)).sum() == K % 2


@pytest.mark.parametrize("spec", ["desloc:first=2,second=3", "noloco:alpha=0.5"])
def test_workers_on_a_mesh_give_the_same(spec):
    plain, meshed = (trained(spec, 4, mesh=mesh)[0] for mesh in (None, worker_mesh(1)))
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(meshed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def traffic(spec, topology="server", setting=Setting(4, H, 4, 2)):
    return Simulation(TASK, parse_method(spec, 4), setting).traffic(topology)


def test_bits_by_hand():
    model = tree_bits(TASK.init(jax.random.key(0))[0])
    both = model + -(-model // 3) + -(-model // 6)
    found = traffic("desloc")
    assert (found.sent_bits, found.received_bits) == (both, both)
    assert traffic("desloc", "all-gather").sent_bits == 3 * both
    assert traffic("desloc", "ring").sent_bits == -(-6 * both // 4)
    assert traffic("desloc:first=1,second=1").sent_bits == 3 * model  # Local Adam
    half = traffic("desloc:compress=int8")
    assert half.sent_bits < both - model // 2
    for topology in ("server", "all-gather"):  # whatever is asked for, they meet in pairs
        found = traffic("noloco", topology)
        assert (found.sent_bits, found.received_bits) == (2 * model, 2 * model)
        assert found.topology == "pairs"


def test_a_learned_server_over_desloc():
    learned = trained("desloc:outer=lopt-r", 4)[0][0].params["w1"][-1]
    assert np.isfinite(learned).all()
    assert np.abs(learned - trained("desloc:outer=average", 4)[0][0].params["w1"][-1]).max() > 1e-5


def test_what_cannot_be_is_refused(raises_clearly):
    setting = Setting(4, H, 4, 2)
    with raises_clearly("unknown server of desloc 'nestorov'", "nesterov"):
        parse_method("desloc:outer=nestorov", 4)
    with raises_clearly("nothing to compress"):
        traffic("noloco:compress=int8")
    with raises_clearly("leave aggregate out"):
        traffic("noloco:aggregate=median")
    with raises_clearly("weights of its own"):
        traffic("noloco", setting=replace(setting, missing=1))
    in_two = replace(setting, fragments=Fragments(2))
    for spec in ("noloco", "desloc"):
        with raises_clearly("fragments"):
            traffic(spec, setting=in_two)
    stateful = Simulation(tiny.stateful_task(), parse_method("noloco", 4), setting)
    with raises_clearly("statistics"):
        stateful.start()
