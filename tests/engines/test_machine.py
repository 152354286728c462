"""A worker with several devices: its minibatches are split over them, and its numbers stay those of
one device.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from laconic.client import gradient_client
from laconic.compress import parse_compressor
from laconic.data.feed import Streamed
from laconic.engines.base import SimulatedEngine
from laconic.engines.loop import Loop
from laconic.engines.machine import check_devices, local_devices
from laconic.engines.replica import Programs
from laconic.engines.wire import Seal
from laconic.method import Method, Setting, local_method
from laconic.outer import OUTER
from laconic.tasks.base import Aux, Task
from laconic.tasks.catalog import make_task
from laconic.tasks.small import NormCNN
from tests import tiny
from tests.tiny import ADAMW, SGD

K, H, B, DEVICES = 2, 2, 8, 4
SEAL = Seal.of("secret", "machine")


def normed() -> Task:
    """Three convolutions with BatchNorm and a dropped half, on the digits."""
    digits = make_task("digits-mlp")

    def init(key: jax.Array) -> Any:
        model = NormCNN(key, 1, 2, 10)
        return model, model.begin()

    def loss(model: Any, state: Any, batch: Any, key: jax.Array) -> Any:
        x = batch["x"].reshape(-1, 8, 8, 1).astype(jnp.float32) / 16
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        logits, after = model.train(jnp.where(kept, x, 0), state)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return jnp.mean(each), Aux(after)

    return Task("normed", init, loss, digits.feed, evaluate=lambda *seen: {})


def method(outer: str = "slowmo", local: Any = SGD, spec: str = "dense") -> Method:
    return local_method("test", local, OUTER[outer].make(), parse_compressor(spec))


def reports(task: Task, made: Method, devices: int, rounds: int = 4, **more: Any) -> list[Any]:
    """The rounds of two workers in one process."""
    setting = Setting(K, H, B, rounds, (0,))
    chosen = jax.local_devices()[:devices]
    loop = Loop(task, made, setting, SimulatedEngine(K), SEAL, devices=chosen, **more)
    return list(loop.rounds())


def assert_same(have: Any, want: Any) -> None:
    for one, two in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        two = np.asarray(two, np.float64)
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5 * np.max(np.abs(two)))


@pytest.mark.parametrize(
    ("task", "outer", "local", "spec"),
    [
        (normed, "slowmo", SGD, "dense"),
        (tiny.stateful_task, "lopt-a", SGD, "dense"),
        (tiny.task, "average", ADAMW, "topk:0.3+ef"),
    ],
    ids=["BatchNorm and dropout", "model state, learned", "moments and residuals"],
)
def test_a_worker_of_four_devices_is_the_simulators(task, outer, local, spec):
    """`test_loop` holds one device against the simulator's round; here four against one."""
    with tiny.lenient(local is ADAMW):
        made = method(outer, local, spec)
        alone, together = reports(task(), made, 1), reports(task(), made, DEVICES)
    for one, many in zip(alone, together, strict=True):
        np.testing.assert_allclose(list(many.losses.values()), list(one.losses.values()), rtol=1e-5)
        assert_same(many.shared, one.shared)
    assert alone[0].loss != alone[-1].loss


def test_each_device_takes_its_share_of_the_work_and_the_outer_step_stays_on_one():
    def made(devices: int) -> Programs:
        chosen = jax.local_devices()[:devices]
        return Programs(make_task("digits-mlp"), method(), 1, H, 64, 0, (0,), 10.0, chosen)

    def operations(programs: Programs) -> float:
        local, *given = programs.local_program()
        return local.lower(*given).compile().cost_analysis()["flops"]

    programs = made(DEVICES)
    assert operations(programs) < 0.3 * operations(made(1))
    replica, clients = programs.start()
    message, clients, _ = programs.local(replica, clients, None)
    assert {len(x.devices()) for x in jax.tree.leaves(replica)} == {1}
    assert {len(x.devices()) for x in jax.tree.leaves((message, clients))} <= {DEVICES}
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(message))


def test_streamed_batches_are_split_too():
    rows = np.random.default_rng(5).integers(0, 64, (60, B))
    stream = Streamed({}, lambda: ((tiny.X[r], tiny.Y[r]) for r in rows))
    task = replace(tiny.task(), feed=stream)
    assert_same(reports(task, method(), DEVICES)[-1].shared, reports(task, method(), 1)[-1].shared)


def test_a_run_goes_on_with_another_number_of_devices(tmp_path):
    """Moments and residuals come out of the checkpoint of a machine with more, or fewer."""
    with tiny.lenient(True):
        made = method(local=ADAMW, spec="topk:0.3+ef")
        whole = reports(tiny.task(), made, 1)
        begun = reports(tiny.task(), made, DEVICES, rounds=2, folder=tmp_path)
        rest = reports(tiny.task(), made, 2, folder=tmp_path)
    assert [report.round for report in begun + rest] == [1, 2, 3, 4]
    assert_same(rest[-1].shared, whole[-1].shared)


def test_what_cannot_be_split_is_refused(raises_clearly):
    with raises_clearly("16 examples", "3 devices", "--batch a multiple of 3"):
        check_devices(3, 16)
    for wrong in (0, -1, True, 2.0, "two"):
        with raises_clearly("from 1 on", "'all'", repr(wrong)):
            check_devices(wrong, 16)  # pyright: ignore[reportArgumentType]
    here = len(jax.local_devices())
    with raises_clearly("99 devices", f"has {here}", "platform cpu", "device_count=99"):
        local_devices(99, 99)
    assert local_devices("all", here) == jax.local_devices()
    with raises_clearly(f"{here + 1} examples", f"{here} devices"):
        local_devices("all", here + 1)
    with raises_clearly(f"{B} examples", "3 devices"):
        reports(tiny.task(), method(), 3)
    stream = Streamed({}, lambda: iter([(tiny.X[:B], tiny.Y[:B])]))
    with raises_clearly(f"{B} examples", "3 devices"):
        reports(replace(tiny.task(), feed=stream), method(), 3)


def test_a_gradient_taken_in_pieces_splits_each_of_them(raises_clearly):
    def one(devices: int, at_once: int) -> Any:
        task = replace(tiny.task(), at_once=at_once)
        made = Method("synchronous", gradient_client, OUTER["average"].make())
        return reports(task, made, devices, rounds=1)[-1].shared

    assert_same(one(DEVICES, 8), one(1, 8))
    with raises_clearly("2 examples", f"{DEVICES} devices"):
        one(DEVICES, 2)
