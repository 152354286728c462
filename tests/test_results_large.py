"""What the docs say of the large models, against the records."""

import jax
import numpy as np

from laconic.reproduce import EXPERIMENTS
from laconic.show.intervals import speedup_interval
from laconic.store.records import read
from laconic.tasks.catalog import make_task
from laconic.zoo import load
from tests.recorded import PUBLISHED as DOCS
from tests.recorded import ROOT, mean_curve, method_of, rounds_to, train_losses
from tests.recorded import WORDS as TOLD

FOLDER = ROOT / "results" / "reproduce" / "fig-large-full"
SMALL = ROOT / "results" / "vit-small-scale"
PANELS = FOLDER / "panels"
LEARNED = ("LOpt-A", "LAgg-A", "LOpt-A (general)")
COMPARED = ("Local SGD", "SlowMo", "Adam", *LEARNED)
LOSSES = {
    "resnet50": ("ResNet-50", (3.0, 1.0, 0.3, 0.1)),
    "vit": ("ViT", (4.0, 1.0, 0.1, 0.03)),
    "lm": ("decoder", (6.5, 6.0, 5.5, 5.0)),
}
PUBLISHED = ("lopt-a-imagenet32-mlp3", "lagg-a-imagenet32-mlp3", "lopt-a-general")
UNDONE = "scale=3.1667"  # 19/6: whole steps for a ViT of 19 matrices
MATRICES = {"resnet50": 54, "vit": 51, "lm": 51}
WHOLE = {"vit": LEARNED, "lm": LEARNED, "resnet50": ("LOpt-A",)}  # what was run before the rule


def markdown(headers, rows):
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def end(losses):
    return float(np.mean(losses[:, -10:]))


def replaced(panel):
    return {
        r["label"]: np.asarray(r["train"], float) for r in read(PANELS / panel / "replaced.jsonl")
    }


def test_the_docs_show_how_soon_each_loss_is_reached():
    rows = [
        [
            title,
            str(loss),
            *(str(rounds_to(PANELS / panel, label, loss) or "–") for label in COMPARED),
        ]
        for panel, (title, losses) in LOSSES.items()
        for loss in losses
    ]
    assert markdown(["model", "train loss", *COMPARED], rows) in DOCS


def test_the_docs_show_what_whole_steps_came_to():
    """The records from before the rule against those of the same methods now."""
    titles = {panel: title for panel, (title, _) in LOSSES.items()}
    rows = []
    for panel, labels in WHOLE.items():
        before = replaced(panel)
        assert set(before) == set(labels)
        if panel == "resnet50":
            seeds = "{:.2f}, {:.2f} and {:.2f} by seed".format(
                *before["LOpt-A"][:, -10:].mean(axis=1)
            )
            assert seeds in TOLD
        for label in labels:
            now = end(train_losses(PANELS / panel, label))
            assert now < end(before[label]) / 1.4
            share = f"6/{MATRICES[panel]}"
            rows.append([titles[panel], label, f"{end(before[label]):.3g}", share, f"{now:.3g}"])
    assert markdown(["model", "method", "whole steps", "share now", "with the share"], rows) in DOCS


def matrices_of(task):
    params = jax.eval_shape(make_task(task).init, jax.random.key(0))
    return sum(
        x.ndim > 1 for x in jax.tree.leaves(params[0] if isinstance(params, tuple) else params)
    )


def test_the_shares_are_of_the_models_matrices(real_data):
    real_data("tiny-imagenet-32")
    for panel in EXPERIMENTS["fig-large"].parts[:2]:
        assert matrices_of(panel.config.task) == MATRICES[panel.name]
    assert matrices_of(read(SMALL / "records.jsonl")[0]["config"]["task"]) == 19


def test_the_share_of_the_decoder_is_of_its_matrices():
    assert matrices_of("lm-decoder:context=16") == MATRICES["lm"]
    assert all(load(name).learned.deepest == 6 for name in PUBLISHED)


def test_what_the_docs_and_the_readme_say_of_speedups():
    said = {panel: read(PANELS / panel / "records.jsonl")[-1] for panel in LOSSES}
    row = lambda panel, label: next(row for row in said[panel]["rows"] if row["label"] == label)
    times = lambda panel, label: f"{row(panel, label)['speedup']:.2f}"
    general, lopt, lagg = "LOpt-A (general)", "LOpt-A", "LAgg-A"
    readme = " ".join((ROOT / "README.md").read_text().split())
    for sentence in (
        f"the general optimizer reaches local SGD's minimum {times('vit', general)} times as soon, "
        "level with tuned "
        f"SlowMo ({times('vit', 'SlowMo')}), ahead of tuned Adam ({times('vit', 'Adam')})",
        f"LAgg-A comes to {times('vit', lagg)} (1.88 in the paper)",
        f"LOpt-A itself is only {times('vit', lopt)} times as fast",
        f"LOpt-A and LAgg-A are {times('lm', lopt)} and {times('lm', lagg)} times as fast as local "
        "SGD",
        f"the general one does, {times('resnet50', general)} times as fast, which three seeds do "
        "not tell from tuned "
        f"Adam ({times('resnet50', 'Adam')}; SlowMo {times('resnet50', 'SlowMo')})",
    ):
        assert sentence in TOLD, sentence
    for sentence in (
        f"local SGD's minimum {times('vit', general)} times as soon on a ViT of DeiT-tiny's size "
        "(tuned Adam "
        f"{times('vit', 'Adam')})",
        f"{times('lm', lopt)} times as soon on a decoder of 12 layers (Adam {times('lm', 'Adam')})",
        f"{times('resnet50', general)} times as soon (Adam {times('resnet50', 'Adam')})",
    ):
        assert sentence in readme, sentence
    local, *curves = [
        train_losses(PANELS / "resnet50", label) for label in ("Local SGD", "Adam", general)
    ]
    adams, generals = (speedup_interval(local, ours) for ours in curves)
    assert generals[0] < adams[1]
    assert row("resnet50", lopt)["speedup"] is row("resnet50", lagg)["speedup"] is None
    ends = " and ".join(f"{row('resnet50', label)['final_train']:.3f}" for label in (lopt, lagg))
    target, when = said["resnet50"]["target_loss"], row("resnet50", "Local SGD")["rounds_to_target"]
    assert f"({ends} at the end; local SGD is down to {target:.3f} at round {when})" in TOLD


def test_before_the_data_is_known_by_heart_the_learned_ones_are_ahead_on_the_vit():
    rounds = {label: rounds_to(PANELS / "vit", label, 1.0) for label in COMPARED}
    assert max(rounds[label] for label in LEARNED) < min(rounds["SlowMo"], rounds["Adam"])
    times = [f"{rounds['Local SGD'] / rounds[label]:.2f}" for label in LEARNED]
    assert "{}, {} and {} times as fast as local SGD down to a loss of 1.0".format(*times) in TOLD


def test_who_leads_on_resnet_50():
    rounds = lambda loss: {label: rounds_to(PANELS / "resnet50", label, loss) for label in COMPARED}
    first = lambda loss: set(sorted(rounds(loss), key=rounds(loss).__getitem__)[:2])
    assert first(3.0) == first(1.0) == {"Adam", "LAgg-A"}
    assert first(0.3) == {"Adam", "LOpt-A (general)"}
    assert max(rounds(0.1), key=rounds(0.1).__getitem__) == "LAgg-A"
    assert (
        "Adam and LAgg-A lead down to 1.0, then Adam and the general one; LAgg-A is last at 0.1."
        in TOLD
    )


def test_against_local_sgd_at_the_rate_for_the_mlp():
    said, rounds = [], {"LOpt-A": [], "LAgg-A": []}
    for panel in LOSSES:
        points = [
            r
            for r in read(FOLDER / "sweeps" / f"{panel}-local-sgd" / "records.jsonl")
            if r["kind"] == "point"
        ]
        (carried,) = (point for point in points if point["numbers"] == {"gamma": 0.3})
        said.append(carried["minimum"])
        for label, found in rounds.items():
            found.append(rounds_to(PANELS / panel, label, carried["minimum"]))
    losses = (
        "ResNet-50 (a loss of {:.2f}), and after 300 on the ViT ({:.2f}) and the decoder ({:.2f})"
    ).format(*said)
    learned = "LOpt-A is after {}, {} and {} rounds".format(*rounds["LOpt-A"])
    assert (
        f"{losses}, {learned}, and LAgg-A after {{}}, {{}} and {{}}.".format(*rounds["LAgg-A"])
        in TOLD
    )


def test_no_learned_run_diverges_or_jumps():
    for panel in LOSSES:
        for label in LEARNED:
            assert not any(method_of(PANELS / panel, label)["diverged"])
            assert np.diff(train_losses(PANELS / panel, label)[:, 50:]).max() < 0.5


def test_what_batchnorm_makes_of_the_learned_steps():
    for label in LEARNED:
        tests = [
            f"{seed[-1]:,.0f}" for seed in method_of(PANELS / "resnet50", label)["heldout"]["loss"]
        ]
        assert "{}, {} and {} ({})".format(*tests, label) in TOLD


def test_whole_steps_are_too_long_for_a_small_transformer():
    assert read(SMALL / "records.jsonl")[0]["command"] in TOLD
    end_of = lambda label: mean_curve(SMALL, label)[-1]
    adam, lopt = end_of("adam:alpha=0.001"), "lopt-a-imagenet32-mlp3"
    assert end_of(lopt) < adam < end_of(f"{lopt}:{UNDONE}")
    for name in (lopt, "lopt-a-general"):
        assert end_of(name) < end_of(f"{name}:{UNDONE}") - 0.1


def test_the_general_ones_own_language_model_takes_shorter_steps_too():
    folder = ROOT / "results" / "general-lm-bytes"
    now, whole = (
        mean_curve(folder, label)[-1] for label in ("lopt-a-general", "lopt-a-general:scale=1.8333")
    )
    assert matrices_of("lm-bytes") == 11
    assert (
        f"it is at {now:.2f} after 300 rounds, with whole ones (`scale=1.8333`) at {whole:.2f}"
        in TOLD
    )
    assert now < whole - 0.05
