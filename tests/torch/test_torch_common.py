"""PyTorch's harness for optimizers (`torch.testing._internal.common_optimizers`), on `LearnedOuter`
of each architecture. The checks are those of PyTorch's test_optim.py; `LEFT_OUT` says which are
not asked, and why."""

import copy
import io
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

try:
    import expecttest  # noqa: F401
except ImportError:  # PyTorch's harness imports it for a kind of test that is not used here
    stub = types.ModuleType("expecttest")
    vars(stub).update(TestCase=unittest.TestCase, ACCEPT=False)
    sys.modules["expecttest"] = stub

from torch.testing._internal import common_optimizers as harness

from laconic import zoo
from laconic.errors import LaconicError
from laconic.torch import LearnedOuter
from tests.zoo.made import LOPT_R, a_card, weights

K = 8
NAMES = ("lopt-a-general", "lagg-a-fmnist", "lopt-fmnist", "lagg-fmnist", "lopt-r")
CHOICES = ({}, {"lr": 0.5}, {"lr": torch.tensor(0.5)}, {"lr": torch.tensor([0.5])})
CHOICES += ({"weight_decay": 0.1}, {"on_nonfinite": "skip", "tile": 7})
LEFT_OUT = {
    "fused": "there is none",
    "capturable, differentiable, maximize": "not options of LearnedOuter",
    "complex parameters, sparse gradients": "refused with a clear error",
    "no-op at zero gradients": "a learned step looks at parameters and momenta as well",
    "more than one device": "CPU here; devices are tested with PyTorch's meta device",
}


def choices(device: Any, dtype: Any = None) -> list[Any]:
    return [harness.OptimizerInput(None, kwargs, str(kwargs)) for kwargs in CHOICES]


@pytest.fixture(scope="module", params=NAMES)
def info(request, tmp_path_factory):
    """The optimizer as the harness describes its own; all workers see the same Δ."""
    path = request.param
    if path == "lopt-r":
        path = tmp_path_factory.mktemp("zoo") / "lopt-r.safetensors"
        zoo.publish(path, LOPT_R, weights(LOPT_R), a_card(LOPT_R))

    class Ours(LearnedOuter):
        file = path

        def __init__(self, params: Any, **options: Any):
            super().__init__(params, path, **options)

        def step(self, closure: Any = None) -> Any:
            loss = None if closure is None else torch.enable_grad()(closure)()
            deltas = [
                None if p.grad is None else torch.stack([p.grad] * K) for p in params_of(self)
            ]
            super().step(worker_deltas=deltas)
            return loss

    return harness.OptimizerInfo(
        Ours,
        optim_inputs_func=choices,
        supported_impls=(),
        supports_complex=False,
        optim_error_inputs_func=harness.get_error_inputs_for_all_optims,
    )


@pytest.fixture(params=range(len(CHOICES)), ids=[str(kwargs) for kwargs in CHOICES])
def kwargs(request, info):
    """The options of one of the harness's inputs."""
    return info.optim_inputs_func("cpu")[request.param].kwargs


def params_of(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def model(dtype: Any = torch.float32, seed: int = 0) -> list[Any]:
    """Weight, bias, an empty tensor and one that is not contiguous."""
    draw = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=draw).to(dtype)
    tensors = [normal(10, 5), normal(10), torch.zeros(0, 3, dtype=dtype), normal(5, 4).T]
    return [torch.nn.Parameter(x) for x in tensors]


def loss_of(params: list[Any]) -> Any:
    weight, bias, empty, strided = params
    seen = weight @ torch.ones(5, dtype=weight.dtype) + bias
    return 0.01 * (seen.square().sum() + strided.square().sum() + empty.sum())


def rounds(optimizer: Any, params: list[Any], count: int = 3) -> Any:
    """Rounds in which Δ is 0.01 of the gradient → the last loss."""

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(count)][-1]


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(list(one), list(other), rtol=0, atol=0)


def test_errors(info):
    for case in info.optim_error_inputs_func("cpu", torch.float32):
        given, kind, says = case.optimizer_error_input, case.error_type, case.error_regex
        if "Tensor lr" in says:
            kind, says = LaconicError, "lr must be one number, got a tensor of 2"
        params = model() if given.params is None else given.params
        context = pytest.warns if issubclass(kind, Warning) else pytest.raises
        with context(kind, match=says):
            info.optim_cls(params, **given.kwargs)


def test_right_direction_and_closure(info, kwargs):
    params = model()
    start = loss_of(params).item()
    optimizer = info.optim_cls(params, **kwargs)
    end = rounds(optimizer, params, 20)
    assert end.item() < start
    assert str(optimizer).startswith("Ours")


def test_a_tensor_as_rate(info):
    ends = []
    for lr in (0.5, torch.tensor(0.5), torch.tensor([[0.5]])):
        params = model()
        rounds(info.optim_cls(params, lr=lr), params)
        ends.append(params)
    same(ends[0], ends[1])
    same(ends[0], ends[2])


def test_groups_have_their_own_rate_and_decay(info):
    params = model()
    before = [p.detach().clone() for p in params]
    own = [{"params": params[:1], "lr": 0.0, "weight_decay": 0.5}, {"params": params[1:2]}]
    rounds(info.optim_cls([*own, {"params": params[2:], "weight_decay": 0.1}]), params, 1)
    plain = model()
    rounds(info.optim_cls(plain), plain, 1)
    same(params[:1], before[:1])
    same(params[1:2], plain[1:2])
    expected = plain[3] - 0.1 * before[3]
    torch.testing.assert_close(params[3], expected, rtol=0, atol=1e-6)


def test_no_gradient_no_step(info, kwargs):
    params = model()
    before = [p.detach().clone() for p in params]
    optimizer = info.optim_cls(params, **kwargs)
    optimizer.step()
    same(params, before)
    assert not optimizer.state


def test_state_dict_goes_on_to_the_same_bits(info, kwargs):
    params = model()
    optimizer = info.optim_cls(params, **kwargs)
    rounds(optimizer, params)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    twin = info.optim_cls(twins, **kwargs)
    twin.load_state_dict(torch.load(file, weights_only=True))
    for one, its in ((optimizer, params), (twin, twins)):
        rounds(one, its)
    same(params, twins)
    assert all(state["round"] == 6 for state in optimizer.state.values())


def test_a_deep_copy_goes_on_to_the_same_bits(info):
    params = model()
    optimizer = info.optim_cls(params)
    rounds(optimizer, params)
    twin = copy.deepcopy(optimizer)
    public = lambda x: {name for name in vars(x) if not name.startswith("_")}
    assert public(twin) == public(optimizer)
    for one in (optimizer, twin):
        rounds(one, params_of(one))
    same(params, params_of(twin))


def test_hooks_are_called_around_a_step(info):
    p, seen = torch.nn.Parameter(torch.ones(3, 2)), []
    p.grad = torch.ones(3, 2)
    optimizer = LearnedOuter([p], info.optim_cls.file)  # itself: each class's step calls the hooks
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: seen.append(len(state)))
    optimizer.step(worker_deltas=[torch.ones(K, 3, 2)])
    optimizer.state_dict()
    assert seen == ["before", "after", 2]


def test_complex_and_sparse_are_refused(info):
    with pytest.raises(LaconicError, match="real floating-point"):
        info.optim_cls([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    p = torch.nn.Parameter(torch.ones(3, 2))
    p.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(LaconicError, match="sparse"):
        LearnedOuter.step(info.optim_cls([p]), worker_deltas=[None])


def seven_rounds(info, **options: Any) -> Any:
    """Of tensors that pair off, in two groups → parameters, states, how many stepped at once."""
    draw = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(shape, generator=draw)
    tensors = [normal(4, 3), normal(3), normal(3, 4).T, normal(), normal(3), normal(4, 3)]
    params = [torch.nn.Parameter(x) for x in (*tensors, normal(), torch.zeros(0, 3))]
    optimizer = info.optim_cls([{"params": params[:6]}, {"params": params[6:]}], **options)
    together, step_some = [], optimizer._step_some

    def counted(some: Any, change_of: Any) -> None:
        together.append(len(some))
        step_some(some, change_of)

    optimizer._step_some = counted
    for t in range(7):
        for i, p in enumerate(params):
            p.grad = None if t == i == 1 else 0.01 * p.detach().square()
        optimizer.step()
    return params, [optimizer.state[p] for p in params], together


def test_foreach_matches_the_loop(info, kwargs):
    """As PyTorch's test of that name; tensors of one shape step at once, whatever their strides."""
    options = {"tile": 24, **kwargs}
    *alone, ones = seven_rounds(info, **options, foreach=False)
    *stacked, together = seven_rounds(info, **options, foreach=True)
    assert set(ones) == {1}
    assert max(together) == 2
    assert together.count(2) == (8 if options["tile"] == 24 else 1)  # rounds differ after one
    torch.testing.assert_close(alone, stacked)


def test_the_docs_say_what_is_left_out():
    page = (Path(__file__).parents[2] / "docs/checks.md").read_text()
    assert [f"| {what} | {why} |" in page for what, why in LEFT_OUT.items()] == [True] * len(
        LEFT_OUT
    )
