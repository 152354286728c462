"""Under torchft's DiLoCo: the gradients it sets are laconic's deltas, sign included, and two real
processes agree."""

import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

from laconic import zoo
from laconic.torch import LearnedOuter
from tests.cli.commands import process
from tests.zoo.made import LOPT_R, a_card, weights

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = re.compile(r"^(\S+): loss ([0-9.]+) after 10 rounds, ([0-9.]+) after 50")


@pytest.fixture
def torchft():
    return pytest.importorskip(
        "torchft", reason="torchft is not installed: pip install 'laconic[torchft]'"
    )


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 8))


def manager_of(torchft, factor):
    """A Manager of one replica; `factor` is what averaging with others would do to its delta."""
    from torchft.work import _DummyWork

    manager = mock.create_autospec(torchft.Manager)
    manager._use_async_quorum = False
    manager.current_step.return_value = 0
    manager.should_commit.return_value = True
    manager.allreduce.side_effect = lambda tensor, **_: _DummyWork(tensor.mul_(factor))
    return manager


@pytest.mark.parametrize(
    ("factor", "learned"), [(1.0, "lopt-a-fmnist"), (0.5, "lopt-a-fmnist"), (0.5, LOPT_R)]
)
def test_diloco_gives_the_delta_and_the_learned_step_is_taken_from_the_old_weights(
    torchft, factor, learned, tmp_path
):
    from torchft.local_sgd import DiLoCo

    if learned is LOPT_R:  # of the workers it sees only the mean
        learned = tmp_path / "made-up.safetensors"
        zoo.publish(learned, LOPT_R, weights(LOPT_R), a_card(LOPT_R))
    model, twin = model_of(0), model_of(0)
    local = torch.optim.SGD(model.parameters(), 0.01)
    outer, by_hand = (LearnedOuter(m.parameters(), learned) for m in (model, twin))
    before, seen = [p.detach().clone() for p in model.parameters()], []
    outer.register_step_pre_hook(
        lambda *_: seen.append([(p.detach().clone(), p.grad.clone()) for p in model.parameters()])
    )
    # registered before DiLoCo's own hook, so it sees the local weights before they are taken back
    after = []
    local.register_step_post_hook(
        lambda *_: after.append([p.detach().clone() for p in model.parameters()])
    )
    with DiLoCo(manager_of(torchft, factor), [model], local, outer, sync_every=3):
        for _ in range(3):
            local.zero_grad()
            model(torch.randn(5, 2, 4, 4)).square().sum().backward()
            local.step()
    assert (len(seen), len(after)) == (1, 3)
    for (value, grad), old, new, p in zip(
        seen[0], before, after[-1], twin.parameters(), strict=True
    ):
        assert torch.equal(value, old)
        assert torch.equal(grad, factor * (old - new))
        assert float(grad.abs().max()) > 1e-4
        p.grad = grad
    by_hand.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
        assert outer.state[p]["round"] == 1


def test_a_replica_heals_to_the_same_outer_state(torchft):
    """torchft moves `state_dict()` from a healthy replica into a fresh one; both go on alike."""
    from torchft.local_sgd import DiLoCo

    replicas = []
    for seed in (0, 1):
        model = model_of(seed)
        local, outer = (
            torch.optim.SGD(model.parameters(), 0.1),
            LearnedOuter(model.parameters(), "lopt-a-fmnist"),
        )
        manager = manager_of(torchft, 1.0)
        diloco = DiLoCo(manager, [model], local, outer, sync_every=1)
        (_, load, save), _ = manager.register_state_dict_fn.call_args
        replicas.append((model, local, diloco, load, save))

    def go(replica, seed):
        model, local, diloco, _, _ = replica
        torch.manual_seed(seed)
        with diloco:
            local.zero_grad()
            model(torch.randn(5, 2, 4, 4)).square().sum().backward()
            local.step()

    healthy, fresh = replicas
    go(healthy, 5)
    fresh[3](healthy[4]())
    fresh[0].load_state_dict(healthy[0].state_dict())
    for replica in replicas:
        go(replica, 6)
    for p, q in zip(healthy[0].parameters(), fresh[0].parameters(), strict=True):
        assert torch.equal(p, q)


def losses_of(text):
    found = [LINE.match(line) for line in text.splitlines()]
    assert len(found) == 3
    assert all(found)
    return [(float(line[2]), float(line[3])) for line in found if line]


@pytest.mark.slow
def test_two_processes(torchft):
    _, environment = process("")
    command = [sys.executable, str(EXAMPLES / "torch_diloco.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    averaging, nesterov, learned = losses_of(done.stdout)
    assert learned[0] < nesterov[0] < averaging[0] < 2.0
    assert learned[1] < 0.5 * averaging[1]
    assert done.stdout.count("the workers' weights agree") == 3
