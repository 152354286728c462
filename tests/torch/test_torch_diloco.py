"""Under torchft's DiLoCo: the gradients it sets are laconic's deltas, sign included, and two real
processes agree."""

import copy
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


class Blocks(torch.nn.Module):
    """Two fragments of different depth, and a head that belongs to the second."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        linear = torch.nn.Linear
        self.first = torch.nn.Sequential(*(linear(6, 6) for _ in range(5)))
        self.second = torch.nn.Sequential(linear(6, 6), torch.nn.Tanh(), linear(6, 2))

    @property
    def fragments(self):
        return [self.first, self.second]

    def forward(self, x):
        return self.second(self.first(x))


def outers_of(model):
    """One for each fragment; `lopt-a-general` shortens the steps of models of many matrices."""
    matrices = sum(p.ndim > 1 for p in model.parameters())
    return [
        LearnedOuter(fragment.parameters(), "lopt-a-general", matrices=matrices)
        for fragment in model.fragments
    ]


def streaming(torchft, model, delay, alpha):
    """Streaming DiLoCo on a manager that counts its commits, as a real one does."""
    from torchft.local_sgd import DiLoCo

    manager = manager_of(torchft, 0.5)

    def commit():
        manager.current_step.return_value += 1
        return True

    manager.should_commit.side_effect = commit
    local = torch.optim.AdamW(model.parameters(), 0.01)
    outers = outers_of(model)
    options = {"fragment_sync_delay": delay, "fragment_update_alpha": alpha}
    return local, outers, DiLoCo(manager, model.fragments, local, outers, 6, **options)


def local_steps(model, local, count, seed):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        local.zero_grad()
        model(torch.randn(5, 6, generator=draw)).square().sum().backward()
        local.step()


@pytest.mark.parametrize(("delay", "alpha"), [(0, 0.0), (1, 0.0), (2, 0.5)])
def test_each_fragment_has_a_learned_optimizer_of_its_own(torchft, delay, alpha):
    """Streaming DiLoCo with delays and mixing is that of the same deltas stepped by hand, in
    fragments and with one optimizer for the whole model."""
    model, twin, whole = Blocks(0), Blocks(0), Blocks(0)
    local, outers, diloco = streaming(torchft, model, delay, alpha)
    by_hand = outers_of(twin)
    of_whole = LearnedOuter(whole.parameters(), "lopt-a-general")
    turns = []

    def by_hand_too(optimizer, *_):
        turn = outers.index(optimizer)
        turns.append(turn)
        given = list(model.fragments[turn].parameters())
        for other in (twin, whole):
            other.zero_grad()
            for p, q in zip(given, other.fragments[turn].parameters(), strict=True):
                assert torch.equal(p, q)  # the outer step begins at the weights of the last one
                q.grad = p.grad.clone()
        by_hand[turn].step()
        of_whole.step()

    stepped = []
    for outer in outers:
        outer.register_step_pre_hook(by_hand_too)
        outer.register_step_post_hook(
            lambda outer, *_: stepped.append([p.clone() for p in outer.param_groups[0]["params"]])
        )
    with diloco:
        local_steps(model, local, 24, 3)
    assert turns == [0, 1] * 4
    for turn, found in list(enumerate(stepped))[-2:]:
        fragment = turn % 2
        for p, q, r in zip(
            found,
            twin.fragments[fragment].parameters(),
            whole.fragments[fragment].parameters(),
            strict=True,
        ):
            assert torch.equal(p, q)
            assert torch.equal(p, r)
    assert {s["round"] for outer in outers for s in outer.state.values()} == {4}


def test_the_fragments_of_a_healed_replica_go_on_alike(torchft):
    """Between the turns of two fragments, whose optimizers have seen different rounds."""
    replicas = []
    for seed in (0, 1):
        model = Blocks(seed)
        local, outers, diloco = streaming(torchft, model, 0, 0.0)
        calls = diloco._manager.register_state_dict_fn.call_args_list
        replicas.append((model, local, outers, diloco, calls))
    healthy, fresh = replicas
    with healthy[3]:
        local_steps(healthy[0], healthy[1], 9, 5)
    for (ours, _), (theirs, _) in zip(healthy[4], fresh[4], strict=True):
        assert ours[0] == theirs[0]  # a name of its own for every fragment
        theirs[1](ours[2]())
    assert [s["round"] for outer in fresh[2] for s in outer.state.values()] == [2] * 10 + [1] * 4
    fresh[0].load_state_dict(healthy[0].state_dict())
    fresh[1].load_state_dict(copy.deepcopy(healthy[1].state_dict()))  # AdamW keeps what it is given
    fresh[3]._manager.current_step.return_value = 3
    ends = []
    for model, local, outers, diloco, _ in replicas:
        with diloco:
            local_steps(model, local, 3, 6)
        ends.append([p.detach() for p in model.parameters()])
        ends[-1] += [x for o in outers for s in o.state.values() for x in s.values()]
    for one, other in zip(*ends, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


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
