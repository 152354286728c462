"""PyTorch clients send state_dicts as they are; the server's step is the one that `LearnedOuter`
takes in PyTorch."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")
torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from laconic.flower import LearnedStrategy
from laconic.torch import LearnedOuter
from tests.flower.grids import FakeGrid

ROUNDS = 3


def a_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3, padding=1),  # as wide as it has outputs: its layout shows
        torch.nn.BatchNorm2d(3),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 48),
        torch.nn.Tanh(),
        torch.nn.Linear(48, 2),
    )


def local_steps(state, round_, client):
    """Two steps of SGD from a state_dict → the next one."""
    model = a_model()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(100 * round_ + client)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 2, 4, 4) + client).square().mean().backward()
        optimizer.step()
    return model.state_dict()


def client(k):
    def run(round_, weights):
        after = local_steps({name: torch.tensor(w) for name, w in weights.items()}, round_, k)
        metrics = MetricRecord({"num-examples": 10})
        return RecordDict({"arrays": ArrayRecord(after), "metrics": metrics})

    return run


def in_torch():
    """The same rounds without Flower: Δ is the gradient of a torch optimizer."""
    model = a_model()
    outer = LearnedOuter(model.parameters(), "lopt-a-general")
    for round_ in range(1, ROUNDS + 1):
        ends = [local_steps(model.state_dict(), round_, k) for k in range(2)]
        for name, p in model.named_parameters():
            p.grad = p.detach() - (ends[0][name] + ends[1][name]) / 2
        outer.step()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_((ends[0][name] + ends[1][name]) / 2)
    return model.state_dict()


def test_a_state_dict_takes_the_steps_of_the_torch_optimizer():
    strategy = LearnedStrategy("lopt-a-general", fraction_evaluate=0.0)
    grid = FakeGrid({7: client(0), 9: client(1)})
    result = strategy.start(grid, ArrayRecord(a_model().state_dict()), num_rounds=ROUNDS)
    found, expected, start = result.arrays.to_torch_state_dict(), in_torch(), a_model().state_dict()
    assert list(found) == list(expected)
    for name, x in expected.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_allclose(found[name], x, rtol=0, atol=1e-5, err_msg=name)
        assert not torch.equal(found[name], start[name])
    assert found["1.num_batches_tracked"] == 2 * ROUNDS
