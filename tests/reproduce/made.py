"""Small experiments: one of fabricated records, and one on the bundled digits that runs in seconds."""

from contextlib import contextmanager
from dataclasses import replace

import jax
import pytest

from laconic.reproduce.experiment import Across, Experiment, Learned, Number, Panel, Use
from laconic.runs.compare import CompareConfig
from laconic.show import comparison as compared
from tests.runs.meta_runs import TINY
from tests.show.made_up import comparison, method_record

SMALL = CompareConfig(
    task="digits-mlp:width=4",
    optimizers=("local-sgd:label=Local SGD", "slowmo:label=SlowMo"),
    workers=2,
    local_steps=1,
    batch=4,
    rounds=6,
    seeds=2,
    evaluate_every=3,
    on_nan="continue",
)
LEARNED = Learned("lopt-digits", replace(TINY, architecture="lopt"))
USES = (Use("LOpt", LEARNED),)
DIGITS = Experiment(
    "digits",
    "Digits, for tests",
    "a panel with a learned optimizer and one without",
    (
        Panel("one", "One", replace(SMALL, optimizers=SMALL.optimizers[:1]), USES),
        Panel("two", "Two", SMALL, paper={"SlowMo": Number(2.0, 0.5)}),
    ),
    averaged=("one", "two"),
)

LABELS = ("Local SGD", "SlowMo", "LOpt-A")
NAMES = ("local-sgd", "slowmo", "lopt-a")


def records(seeds=3, rounds=40, first=0, sent=3_500_352):
    methods = [
        method_record(
            first + i, label, seeds, rounds, sent=sent, method=NAMES[i], compressor="dense"
        )
        for i, label in enumerate(LABELS)
    ]
    return comparison(methods, reference="Local SGD")


def summary_of(rows, target=None):
    """Records with a summary of these rows: label → fields; what is not given is None."""
    fields = ("speedup", "speedup_error", "rounds_to_target", "final_train", "final_train_error")
    fields += ("test_loss", "test_accuracy", "sent_megabytes")
    full = [{"label": label, **dict.fromkeys(fields), **given} for label, given in rows.items()]
    return [{"kind": "summary", "target_loss": target, "reference": "Local SGD", "rows": full}]


PAINTED = Experiment(
    "painted",
    "Painted | twice",
    "records that never ran",
    (
        Panel(
            "a",
            "First",
            SMALL,
            USES,
            {"SlowMo": Number(2.0, 0.5)},
            shown=("train", "test-accuracy", "test-loss"),
        ),
        Panel("b", "Second", SMALL, USES),
    ),
    says=("it is fast.",),
    leaves_out=("much.",),
    across=(
        Across("Bits", "bits"),
        Across("LOpt-A", "train", ("LOpt-A",)),
        Across("Speedups", "bars"),
    ),
)


@contextmanager
def quickly():
    """Little optimising and no report, what takes the time in runs this small; gives the patch, for
    more."""
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            compared, "write_report", lambda folder, records: (folder / "report.html").touch()
        )
        yield patch
    jax.config.update("jax_disable_most_optimizations", False)


class Killed(BaseException):
    """Death at some moment: nothing is caught or cleaned up on the way out."""


class Watch:
    """Notes what is begun and how far it was, and calls `at(what, done)` whenever some of it is
    done."""

    def __init__(self, at=lambda what, done: None):
        self.begun, self.at, self.title = [], at, ""

    @contextmanager
    def compare(self, title):
        self.title = title
        yield self

    @contextmanager
    def meta_train(self, title):
        self.title = title
        yield _Meta(self)

    @contextmanager
    def timing(self, title, total):
        self.title = title
        yield lambda name: self.begun.append((title, name, total))

    def begin(self, label, rounds, done):
        self.begun.append((self.title, label, done))

    def progress(self, label, done, loss):
        self.at(f"{self.title}: {label}", done)

    def note(self, text):
        pass


class _Meta:
    def __init__(self, watch):
        self.watch, self.first = watch, 0

    def begin(self, config, done, rounds_per_step):
        self.first = done
        self.watch.begun.append((self.watch.title, "φ", done))

    def progress(self, done, losses, norms):
        if done > self.first:  # a resumed run first shows again what it showed before
            self.watch.at(self.watch.title, done)

    def judged(self, done, value, best):
        pass

    def note(self, text):
        pass
