"""The weights come from the same files by the same checks, and JAX stays away."""

import subprocess

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

import laconic
from laconic import zoo
from laconic.errors import LaconicError
from laconic.torch import LearnedOuter
from tests.cli.commands import process
from tests.zoo.made import LAGG_A, a_meta, forge, weights

SCRIPT = """
import sys
import torch
import laconic.torch
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 4))
outer = laconic.torch.LearnedOuter(model.parameters(), "lopt-a-fmnist")
for p in outer.param_groups[0]["params"]:
    p.grad = torch.full_like(p, 0.01)
outer.step()
outer.load_state_dict(outer.state_dict())
print(outer.card.name, outer.card.local["learning_rate"], laconic.LaconicError.__name__)
loaded = {name.split(".")[0] for name in sys.modules}
print(sorted(loaded & {"jax", "jaxlib", "optax", "equinox", "flax"}))
"""


def test_no_jax():
    command, environment = process(SCRIPT)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["lopt-a-fmnist 0.3 LaconicError", "[]"]


@pytest.mark.parametrize("name", laconic.published())
def test_every_published_optimizer(name):
    p = torch.nn.Parameter(torch.zeros(3, 2))
    outer = LearnedOuter([p], name)
    loaded = zoo.load(name)
    assert outer.card == loaded.card
    p.grad = torch.full_like(p, 0.01)
    K = loaded.learned.workers
    outer.step(worker_deltas=None if K is None else [torch.full((K, 3, 2), 0.01)])
    assert bool(torch.isfinite(p).all())
    assert bool((p != 0).all())


def broken(path, kind):
    if kind == "no file":
        return path
    if kind == "another architecture":
        return forge(path, a_meta(), weights(LAGG_A))
    if kind == "a wrong card":
        return forge(path, a_meta(changes={"card": None}))
    data = bytearray(forge(path, a_meta()).read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data if kind == "a flipped bit" else data[:-8]))
    return path


@pytest.mark.parametrize(
    "kind", ["no file", "another architecture", "a wrong card", "a flipped bit", "cut short"]
)
def test_a_file_is_refused_in_the_same_words_as_in_jax(kind, tmp_path):
    path = broken(tmp_path / "x.safetensors", kind)
    said = []
    for read in (zoo.load, lambda at: LearnedOuter([torch.zeros(2)], at)):
        with pytest.raises(LaconicError) as info:
            read(path)
        said.append(str(info.value))
    assert said[0] == said[1]


def test_an_unknown_name(raises_clearly):
    with raises_clearly("unknown published optimizer", "Did you mean 'lopt-a-fmnist'?"):
        LearnedOuter([torch.zeros(2)], "lopt-a-fmnst")
