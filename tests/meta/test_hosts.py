"""Meta-training over two processes is the meta-training of one."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from laconic.meta.train import group_mesh
from tests.meta.pair import TIMEOUT, free_address, run_pair, start
from tests.outer.trees import assert_close

TRAIN = """
import sys, jax, numpy as np, safetensors.numpy
from laconic.client import LocalOptimizer
from laconic.meta.estimator import Horizon
from laconic.meta.train import group_mesh
from laconic.meta.problem import Inner
from laconic.meta.train import MetaTrainer, Outer
from laconic.outer.learned import LearnedOptimizer
from laconic.tasks.catalog import make_task

address, process = sys.argv[1], int(sys.argv[2])
if address:
    jax.distributed.initialize(address, 2, process)
inner = Inner("digits-mlp:width=4", 2, 1, 4, LocalOptimizer("sgd", 0.3))
outer = Outer(steps=4, pairs=4, truncation=2, sigma=0.1, horizon=Horizon(2, 6), warmup=1)
mesh = group_mesh() if address else None
trainer = MetaTrainer([make_task(inner.task)], LearnedOptimizer("lopt-a"), [inner], outer, mesh)
state, losses = trainer.start(5), []
for _ in range(2):
    state, progress = trainer.advance(state)
    losses.append(np.asarray(progress.loss))
judged = trainer.judge(state.theta, 2, 3)[0]
whole = trainer.collect(state)
found = {**whole.theta, "losses": np.stack(losses), "judged": judged}
found["clocks"] = whole.estimators[0].clock.done
found = {name: np.array(x) for name, x in found.items()}
if address:
    found["taken_up"] = np.array(trainer.advance(trainer.place(whole))[0].theta["w0"])
found["next"] = np.array(trainer.advance(state)[0].theta["w0"])
safetensors.numpy.save_file(found, f"{process}.safetensors")
"""


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path):
    """σ is 0.1, so that rounding in the losses grows 50-fold only, and 1e-5 is a fair bound."""
    address, alone = free_address(), tmp_path / "alone"
    alone.mkdir()
    for status, _, errors in run_pair((tmp_path, TRAIN, address, 0), (tmp_path, TRAIN, address, 1)):
        assert status == 0, errors
    with start(alone, TRAIN, "", 0) as single:
        errors = single.communicate(timeout=TIMEOUT)[1]
    assert single.returncode == 0, errors
    first, second, expected = map(
        load_file, (tmp_path / "0.safetensors", tmp_path / "1.safetensors", alone / "0.safetensors")
    )
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    np.testing.assert_array_equal(first.pop("taken_up"), first["next"])
    np.testing.assert_array_equal(first["clocks"], expected["clocks"])
    assert_close(first, expected, 1e-5)


def test_every_process_gives_the_mesh_the_same_number_of_devices(monkeypatch, raises_clearly):
    def pretend(*owners):
        devices = [SimpleNamespace(process_index=owner, id=i) for i, owner in enumerate(owners)]
        monkeypatch.setattr(jax, "devices", lambda: devices)
        monkeypatch.setattr(jax, "process_count", lambda: max(owners) + 1)
        monkeypatch.setattr(
            jax, "make_mesh", lambda shape, names, axis_types, devices: [d.id for d in devices]
        )

    pretend(0, 0, 0, 1, 1, 1)
    assert group_mesh(4) == [0, 1, 3, 4]
    assert group_mesh() == [0, 1, 2, 3, 4, 5]
    for count in (1, 3, 5):
        with raises_clearly("2 processes", f"a mesh of {count}", "multiple of 2", "--devices"):
            group_mesh(count)
    with raises_clearly("mesh of 8 devices", "the 6 there are"):
        group_mesh(8)
    pretend(0, 0, 0, 1)
    assert group_mesh(2) == [0, 3]
    with raises_clearly("2 processes", "a mesh of 4"):
        group_mesh(4)
