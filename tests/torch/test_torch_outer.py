"""The PyTorch step against JAX on transposed arrays and the float64 twin, round by round."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

import laconic
from laconic.outer.learned import LearnedOptimizer
from laconic.torch import LearnedOuter
from laconic.torch.features import axes_of
from laconic.torch.step import tiles
from tests import reference as ref
from tests.outer.cases import ROUNDS, name_of
from tests.outer.trees import QUICK, assert_close, float64, random_deltas, random_tree
from tests.torch.pairs import SHAPES, Pair, from_torch, tensor, to_torch

SPECS = [
    LearnedOptimizer("lopt-a"),
    LearnedOptimizer("lopt-a", time="paper"),
    LearnedOptimizer("lagg-a", 4),
    LearnedOptimizer("lopt"),
    LearnedOptimizer("lagg", 3),
]


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_twenty_rounds_like_the_twin(spec, tmp_path):
    pair = Pair(spec, tmp_path)
    for t, (weights, change, state) in enumerate(pair.case.twin()):
        assert_close(pair.step(t), change, 1e-5, f"round {t} change")
        assert_close(pair.weights(), weights, 1e-5, f"round {t} weights")
        if isinstance(state, ref.AdaState):
            assert_state_like_the_twin(pair, state)


def assert_state_like_the_twin(pair, twin):
    for name, p in zip(pair.case.params, pair.params, strict=True):
        state = pair.outer.state[p]
        assert state["round"] == twin.t
        assert {key: x.dtype for key, x in state.items() if key != "round"} == dict.fromkeys(
            ("m", "v", "row", "col") if p.ndim > 1 else ("m", "v", "row"), torch.float32
        )
        for key, found in (("v", [state["v"]]), ("m", state["m"]), ("row", state["row"])):
            expected = getattr(twin, key)[name]
            for x, y in zip(
                found, expected if isinstance(expected, list) else [expected], strict=True
            ):
                assert_close(
                    from_torch(x.numpy()),
                    y.reshape(from_torch(x.numpy()).shape),
                    1e-5,
                    f"{key} of {name}",
                )
        for x, y in zip(state.get("col", []), twin.col[name], strict=False):
            assert_close(from_torch(x.numpy()), y, 1e-5, f"col of {name}")


@pytest.mark.parametrize("name", ["lopt-a-fmnist", "lagg-a-fmnist"])
def test_twenty_rounds_like_jax_with_the_published_weights(name):
    """float32 parameters on both sides as anybody would use them, and float64 ones to see the
    changes exactly."""
    tx, params = laconic.load(name).optax(), random_tree(SHAPES, 1)
    deltas = random_deltas(SHAPES, ROUNDS, 8, 2)

    def body(carry, now):
        params, state = carry
        mean = {key: d.mean(axis=0) for key, d in now.items()}
        updates, state = tx.update(mean, state, params, worker_deltas=now)
        params = jax.tree.map(jax.numpy.add, params, updates)
        return (params, state), (params, updates, mean)

    run = jax.jit(lambda p, d: jax.lax.scan(body, (p, tx.init(p)), d)[1], compiler_options=QUICK)
    expected, changes, means = jax.device_get(run(params, deltas))
    for dtype in (torch.float32, torch.float64):
        ours = {key: torch.nn.Parameter(tensor(x, dtype)) for key, x in params.items()}
        outer = LearnedOuter(ours.values(), name)
        for t in range(ROUNDS):
            before = {key: p.detach().clone() for key, p in ours.items()}
            for key, p in ours.items():
                p.grad = tensor(means[key][t], dtype)
            outer.step(
                worker_deltas=[torch.tensor(to_torch(d[t], 1).copy()) for d in deltas.values()]
            )
            for key, p in ours.items():
                what, after = f"round {t} {key}", p.detach()
                assert_close(from_torch(after.numpy()), expected[key][t], 1e-5, what)
                if dtype == torch.float64:
                    assert_close(
                        from_torch((after - before[key]).numpy()), changes[key][t], 1e-5, what
                    )


@pytest.mark.parametrize("tile", [1, 7, 40])
def test_the_tile_does_not_matter(tile, tmp_path):
    spec = LearnedOptimizer("lagg-a", 3)
    shapes = {name: s for name, s in SHAPES.items() if name != "large"} if tile == 1 else SHAPES
    small, whole = Pair(spec, tmp_path, shapes, tile=tile), Pair(spec, tmp_path, shapes)
    for t in range(2):
        assert_close(small.step(t), whole.step(t), 1e-5, f"round {t}")


@pytest.mark.parametrize(
    ("shape", "most"), [((), 1), ((0, 3), 2), ((7,), 3), ((5, 4), 9), ((2, 3, 5), 4), ((3, 1), 9)]
)
def test_tiles_cover_a_shape_once(shape, most):
    count, places = np.zeros(shape, int), list(tiles(shape, most))
    for at in places:
        count[at] += 1
        assert count[at].size <= most
    assert (count == 1).all()
    assert len(places) <= 2 * max(1, count.size)


@pytest.mark.parametrize("shape", [s for s in SHAPES.values() if len(s) > 1])
def test_the_factored_axes_are_those_of_the_transposed_tensor(shape):
    torch_shape = to_torch(np.empty(shape)).shape
    at = lambda axis: dict(zip(from_torch_axes(len(shape)), range(len(shape)), strict=True))[axis]
    assert tuple(at(axis) for axis in axes_of(torch_shape, "torch")) == ref.factored_axes(shape)
    assert axes_of(shape, "as-is") == ref.factored_axes(shape)


def from_torch_axes(n):
    """For each axis of the JAX layout, which axis of the torch layout it is."""
    return (*range(2, n), 1, 0)


def test_the_layout_matters_for_equal_axes_and_only_there(tmp_path):
    shapes = {"square": (5, 5), "tall": (6, 4), "even": (3, 3, 4, 4), "kernel": (3, 3, 4, 6)}
    default, as_is = (
        Pair(SPECS[0], tmp_path, shapes),
        Pair(SPECS[0], tmp_path, shapes, layout="as-is"),
    )
    one, other = default.step(0), as_is.step(0)
    for name in ("tall", "kernel"):
        assert_close(other[name], one[name], 1e-6, name)
    for name in ("square", "even"):
        with pytest.raises(AssertionError):
            assert_close(other[name], one[name], 1e-2, name)


def test_an_as_is_group_beside_a_torch_group(tmp_path):
    """An embedding is [num, dim], in → out already: with its own layout it steps as JAX's would,
    ties included."""
    pair = Pair(SPECS[0], tmp_path, {"square": (5, 5), "table": (6, 6)})
    linear, table = (
        pair.params[0],
        torch.nn.Parameter(torch.tensor(pair.case.params["table"], dtype=torch.float64)),
    )
    outer = LearnedOuter([{"params": [linear]}, {"params": [table], "layout": "as-is"}], pair.path)
    _, change, _ = pair.case.twin()[0]
    mean, _ = pair.case.at(0)
    before = [linear.detach().clone(), table.detach().clone()]
    linear.grad, table.grad = (
        tensor(mean["square"], torch.float64),
        torch.tensor(mean["table"], dtype=torch.float64),
    )
    outer.step()
    assert_close(from_torch((linear.detach() - before[0]).numpy()), change["square"], 1e-5)
    assert_close((table.detach() - before[1]).numpy(), change["table"], 1e-5)


def test_rate_and_decay_like_scale_and_decay_in_jax(tmp_path):
    spec, scale, decay = SPECS[0], 0.5, 0.01
    pair = Pair(spec, tmp_path, lr=scale, weight_decay=decay / scale)
    tx = spec(pair.case.theta, scale=scale, weight_decay=decay).tx
    mean, _ = pair.case.at(0)
    updates, _ = jax.jit(tx.update, compiler_options=QUICK)(
        mean, pair.case.init(), pair.case.params
    )
    assert_close(pair.step(0), float64(updates), 1e-5)


def test_absent_workers_are_filled_by_the_mean(tmp_path):
    spec = LearnedOptimizer("lagg-a", 4)
    pair = Pair(spec, tmp_path)
    twin_state, weights = ref.ada_init(float64(pair.case.params)), (1.0, 0.0, 2.0, 0.0)
    mean, deltas = pair.case.at(0)
    expected, _ = ref.lagg_a_update(
        float64(pair.case.theta),
        float64(pair.case.params),
        twin_state,
        float64(deltas),
        weights=weights,
    )
    mean = ref.weighted_mean(float64(deltas), weights)
    gathered = pair.set_grads(0)
    for p, x, d in zip(pair.params, mean.values(), gathered, strict=True):
        p.grad = tensor(x, torch.float64)
        d[1] = torch.nan  # whatever an absent worker's slot holds
    pair.outer.step(worker_deltas=gathered, weights=weights)
    assert_close(pair.weights(), expected, 1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", ["lopt-a-fmnist", "lagg-a-fmnist", "lopt-r"])
def test_cuda_like_cpu(name):
    params, deltas = random_tree(SHAPES, 1), random_deltas(SHAPES, ROUNDS, 8, 2)
    homes = {
        d: [torch.nn.Parameter(tensor(x).to(d)) for x in params.values()] for d in ("cpu", "cuda")
    }
    outers = {d: LearnedOuter(ours, name) for d, ours in homes.items()}
    for t in range(ROUNDS):
        for d, ours in homes.items():
            gathered = [torch.tensor(to_torch(x[t], 1).copy(), device=d) for x in deltas.values()]
            for p, x in zip(ours, gathered, strict=True):
                p.grad = x.mean(0)
            outers[d].step(worker_deltas=gathered)
    for p, q in zip(*homes.values(), strict=True):
        assert outers["cuda"].state[q]["v"].device.type == "cuda"
        assert_close(q.detach().cpu().numpy(), p.detach().numpy(), 1e-5)
