"""Every experiment of the registry: names, panels, optimizers, and both scales are sound before
anything runs."""

from dataclasses import replace

import pytest

from laconic.compress import parse_compressor
from laconic.methods import parse_method, parse_swept
from laconic.reproduce import EXPERIMENTS, named_experiment, paper
from laconic.reproduce.federated import MixPanel
from laconic.reproduce.panel import Panel, matches
from laconic.reproduce.panel_show import BARS, COLUMNS, VIEWS
from laconic.reproduce.scale import SCALES
from laconic.reproduce.sweep_panel import SweepPanel
from laconic.reproduce.timings import TimingPanel
from laconic.runs.compare import CompareConfig
from laconic.runs.grid import parse_grid
from laconic.tasks.catalog import TASKS, parse_spec
from laconic.zoo import load

OWN_SETTING = {  # batch, rounds, seeds
    "fig-federated": (20, 1000, 3),
    "fig-large": (128, 1000, 3),
    "fig-resnet152": (128, 2000, 1),
}
NAMES = {
    "table-speedup",
    "fig-in-distribution",
    "table-rounds",
    "fig-local-steps",
    "fig-workers",
    "fig-ablation",
    "fig-ablation-deltas",
    "fig-clipped",
    "fig-validation",
    "fig-generalise",
    "fig-h-transfer",
    "fig-compress",
    "table-hparams",
    "fig-large-h",
    "fig-federated",
    "fig-dirichlet",
    "table-overhead",
    "fig-large",
    "fig-resnet152",
    "fig-general",
    "table-modern",
}
BEYOND = {"fig-general", "table-modern"}  # not in the paper


@pytest.fixture(params=sorted(EXPERIMENTS))
def found(request):
    return EXPERIMENTS[request.param]


@pytest.fixture(params=SCALES)
def scaled(found, request):
    return found.at_scale(request.param)


def labels_of(panel):
    files = {
        use.learned.name: "lopt-a" for use in panel.learned
    }  # any method will do to read a label
    config = replace(panel, tuned=()).comparison(files, {})
    tuned = [tuning.label for tuning in panel.tuned]
    return tuned + [parse_method(spec, config.workers).label for spec in config.optimizers]


def test_the_names_are_those_of_the_paper():
    assert set(EXPERIMENTS) == NAMES
    assert all(name == found.name for name, found in EXPERIMENTS.items())


def test_an_unknown_name_is_refused_with_the_nearest(raises_clearly):
    with raises_clearly("unknown experiment 'fig-worker'", "fig-workers"):
        named_experiment("fig-worker")


def test_panels_can_be_told_apart(found):
    names = [panel.name for panel in found.of(Panel)]
    assert len(set(names)) == len(names)
    assert found.parts
    assert set(found.averaged) <= set(names)
    for panel in found.of(Panel):
        assert set(panel.metrics) <= set(COLUMNS)
        assert set(panel.shown) <= set(VIEWS)
        labels = labels_of(panel)
        assert len(set(labels)) == len(labels)
        assert set(panel.paper) <= set(labels), "the paper's number of a row that is not there"
    for across in found.across:
        assert across.view in {*VIEWS, BARS}


def test_hand_designed_methods_and_tasks_parse(scaled):
    for panel in scaled.of(Panel):
        config = panel.config
        parse_spec(config.task)
        parse_compressor(config.compress)
        methods = [parse_method(spec, config.workers) for spec in config.optimizers]
        assert all(
            method.label != spec for method, spec in zip(methods, config.optimizers, strict=True)
        )
    for row in (*scaled.of(SweepPanel), *scaled.of(TimingPanel)):
        parse_spec(row.config.task)


def test_baselines_are_tuned_in_the_setting_that_they_are_compared_in(scaled):
    for panel in scaled.of(Panel):
        for tuning in panel.tuned:
            config = tuning.config
            parse_swept(config.method).check_points(parse_grid(config.grid))
            for name in ("task", "workers", "local_steps", "batch", "federated"):
                assert getattr(config, name) == getattr(panel.config, name)
            assert config.rounds <= panel.config.rounds
            assert config.first_seed + config.seeds <= panel.config.first_seed, (
                "compared on seeds it was tuned on"
            )


def test_learned_optimizers_can_be_trained_for_the_panels_that_use_them(scaled):
    by_name = scaled.optimizers()
    for panel in scaled.of(Panel):
        for use in panel.learned:
            assert use.learned == by_name[use.learned.name], "one name, two settings"
            config = use.learned.config
            config.outer()
            assert len(config.inners()) == len(config.tasks)
            assert config.learned().workers in (None, panel.config.workers)
    settings = [(learned.config, learned.zoo) for learned in by_name.values()]
    assert all(one != other for i, one in enumerate(settings) for other in settings[:i]), (
        "one setting, two names"
    )


def test_a_learned_optimizer_meets_the_messages_it_was_trained_on(scaled):
    for panel in scaled.of(Panel):
        for use in panel.learned:
            assert {inner.compress for inner in use.learned.config.inners()} == {
                panel.config.compress
            }


def test_the_full_scale_is_the_papers():
    for found in EXPERIMENTS.values():
        if found.name in BEYOND:
            continue
        for panel in found.of(Panel):
            config = panel.config
            batch, rounds, seeds = OWN_SETTING.get(found.name, (128, 1000, 10))
            if found.name == "fig-large-h":  # as many local steps at every H
                rounds = 6400 // config.local_steps
            assert (config.batch, config.rounds, config.seeds, config.on_nan) == (
                batch,
                rounds,
                seeds,
                "continue",
            )
        for learned in found.optimizers().values():
            config = learned.config
            if learned.zoo is not None:
                assert 500 <= config.steps <= 6000
            elif found.name == "fig-resnet152":
                assert (config.steps, config.longest) == (3000, 2000)
            elif config.init is not None:
                assert 150 <= config.steps <= 600, "a few steps from a published φ"
                assert load(config.init).learned.architecture == config.architecture
            else:
                assert config.steps == 1000, "the paper's ablation"
            if found.name == "fig-large-h":
                assert config.longest == 6400 // config.local_steps
            elif found.name != "fig-resnet152":
                assert config.longest == 1000


def test_what_came_later_is_compared_on_fresh_seeds():
    later = ("workers", "ablation-deltas", "validation", "generalise", "clipped", "large-h")
    for name in later:
        for panel in EXPERIMENTS[f"fig-{name}"].of(Panel):
            assert (panel.config.first_seed, panel.config.seeds) == (300, 10)


def test_published_optimizers_stand_in_at_full_scale_only(found):
    for learned in found.optimizers().values():
        assert learned.zoo is None or matches(learned.zoo, learned.config)
    assert not any(learned.zoo for learned in found.at_scale("smoke").optimizers().values())


def test_needs_are_told(found):
    text = found.needs()
    assert all(task in text for task in found.tasks())
    assert set(found.tasks()) <= set(TASKS)


def test_tables_have_the_papers_numbers_for_every_row_they_share():
    for name in ("table-speedup", "table-rounds"):
        found = EXPERIMENTS[name]
        shown = [
            panel for panel in found.of(Panel) if panel.name != "cifar10-cnn"
        ]  # the paper has no number for it
        assert len(shown) == 3
        for panel in shown:
            assert {"Local SGD", "SlowMo", "LOpt-A", "LAgg-A"} <= set(panel.paper)
    assert all(row.paper for row in EXPERIMENTS["table-hparams"].of(SweepPanel))


def test_what_the_paper_varies_is_varied():
    setting = lambda name, field: [
        getattr(panel.config, field) for panel in EXPERIMENTS[name].of(Panel)
    ]
    assert setting("table-rounds", "local_steps") == [4, 8, 16]
    assert setting("fig-workers", "workers") == [8, 16, 32] * 2
    assert setting("fig-compress", "compress") == ["dense", "topk:0.1+ef", "topk:0.01+ef"]
    assert max(setting("fig-large-h", "local_steps")) == 128
    objectives = {
        x.config.objective: name.endswith("-valid")
        for name, x in EXPERIMENTS["fig-validation"].optimizers().items()
    }
    assert objectives == {"valid": True, "train": False}
    (transfer,) = EXPERIMENTS["fig-h-transfer"].of(Panel)
    assert (transfer.config.local_steps, transfer.learned[-1].learned.config.local_steps) == (4, 16)
    assert {x.config.architecture for x in EXPERIMENTS["fig-ablation"].optimizers().values()} == {
        "lopt",
        "lagg",
        "lopt-a",
        "lagg-a",
    }


def test_sweeps_of_one_name_are_one_sweep():
    rows = EXPERIMENTS["table-hparams"].of(SweepPanel)
    configs = {row.name: row.config for row in rows}
    assert all(row.config == configs[row.name] for row in rows)
    federated = [row for row in rows if row.config.federated.active]
    assert len(rows) - len(federated) == 4 * len(paper.TUNED) + len(paper.SMALL_BATCH) == 36
    assert len(federated) == len(paper.FEDERATED_LISTING.rows) == 20
    assert len(configs) == 32 + 20  # Fashion-MNIST's is ranked by train and by validation loss


def test_federated_experiments_are_in_the_papers_setting():
    found = EXPERIMENTS["fig-federated"]
    assert [(p.config.task, p.config.federated.alpha) for p in found.of(Panel)] == [
        ("fmnist-mlp2", 100.0),
        ("fmnist-mlp2", 0.1),
        ("cifar10-cnn", 100.0),
        ("cifar10-cnn", 0.1),
    ]
    for panel in found.of(Panel):
        assert (panel.config.workers, panel.config.federated.clients) == (10, 400)
        assert panel.config.evaluate_every == (5 if "cnn" in panel.name else 1)
        use, tuned = panel.learned
        assert (use.options, tuned.learned) == ("", use.learned)
        (inner,) = use.learned.config.inners()
        assert (inner.federated, inner.task.partition(":")[0]) == (
            panel.config.federated,
            panel.config.task,
        )
        assert (inner.workers, inner.batch) == (10, 20)
        assert use.learned.config.steps == (2000 if "fmnist" in panel.config.task else 500)
    assert "fedavgm:gamma=0.3,eta=1,beta=0.9,label=FedAvgM" in found.of(Panel)[2].config.optimizers
    assert "scaffold:gamma=0.03,label=SCAFFOLD" in found.of(Panel)[3].config.optimizers
    assert [mix.federated.alpha for mix in EXPERIMENTS["fig-dirichlet"].of(MixPanel)] == [
        100.0,
        0.1,
    ]
    best = {
        row.title: row.paper
        for row in EXPERIMENTS["table-hparams"].of(SweepPanel)
        if row.config.federated.active
    }
    assert best["CIFAR-10, CNN, α = 0.1, valid loss: FedAdagrad"] == {"gamma": 0.1, "eta": 0.1}
    assert best["Fashion-MNIST, 2-layer MLP, α = 100, valid loss: SCAFFOLD"] == {"gamma": 0.01}


def test_large_tasks_are_in_the_papers_setting_and_fit_a_gpu():
    found = EXPERIMENTS["fig-large"]
    assert [panel.paper["LOpt-A"].value for panel in found.of(Panel)] == [2.56, 2.31, 6.76]
    assert [panel.shown for panel in found.of(Panel)] == [("train", "test-accuracy")] * 2 + [
        ("train", "test-loss")
    ]
    for panel in found.of(Panel):
        assert (panel.config.workers, panel.config.local_steps) == (8, 4)
        assert (panel.config.seeds, panel.config.seeds_at_once) == (3, 3)
        assert set(labels_of(panel)) == {*panel.paper, "SGD (K·H steps)", "LOpt-A (general)"}
        assert sum(len(parse_grid(tuning.config.grid)) for tuning in panel.tuned) == 14
    (panel,) = EXPERIMENTS["fig-resnet152"].of(Panel)
    assert (panel.config.workers, panel.config.local_steps, panel.config.seeds_at_once) == (8, 8, 1)
    assert labels_of(panel) == ["SlowMo", "LOpt-A", "LAgg-A"]
    assert panel.tuned[0].config.grid[-2:] == ("clip=5", "decay=0.0001")
    for use in panel.learned:
        widths = [inner.task.rpartition("=")[2] for inner in use.learned.config.inners()]
        assert widths == ["64", "128", "256", "512"]
        for inner in use.learned.config.inners():
            assert (inner.workers, inner.local_steps, inner.batch) == (8, 8, 128)
            assert (inner.local.clip, inner.local.weight_decay) == (5.0, 1e-4)
    panels = [
        panel for name in ("fig-large", "fig-resnet152") for panel in EXPERIMENTS[name].of(Panel)
    ]
    for panel in panels:
        several = {(tuning.config.points_at_once, tuning.config.seeds) for tuning in panel.tuned}
        assert several == {(6 if panel.name == "resnet50" else 1, 1)}


def test_times_are_taken_as_the_papers_are():
    for panel in EXPERIMENTS["table-overhead"].of(TimingPanel):
        config = panel.config
        assert (config.local_steps, config.batch, config.workers) == ((8, 16, 32, 64), 128, 8)
        assert (config.last, config.restarts) == (40, 3)
    found = {panel.title: panel.paper for panel in EXPERIMENTS["table-overhead"].of(TimingPanel)}
    assert found["ResNet-50 at 224×224"] == paper.TIMES["ResNet50"]
    assert found["ViT-B at 128×128"] == paper.TIMES["ViT-Base"]
    assert not found["ResNet-50 at 128×128"]
    assert not found["ViT-B at 224×224"]


def test_panels_own_settings_are_not_the_defaults_of_a_demonstration():
    assert CompareConfig().task == "digits-mlp"
    papers = [found for found in EXPERIMENTS.values() if found.name not in BEYOND]
    tasks = {panel.config.task for found in papers for panel in found.of(Panel)}
    assert "digits-mlp" not in tasks


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_runs_lie_inside_the_experiments_folder(name):
    for part in EXPERIMENTS[name].parts:
        assert not part.path.startswith("/")
        assert part.path.endswith(part.name)
