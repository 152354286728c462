"""The training loop in one process: the simulator's numbers, going on after a stop, a full disk, a
kill in a save."""

import contextlib
import dataclasses
import errno
import itertools
import os
import resource
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.compress import parse_compressor
from laconic.data.feed import Streamed
from laconic.engines.base import SimulatedEngine
from laconic.engines.guard import CODE
from laconic.engines.loop import Loop
from laconic.engines.replica import Programs, fingerprint
from laconic.engines.wire import Seal, new_frame
from laconic.method import Method, Setting, local_method
from laconic.outer import OUTER
from laconic.round import communication_round
from laconic.store import atomic, checkpoint
from tests import tiny
from tests.engines.cluster import ROOT
from tests.tiny import ADAMW, SGD, TASK, B, H, K, draw, first_state

SEAL = Seal.of("secret", "test")


def method(outer: str = "slowmo", local=SGD, spec: str = "dense") -> Method:
    return local_method("test", local, OUTER[outer].make(), parse_compressor(spec))


def run(made: Method, rounds: int, task=TASK, **more) -> Loop:
    return Loop(task, made, Setting(K, H, B, rounds, (0,)), SimulatedEngine(K), SEAL, **more)


@pytest.mark.parametrize(
    ("local", "spec", "stateful"),
    [(SGD, "dense", True), (ADAMW, "dense", False), (SGD, "topk:0.3+ef", False)],
    ids=["model state", "moments", "residuals"],
)
def test_the_loop_is_the_simulator(local, spec, stateful):
    """Message.extra, client states and residuals included."""
    with tiny.lenient(local is ADAMW):
        task = tiny.stateful_task() if stateful else TASK
        made = method(local=local, spec=spec)
        reports = list(run(made, 5, task).rounds())
        workers, server = tiny.set_up(made.outer, local, spec, task)
        state = first_state(workers, server, task=task)
        step = jax.jit(lambda s, i: communication_round(workers, server, s, i))
        for report in reports:
            state, losses_KH = step(state, draw(state))
            wanted = np.asarray(losses_KH).mean(axis=1)
            np.testing.assert_allclose([report.losses[k] for k in range(K)], wanted, rtol=1e-5)
            np.testing.assert_allclose(report.loss, wanted.mean(), rtol=1e-5)
            for have, want in zip(
                jax.tree.leaves(report.shared), jax.tree.leaves(state.shared), strict=True
            ):
                np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    assert [report.round for report in reports] == [1, 2, 3, 4, 5]


def test_one_worker_alone_sends_the_indices_that_it_sends_among_all():
    """Given the same state, whoever else lives in the process."""
    made = method(spec="topk:0.3+ef")
    everyone = Programs(TASK, made, K, H, B, 0, tuple(range(K)), 10.0)
    replica, clients = everyone.start()
    together, _, _ = everyone.local(replica, clients, None)
    for k in range(K):
        alone = Programs(TASK, made, K, H, B, 0, (k,), 10.0)
        own = jax.tree.map(lambda c, k=k: c[k : k + 1], clients)
        message, _, _ = alone.local(replica, own, None)
        np.testing.assert_array_equal(message.delta.indices[0], together.delta.indices[k])
        np.testing.assert_allclose(message.delta.values[0], together.delta.values[k], rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "stateful"),
    [("dense", False), ("dense", True), ("topk:0.3", False)],
    ids=["plain", "extra", "sparse"],
)
def test_a_message_is_seen_as_it_was_sent(spec, stateful):
    """The norm is that of the decoded Δ and of nothing else that travels with it."""
    made, task = method(spec=spec), tiny.stateful_task() if stateful else TASK
    programs = Programs(task, made, K, H, B, 0, (1,), 10.0)
    replica, clients = programs.start()
    message = jax.tree.map(lambda x: x[0], programs.local(replica, clients, None)[0])
    body = new_frame(programs.layout.size)
    programs.layout.write(body, (message.delta, message.extra))
    delta = made.compressor.decode(message.delta, replica.shared.params)
    squares = [np.sum(np.asarray(x, np.float64) ** 2) for x in jax.tree.leaves(delta)]
    seen = programs.measure(SEAL.fold_key, body)
    np.testing.assert_allclose(seen.norm, np.sqrt(sum(squares)), rtol=1e-5)
    assert bool(seen.finite)
    floats = [leaf for leaf in programs.layout.leaves if leaf.dtype == np.float32]
    body[floats[-1].start : floats[-1].stop].view(np.float32)[...] = np.inf
    assert not programs.measure(SEAL.fold_key, body).finite


def test_streamed_batches_reach_their_workers():
    rows = np.random.default_rng(5).integers(0, 64, (60, B))
    stream = Streamed({}, lambda: ((tiny.X[r], tiny.Y[r]) for r in rows))
    task = dataclasses.replace(TASK, feed=stream)
    reports = list(run(method("average"), 4, task).rounds())
    now = {
        name: np.asarray(x, np.float64)
        for name, x in TASK.init(jax.random.fold_in(jax.random.key(0), 0))[0].items()
    }
    for t, report in enumerate(reports):
        ends = []
        for k in range(K):
            w = dict(now)
            for h in range(H):
                g = tiny.gradient(w, rows[t * K * H + k * H + h])
                w = {n: w[n] - tiny.GAMMA * g[n] for n in w}
            ends.append(w)
        now = {n: np.mean([w[n] for w in ends], axis=0) for n in now}
        for name, x in report.shared.params.items():
            np.testing.assert_allclose(x, now[name], rtol=2e-5, atol=1e-6)


def test_a_stream_of_another_batch_size_is_refused(raises_clearly):
    short = Streamed({}, lambda: iter([(tiny.X[: B - 1], tiny.Y[: B - 1])]))
    with raises_clearly(f"batches have {B - 1} examples", f"the setting says {B}"):
        run(method("average"), 4, dataclasses.replace(TASK, feed=short))


def test_it_goes_on_from_its_checkpoint(tmp_path):
    made = method(local=SGD, spec="topk:0.3+ef")
    straight = list(run(made, 8).rounds())
    first = list(run(made, 4, folder=tmp_path, checkpoint_every=3).rounds())
    assert not any(r.notes for r in first)  # a first start has lost nothing
    rest = list(run(made, 8, folder=tmp_path, checkpoint_every=3).rounds())
    assert [r.digest for r in first + rest] == [r.digest for r in straight]
    assert any("resumed after round 4" in note for note in rest[0].notes)
    assert list(run(made, 8, folder=tmp_path).rounds()) == []
    assert checkpoint.peek(tmp_path / "worker-0.safetensors")["round"] == 8


@contextlib.contextmanager
def no_space_to_sync():
    """A disk that turns out to be full when the bytes are due."""

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        yield


@contextlib.contextmanager
def no_space_half_way():
    """The kernel really writes a part and refuses the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("trouble", "says"),
    [(no_space_to_sync, "No space"), (no_space_half_way, "too large")],
    ids=["sync", "write"],
)
def test_a_full_disk_stops_nothing_and_loses_nothing(tmp_path, trouble, says):
    made = method()
    rounds = run(made, 5, folder=tmp_path, checkpoint_every=1).rounds()
    reports = [next(rounds), next(rounds)]
    with trouble():
        reports += list(rounds)
    assert len(reports) == 5
    assert [r.round for r in reports if any(says in note for note in r.notes)] == [3, 4, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0.safetensors"]
    assert checkpoint.peek(tmp_path / "worker-0.safetensors")["round"] == 2
    again = list(run(made, 5, folder=tmp_path).rounds())
    assert [r.digest for r in again] == [r.digest for r in reports[2:]]


KILLED = """
import os, signal
from laconic.store import atomic
from tests.engines.test_loop import method, run
count, real = [0], os.{name}
def fatal(*args):
    count[0] += 1
    if count[0] == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
atomic.os.{name} = fatal
for report in run(method(), 5, folder={folder!r}, checkpoint_every=1).rounds():
    pass
"""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_checkpoint_leaves_the_one_before(tmp_path):
    """While the third is written but not yet named, and while it is being named."""
    straight = [report.digest for report in run(method(), 5).rounds()]
    for name, call in (("fsync", 5), ("replace", 3)):  # each save syncs its file and its folder
        folder = tmp_path / name
        code = KILLED.format(name=name, call=call, folder=str(folder))
        ended = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL
        assert checkpoint.peek(folder / "worker-0.safetensors")["round"] == 2
        assert [report.digest for report in run(method(), 5, folder=folder).rounds()] == straight[
            2:
        ]


def test_a_round_in_which_nobody_counts_moves_only_the_counter():
    programs = Programs(TASK, method(), K, H, B, 0, tuple(range(K)), 10.0)
    replica, _ = programs.start()
    nobody = np.full(K, CODE["absent"], np.int32)
    body = np.full(programs.layout.size // 4, np.nan, np.float32).view(np.uint8)
    poison = programs.measure(SEAL.fold_key, body)
    for codes, seen in ((nobody, [programs.absent] * K), (np.zeros(K, np.int32), [poison] * K)):
        weights = np.ones(K, np.float32)
        after = programs.outer(
            replica, seen, weights, programs.judge(replica, seen, weights, codes)
        )
        assert int(after.round) == 1
        same = zip(
            jax.tree.leaves((after.shared, after.outer)),
            jax.tree.leaves((replica.shared, replica.outer)),
            strict=True,
        )
        for have, want in same:
            np.testing.assert_array_equal(have, want)


def test_any_change_of_a_state_changes_its_name():
    programs = Programs(TASK, method(), K, H, B, 0, tuple(range(K)), 10.0)
    replica, _ = programs.start()
    leaves, structure = jax.tree.flatten(replica)
    names = {programs.digest(replica)}
    for i, leaf in enumerate(leaves):
        flat = np.asarray(leaf).reshape(-1)
        for place in {0, flat.size // 2, flat.size - 1}:
            changed = flat.copy()
            changed.view(np.uint8 if flat.dtype == bool else f"u{flat.itemsize}")[place] ^= 1
            others = [*leaves[:i], jnp.asarray(changed.reshape(leaf.shape)), *leaves[i + 1 :]]
            names.add(programs.digest(jax.tree.unflatten(structure, others)))
    assert len(names) == 1 + sum(len({0, x.size // 2, x.size - 1}) for x in leaves)
    swapped = replica.shared.params["w1"].reshape(-1)
    pairs = itertools.combinations(range(8), 2)
    lanes = {
        np.asarray(fingerprint(swapped.at[jnp.array(p)].set(swapped[jnp.array(p[::-1])]))).tobytes()
        for p in pairs
    }
    assert len(lanes) == 28


class Lagging(SimulatedEngine):
    """Where worker 1 is behind in the third round; `looks` before each gather."""

    def __init__(self, workers, look):
        super().__init__(workers)
        self.look = look

    def quorum(self, round, digest):
        sources = tuple(w for w in self.mine if w != 1 or round != 2)
        return super().quorum(round, digest)._replace(sources=sources)

    def gather(self, frames, size):
        self.look()
        return super().gather(frames, size)


def test_before_another_takes_over_the_state_what_led_to_it_is_handed_on():
    seen = []
    engine = Lagging(K, lambda: seen.append("gather"))
    setting = Setting(K, H, B, 4, (0,))
    loop = Loop(TASK, method(), setting, engine, SEAL, handing_on=lambda: seen.append("on"))
    list(loop.rounds())
    assert seen == ["gather", "gather", "on", "gather", "gather"]


def test_an_engine_of_another_size_is_refused(raises_clearly):
    with raises_clearly("4 workers", "K = 5"):
        Loop(TASK, method(), Setting(5, H, B, 2, (0,)), SimulatedEngine(4), SEAL)
