"""Making an experiment small: smaller in every number, never in what it compares, and distinct
where it was."""

from dataclasses import fields, replace

import pytest

from laconic.recipes.sweeps import SWEEPS
from laconic.reproduce import EXPERIMENTS
from laconic.reproduce.panel import Panel
from laconic.reproduce.scale import quarter, small_task, smoke, smoke_meta, smoke_sweep
from laconic.reproduce.timings import TimingPanel
from laconic.runs.compare import CompareConfig
from laconic.runs.meta_config import MetaConfig

FULL = CompareConfig(
    task="fmnist-mlp2",
    workers=32,
    local_steps=16,
    batch=128,
    rounds=1000,
    seeds=10,
    target_loss=0.2,
    compress="int8",
)


def changed(before, after):
    return {f.name for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)}


def test_a_comparison_shrinks_in_its_numbers_alone():
    small = smoke(FULL)
    assert (small.task, small.workers, small.local_steps) == ("fmnist-mlp2:width=16", 8, 4)
    assert (small.rounds, small.seeds, small.batch, small.target_loss) == (50, 2, 8, 1.5)
    names = {
        "task",
        "workers",
        "local_steps",
        "batch",
        "rounds",
        "seeds",
        "evaluate_every",
        "target_loss",
    }
    assert changed(FULL, small) == names
    assert smoke(replace(FULL, target_loss=None)).target_loss is None


def test_meta_training_shrinks_and_keeps_what_it_learns():
    full = MetaConfig(
        architecture="lagg-a", objective="valid", compress="topk:0.1+ef", local="adamw", gamma=1e-3
    )
    small = smoke_meta(full)
    assert (small.steps, small.pairs, small.truncation, small.shortest, small.longest) == (
        5,
        2,
        5,
        10,
        20,
    )
    kept = (
        "architecture",
        "objective",
        "compress",
        "local",
        "gamma",
        "estimator",
        "sigma",
        "peak",
        "seed",
        "time",
    )
    assert not changed(full, small) & set(kept)
    one_length = smoke_meta(replace(full, shortest=1000))
    assert one_length.shortest == one_length.longest == 20
    assert smoke_meta(replace(full, tasks=("fmnist-mlp2", "cifar10-cnn"))).tasks == (
        "fmnist-mlp2:width=16",
        "cifar10-cnn:width=2",
    )


def test_a_sweep_shrinks_to_some_of_its_grid():
    small = smoke_sweep(SWEEPS["slowmo"][1])
    assert (small.method, small.rounds, small.seeds, small.workers, small.points) == (
        "slowmo",
        50,
        2,
        2,
        (),
    )
    assert smoke_sweep(SWEEPS["sgd"][1]).grid == SWEEPS["sgd"][1].grid
    long = [
        smoke_sweep(replace(SWEEPS["sgd"][1], rounds=steps)).rounds
        for steps in (32_000, 64_000, 128_000)
    ]
    assert long == [50, 100, 200]


def test_quarters_keep_numbers_apart():
    assert [quarter(n) for n in (8, 16, 32)] == [2, 4, 8]
    assert [quarter(n) for n in (4, 8, 16)] == [1, 2, 4]
    assert quarter(1) == 1


def test_a_task_with_options_of_its_own_is_left_alone():
    assert small_task("fmnist-mlp2:width=8") == "fmnist-mlp2:width=8"
    assert small_task("lm-bytes") == "lm-bytes"
    assert small_task("cifar10-cnn-bn") == "cifar10-cnn-bn:width=2"


def test_sizes_that_tell_tasks_apart_still_do():
    widths = [small_task(f"imagenet32-mlp3:width={width}") for width in (64, 128, 256, 512)]
    assert widths == [f"imagenet32-mlp3:width={width}" for width in (8, 16, 32, 64)]
    sides = [small_task(f"noise-vit-b:side={side}") for side in (224, 128)]
    assert [task.rpartition(",")[2] for task in sides] == ["side=28", "side=16"]
    large = small_task("imagenet32-resnet50:compute=bf16,at_once=128")
    assert large == "imagenet32-resnet50:width=2,blocks=1-1,stem=large,at_once=128"
    assert "file=a/b.txt" in small_task("lm-decoder:file=a/b.txt")
    assert small_task("lm-decoder:hidden=256,heads=8,layers=4") == small_task("lm-decoder")


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_keeps_its_panels_methods_and_distinctions(name):
    full, small = EXPERIMENTS[name], EXPERIMENTS[name].at_scale("smoke")
    assert [p.name for p in small.of(Panel)] == [p.name for p in full.of(Panel)]
    setting = lambda p: (
        p.config.task,
        p.config.workers,
        p.config.local_steps,
        p.config.compress,
        p.config.federated,
        p.config.fragments,
        tuple(tuning.config.method for tuning in p.tuned),
    )
    assert len({setting(p) for p in small.of(Panel)}) == len(full.of(Panel))
    for ours, theirs in zip(small.of(Panel), full.of(Panel), strict=True):
        assert ours.config.optimizers == theirs.config.optimizers
        assert [use.label for use in ours.learned] == [use.label for use in theirs.learned]
        tuned = lambda panel: [(t.label, t.config.method, t.config.grid) for t in panel.tuned]
        assert tuned(ours) == tuned(theirs)
    times = lambda found: found.of(TimingPanel)
    assert [timing.title for timing in times(small)] == [timing.title for timing in times(full)]
    assert len({timing.config for timing in times(small)}) == len(times(full))
    assert list(small.optimizers()) == list(full.optimizers())
    distinct = list(small.optimizers().values())
    assert all(
        one.config != other.config for i, one in enumerate(distinct) for other in distinct[:i]
    )
    assert full.at_scale("full") is full


def test_the_test_set_is_looked_at_more_than_once_only_where_that_is_shown():
    looks = lambda name: {
        p.config.evaluate_every for p in EXPERIMENTS[name].at_scale("smoke").parts
    }
    assert (looks("fig-validation"), looks("fig-workers"), looks("fig-large")) == ({10}, {50}, {25})


def test_an_unknown_scale_is_refused(raises_clearly):
    with raises_clearly("unknown scale 'ful'", "full"):
        EXPERIMENTS["fig-ablation"].at_scale("ful")
