"""Small experiments: one of fabricated records, one on the bundled digits that runs in seconds."""

from contextlib import contextmanager
from dataclasses import replace

import jax
import pytest

from laconic.reproduce.experiment import Across, Experiment
from laconic.reproduce.panel import Learned, Number, Panel, Use
from laconic.reproduce.part import Watching
from laconic.runs.compare import CompareConfig
from laconic.runs.folder import Observer
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
    fields = ("speedup", "speedup_interval", "rounds_to_target", "rounds_interval")
    fields += ("final_train", "final_train_error")
    fields += ("test_loss", "test_accuracy", "sent_megabytes")
    full = [{"label": label, **dict.fromkeys(fields), **given} for label, given in rows.items()]
    return [{"kind": "summary", "target_loss": target, "reference": "Local SGD", "rows": full}]


def of_panel(name, records):
    """The runs of a panel that has these records."""
    return {f"panels/{name}": records}


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


class Watch(Watching):
    """Notes what is begun and how far it was; calls `at(what, done)` when some of it is done."""

    def __init__(self, at=lambda what, done: None):
        self.begun = []
        self.at = at

    @contextmanager
    def compare(self, title):
        yield _Observer(self, title, lambda label: label)

    @contextmanager
    def meta_train(self, title):
        yield _Observer(self, title, lambda label: "φ")

    @contextmanager
    def timing(self, title, total):
        yield lambda name: self.begun.append((title, name, total))


class _Observer(Observer):
    def __init__(self, watch, title, named):
        self.watch, self.title, self.named, self.first = watch, title, named, {}

    def begin(self, label, total, done, rounds_each=1):
        self.first[label] = done
        self.watch.begun.append((self.title, self.named(label), done))

    def progress(self, label, done, loss, norm=None):
        if done > self.first[label]:  # a resumed meta-training first shows again what it showed
            named = self.named(label)
            self.watch.at(self.title if named == "φ" else f"{self.title}: {named}", done)
