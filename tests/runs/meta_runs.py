"""The smallest meta-training there is, someone to watch it, and a clock of the test's own."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import safetensors.numpy

from laconic.recipes.meta_trainings import META_RECIPES
from laconic.runs.folder import Observer

SIZES = {
    "workers": 2,
    "local_steps": 1,
    "batch": 4,
    "pairs": 2,
    "truncation": 2,
    "shortest": 4,
    "longest": 8,
    "steps": 8,
    "judge_every": 4,
    "judge_seeds": 1,
    "checkpoint_every": 2,
    "warmup": 2,
    "ramp": 0,
    "average": 0.0,
    "peak": 0.3,  # so much that φ gets worse again after step 4, and the best is not the last
    "seed": 3,
}
TINY = replace(META_RECIPES["lopt-a-digits"][1], **SIZES)
FLAGS = [
    word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value))
]


class Watcher(Observer):
    """Notes all it is told, asks to stop after so many outer steps, and lets a clock run
    meanwhile."""

    def __init__(self, leave_at=10**9, clock=None, seconds=0.0):
        self.begun, self.losses, self.norms, self.judgements, self.notes = None, [], [], [], []
        self.calls, self.leave_at, self.clock, self.seconds = 0, leave_at, clock, seconds

    def begin(self, label, total, done, rounds_each=1):
        self.begun = done, rounds_each

    def progress(self, label, done, loss, norm=None):
        self.losses.append(loss)
        self.norms.append(norm)
        assert len(self.losses) == done
        if done <= self.begun[0]:  # a resumed run shows what it showed before
            return
        self.calls += 1
        if self.clock is not None:
            self.clock.now += self.seconds

    def judged(self, done, score, best):
        self.judgements.append((done, score, best))

    def note(self, text):
        self.notes.append(text)

    def stop(self):
        return self.calls >= self.leave_at


class Clock(SimpleNamespace):
    """Stands in for the module `time`; it runs only when told to."""

    now = 500.0

    def monotonic(self):
        return self.now


def weights(path):
    """The tensors of a file, by name; none of it through laconic."""
    return safetensors.numpy.load_file(path)


def assert_same_bits(one, two):
    """Two files hold the same tensors, bit for bit."""
    one, two = weights(one), weights(two)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
