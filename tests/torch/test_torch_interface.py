"""What a torch optimizer owes its users: state that round-trips, float dtypes, clear errors."""

import copy
import io
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

from laconic.outer.learned import LearnedOptimizer
from laconic.torch import LearnedOuter
from tests.outer.trees import assert_close
from tests.torch.pairs import SHAPES, Pair

LOPT_A, LAGG_A = LearnedOptimizer("lopt-a"), LearnedOptimizer("lagg-a", 4)
SMALL = {name: SHAPES[name] for name in ("scalar", "vector", "square", "kernel")}


def parameter(*shape, dtype=torch.float32, grad=0.01):
    p = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
    p.grad = torch.full_like(p, grad)
    return p


def same_bits(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert torch.equal(a, b)


@pytest.fixture
def pair(tmp_path):
    return Pair(LOPT_A, tmp_path, SMALL, torch.float32)


@pytest.mark.parametrize(
    "spec", [LOPT_A, LAGG_A, LearnedOptimizer("lopt")], ids=lambda spec: spec.architecture
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_round_trips_through_a_file_to_the_last_bit(spec, dtype, tmp_path):
    here, there = (Pair(spec, tmp_path, SMALL, dtype) for _ in range(2))
    for t in range(3):
        here.step(t)
    file = io.BytesIO()
    torch.save(here.outer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # nothing but tensors, numbers and names
    there.outer.load_state_dict(saved)
    with torch.no_grad():
        for p, q in zip(here.params, there.params, strict=True):
            q.copy_(p)
    for t in (3, 4):
        here.step(t)
        there.step(t)
    for p, q in zip(here.params, there.params, strict=True):
        same_bits(p, q)
        assert here.outer.state[p]["round"] == there.outer.state[q]["round"] == 5
        for key, x in here.outer.state[p].items():
            if key != "round":
                same_bits(x, there.outer.state[q][key])
                assert x.dtype == torch.float32
                assert x.data_ptr() != saved["state"][0].get(key, x.new_empty(0)).data_ptr()


def test_loaded_state_is_ones_own(tmp_path):
    here, there = (Pair(LOPT_A, tmp_path, SMALL, torch.float32) for _ in range(2))
    here.step(0)
    there.outer.load_state_dict(here.outer.state_dict())
    before = here.outer.state[here.params[2]]["m"].clone()
    there.step(1)
    same_bits(here.outer.state[here.params[2]]["m"], before)


def test_a_pre_hook_may_change_what_is_loaded(pair, tmp_path):
    pair.step(0)
    other = Pair(LOPT_A, tmp_path, SMALL, torch.float32)

    def later(_, given):
        return {**given, "state": {i: {**s, "round": 7} for i, s in given["state"].items()}}

    other.outer.register_load_state_dict_pre_hook(later)
    other.outer.load_state_dict(pair.outer.state_dict())
    assert {state["round"] for state in other.outer.state.values()} == {7}


def test_a_state_belongs_to_its_optimizer(raises_clearly):
    param = parameter()
    param.grad = torch.ones_like(param)
    outer = LearnedOuter([param], "lopt-a-general")
    outer.step()
    other = LearnedOuter([parameter()], "lopt-a-fmnist")
    with raises_clearly("belongs to another learned optimizer than lopt-a-fmnist"):
        other.load_state_dict(outer.state_dict())
    assert not other.state
    saved = outer.state_dict()
    for group in saved["param_groups"]:
        del group["optimizer"]  # as states were saved before they said whose they are
    other.load_state_dict(saved)


def test_state_for_another_model_is_refused_and_nothing_taken(pair, tmp_path, raises_clearly):
    pair.step(0)
    other = Pair(LOPT_A, tmp_path, {**SMALL, "kernel": (3, 3, 4, 7)}, torch.float32)
    with raises_clearly("parameter 3", "(7, 4, 3, 3)", "another model"):
        other.outer.load_state_dict(pair.outer.state_dict())
    assert not other.outer.state
    plain = torch.optim.SGD(pair.params, 0.1, momentum=0.9)
    plain.step()
    with raises_clearly("momentum_buffer", "another optimizer"):
        pair.outer.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="parameter group"):
        LearnedOuter([parameter()], pair.path).load_state_dict(pair.outer.state_dict())


def test_a_copy_goes_on_by_itself(pair):
    pair.step(0)
    twin = copy.deepcopy(pair.outer)
    twins = twin.param_groups[0]["params"]
    deltas = pair.set_grads(1)
    for p, q in zip(pair.params, twins, strict=True):
        q.grad = p.grad.clone()
    pair.outer.step(worker_deltas=deltas)
    twin.step()
    for p, q in zip(pair.params, twins, strict=True):
        assert p is not q
        same_bits(p, q)
    assert twin.card == pair.outer.card


@pytest.mark.parametrize(
    ("dtype", "digits"), [(torch.bfloat16, 8), (torch.float16, 11), (torch.float64, 24)]
)
def test_parameters_of_other_dtypes(dtype, digits, tmp_path):
    """The step is that of the same numbers in float32, rounded once into the parameter."""
    low, full = Pair(LOPT_A, tmp_path, SMALL, dtype), Pair(LOPT_A, tmp_path, SMALL, torch.float32)
    with torch.no_grad():
        for p, q in zip(low.params, full.params, strict=True):
            q.copy_(p)
    low.set_grads(0)
    for p, q in zip(low.params, full.params, strict=True):
        q.grad = p.grad.float()
    low.outer.step()
    full.outer.step()
    for p, q in zip(low.params, full.params, strict=True):
        assert p.dtype == dtype
        gap, size = (p.double() - q.double()).abs(), q.double().abs()
        assert bool((gap <= size * 2.0**-digits + 1e-12).all())
        assert {x.dtype for key, x in low.outer.state[p].items() if key != "round"} == {
            torch.float32
        }


def test_autocast_does_not_reach_inside(tmp_path):
    one, other = (Pair(LOPT_A, tmp_path, SMALL, torch.float32) for _ in range(2))
    one.step(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (
            torch.ones(2, 2) @ torch.ones(2, 2)
        ).dtype == torch.bfloat16  # it does reach outside
        other.step(0)
    for p, q in zip(one.params, other.params, strict=True):
        same_bits(p, q)


@pytest.fixture
def odd_defaults():
    """Whatever is made without saying where and in what goes wrong."""
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def test_the_defaults_for_new_tensors_do_not_matter(tmp_path, request):
    pairs = [Pair(LOPT_A, tmp_path, SMALL, torch.float32) for _ in range(2)]
    pairs[0].step(0)
    deltas = pairs[1].set_grads(0)
    request.getfixturevalue("odd_defaults")
    LearnedOuter(pairs[1].params, pairs[1].path).step(worker_deltas=deltas)
    for p, q in zip(*(pair.params for pair in pairs), strict=True):
        same_bits(p, q)


@pytest.mark.parametrize(
    "spec", [LOPT_A, LAGG_A, LearnedOptimizer("lopt")], ids=lambda spec: spec.architecture
)
def test_everything_is_done_on_the_parameters_device(spec, tmp_path, monkeypatch):
    """Tensors on "meta" have no numbers, but mixing them with tensors of another device is an error
    all the same."""
    monkeypatch.setattr(LearnedOuter, "_sound", lambda *_: True)  # it looks at numbers
    pair = Pair(spec, tmp_path, SMALL, tile=7)
    params = [torch.nn.Parameter(p.detach().to("meta")) for p in pair.params]
    for p in params:
        p.grad = torch.empty_like(p)
    outer = LearnedOuter(params, pair.path, tile=7)
    monkeypatch.setattr(torch, "autocast", mock.MagicMock())  # there is none for such a device
    outer.step(worker_deltas=[torch.empty(4, *p.shape, device="meta") for p in params])
    devices = {
        x.device.type
        for state in outer.state.values()
        for key, x in state.items()
        if key != "round"
    }
    assert devices == ({"meta"} if spec.accumulates else set())
    assert [state["round"] for state in outer.state.values()] == [1, 1, 1, 1]


def test_a_parameter_without_gradient_is_left_alone_and_its_rounds_are_not_counted(tmp_path):
    """As when fragments of a model are synchronised in turn: each goes through the rounds it takes
    part in."""
    turns, each = (Pair(LOPT_A, tmp_path, SMALL, torch.float32) for _ in range(2))
    turns.set_grads(0)
    turns.params[3].grad = None
    kept = turns.params[3].detach().clone()
    turns.outer.step()
    same_bits(turns.params[3].detach(), kept)
    assert turns.params[3] not in turns.outer.state
    turns.set_grads(0)
    for p in turns.params[:3]:
        p.grad = None
    turns.outer.step()
    each.step(0)
    for p, q in zip(turns.params, each.params, strict=True):
        same_bits(p, q)
        assert turns.outer.state[p]["round"] == 1
    turns.outer.zero_grad()
    turns.outer.step()  # nothing to do
    assert turns.outer.state[turns.params[0]]["round"] == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_what_is_not_finite(bad, pair, tmp_path, raises_clearly):
    skipping = Pair(LOPT_A, tmp_path, SMALL, torch.float32, on_nonfinite="skip")
    for one in (pair, skipping):
        one.step(0)
    before = copy.deepcopy([*skipping.outer.state.values(), *skipping.params])
    for one in (pair, skipping):
        one.set_grads(1)
        one.params[2].grad[3, 1] = bad
    with raises_clearly("gradient of parameter 2 holds NaN", "on_nonfinite"):
        pair.outer.step()
    skipping.outer.step()
    for one in (pair, skipping):  # in neither has anything moved
        for x, y in zip([*one.outer.state.values(), *one.params], before, strict=True):
            if isinstance(x, torch.Tensor):
                same_bits(x, y)
            else:
                assert x["round"] == y["round"] == 1
                same_bits(x["m"], y["m"])
    assert_close(pair.step(1), skipping.step(1), 1e-9)  # and the next round goes on
    assert all(bool(torch.isfinite(p).all()) for p in pair.params)


def test_names_are_in_errors_where_parameters_came_with_names(pair, raises_clearly):
    layer = torch.nn.Linear(2, 3)
    outer = LearnedOuter(layer.named_parameters(), pair.path)
    layer.weight.grad, layer.bias.grad = torch.ones(3, 2), torch.full((3,), torch.nan)
    with raises_clearly("the gradient of bias"):
        outer.step()


def test_a_bad_worker_delta_is_seen_too(tmp_path, raises_clearly):
    pair = Pair(LAGG_A, tmp_path, SMALL, torch.float32)
    deltas = pair.set_grads(0)
    deltas[1][2, 3] = torch.nan
    with raises_clearly("parameter 1", "NaN"):
        pair.outer.step(worker_deltas=deltas)
    assert not pair.outer.state


def test_worker_deltas(tmp_path, raises_clearly):
    pair = Pair(LAGG_A, tmp_path, SMALL, torch.float32)
    deltas = pair.set_grads(0)
    with raises_clearly("made-up", "step(worker_deltas="):
        pair.outer.step()
    with raises_clearly("3 entries", "4 parameters"):
        pair.outer.step(worker_deltas=deltas[:3])
    with raises_clearly("K = 4", "parameter 1 hold 3"):
        pair.outer.step(worker_deltas=[deltas[0], deltas[1][:3], *deltas[2:]])
    with raises_clearly("K = 4", "parameter 0 hold 5"):
        pair.outer.step(worker_deltas=[torch.zeros(5), *deltas[1:]])
    with raises_clearly("parameter 2 must be", "(4, 5, 5)", "(4, 5, 4)"):
        pair.outer.step(worker_deltas=[*deltas[:2], deltas[2][..., :4], deltas[3]])
    with raises_clearly("parameter 0 must be", "got ()"):
        pair.outer.step(worker_deltas=[torch.zeros(()), *deltas[1:]])
    with raises_clearly("parameter 0", "None"):
        pair.outer.step(worker_deltas=[None, *deltas[1:]])
    with raises_clearly("one number a worker, 4 in all"):
        pair.outer.step(worker_deltas=deltas, weights=[1.0, 1.0])
    assert not pair.outer.state
    pair.params[0].grad = None
    pair.outer.step(worker_deltas=[None, *deltas[1:]])  # no gradient, nothing looked at
    assert len(pair.outer.state) == 3


def test_parameters_it_is_not_for(pair, raises_clearly):
    for dtype in (torch.int64, torch.complex64, torch.bool):
        x = torch.zeros(3, dtype=dtype)
        with raises_clearly("real floating-point", str(dtype)):
            LearnedOuter([x], pair.path)
        with raises_clearly(str(dtype)):
            pair.outer.add_param_group({"params": [x]})
    assert len(pair.outer.param_groups) == 1
    p = parameter(3, 2)
    p.grad = p.grad.to_sparse()
    with raises_clearly("sparse"):
        LearnedOuter([p], pair.path).step()


def test_options_it_does_not_have(pair, raises_clearly):
    p = parameter(2)
    for options, parts in (
        ({"layout": "nchw"}, ("unknown layout 'nchw'", "as-is, torch")),
        ({"on_nonfinite": "ignore"}, ("unknown on_nonfinite", "raise, skip")),
        ({"lr": -1.0}, ("lr must be", "-1.0")),
        ({"weight_decay": float("nan")}, ("weight_decay must be", "nan")),
        ({"tile": 0}, ("tile", "at least 1")),
    ):
        with raises_clearly(*parts):
            LearnedOuter([p], pair.path, **options)
    with pytest.raises(ValueError, match="empty parameter list"):
        LearnedOuter([], pair.path)


def test_a_scheduler_turns_the_rate(pair):
    p = parameter(4, 3)
    outer = LearnedOuter([p], pair.path)
    schedule = torch.optim.lr_scheduler.LambdaLR(outer, lambda t: float(t == 1))
    assert outer.step(lambda: 3.5) == 3.5
    same_bits(p.detach(), torch.ones(4, 3))  # the first rate is 0
    schedule.step()
    outer.step()
    assert not torch.equal(p, torch.ones(4, 3))


def test_empty_and_strided_parameters(pair):
    empty = parameter(0, 3)
    strided = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).T)
    plain = torch.nn.Parameter(strided.detach().contiguous())
    for p in (strided, plain):
        p.grad = torch.linspace(-1, 1, 12).reshape(4, 3)
    outer = LearnedOuter([empty, strided, plain], pair.path)
    outer.step()
    assert not strided.is_contiguous()
    np.testing.assert_allclose(strided.detach().numpy(), plain.detach().numpy(), rtol=1e-6)
    assert outer.state[empty]["round"] == 1


def test_a_part_of_a_model_takes_the_step_of_the_whole(raises_clearly):
    """An optimizer with `deepest` needs to be told how many matrices there are."""
    whole = [parameter(4, 3) for _ in range(20)]
    LearnedOuter(whole, "lopt-a-general").step()
    part, alone = parameter(4, 3), parameter(4, 3)
    LearnedOuter([part], "lopt-a-general", matrices=20).step()
    LearnedOuter([alone], "lopt-a-general").step()
    same_bits(part, whole[7])
    assert not torch.equal(alone, whole[7])
    with raises_clearly("at least one matrix", "matrices=0"):
        LearnedOuter([alone], "lopt-a-general", matrices=0)
