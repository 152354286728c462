"""What the docs say of the large models, against the records."""

import numpy as np

from laconic.store.runlog import read
from tests.recorded import ROOT, mean_curve, method_of, rounds_to, train_losses

FOLDER = ROOT / "results" / "reproduce" / "fig-large-full"
SMALL = ROOT / "results" / "vit-small-scale"
DOCS = (ROOT / "docs" / "results.md").read_text()
TOLD = " ".join(DOCS.split())
LEARNED = ("LOpt-A", "LAgg-A", "LOpt-A (general)")
LOSSES = {"vit": ("ViT", (5.0, 4.8, 4.6)), "lm": ("decoder", (6.5, 6.0, 5.7, 5.5))}


def markdown(headers, rows):
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rounds_table():
    labels = ("Local SGD", "SlowMo", "Adam", *LEARNED)
    rows = [
        [title, f"{loss:.1f}", *(str(rounds_to(FOLDER / "panels" / panel, label, loss) or "–") for label in labels)]
        for panel, (title, losses) in LOSSES.items()
        for loss in losses
    ]
    return markdown(["model", "train loss", *labels], rows)


def test_the_docs_show_how_soon_each_loss_is_reached():
    assert rounds_table() in DOCS


def test_learned_steps_are_too_long_for_a_small_transformer():
    assert read(SMALL / "records.jsonl")[0]["command"] in TOLD
    assert mean_curve(SMALL, "lopt-a-imagenet32-mlp3:scale=0.3")[-1] < mean_curve(SMALL, "adam:alpha=0.001")[-1]
    assert mean_curve(SMALL, "lopt-a-imagenet32-mlp3")[-1] > mean_curve(SMALL, "adam:alpha=0.001")[-1]
    for name in ("lopt-a-imagenet32-mlp3", "lopt-a-general"):
        assert mean_curve(SMALL, f"{name}:scale=0.3")[-1] < mean_curve(SMALL, name)[-1] - 0.1


def test_no_learned_run_diverges_and_the_general_one_jumps():
    for panel in ("vit", "lm"):
        for label in LEARNED:
            assert not any(method_of(FOLDER / "panels" / panel, label)["diverged"])
    losses = train_losses(FOLDER / "panels" / "lm", "LOpt-A (general)")
    assert np.sum(np.diff(losses) > 4, axis=1).tolist() == [3, 0, 0]
    jumps = f"one seed jumps three times on the decoder, to a loss of up to {losses[:, 300:].max():.1f}"
    assert f"None of their runs diverges, but of `lopt-a-general` {jumps}" in TOLD


def test_of_resnet_50_the_grids_and_two_methods_are_there():
    folder = FOLDER / "panels" / "resnet50"
    assert [r["label"] for r in read(folder / "records.jsonl") if r["kind"] == "method"] == ["Local SGD", "LOpt-A"]
    assert "of its ResNet-50 the baselines' grids, local SGD and LOpt-A are done" in TOLD
    for method in ("local-sgd", "slowmo", "adam"):
        assert read(FOLDER / "sweeps" / f"resnet50-{method}" / "records.jsonl")[-1]["kind"] == "ranking"
    ends = {label: train_losses(folder, label)[:, -10:].mean(axis=1) for label in ("Local SGD", "LOpt-A")}
    assert f"local SGD is at a train loss of {ends['Local SGD'].mean():.2f}" in TOLD
    each = "{:.2f}, {:.2f} and {:.2f}".format(*ends["LOpt-A"])
    assert f"LOpt-A at {ends['LOpt-A'].mean():.2f} (three seeds, {each})" in TOLD
    tests = [f"{seed[-1]:,.0f}" for seed in method_of(folder, "LOpt-A")["heldout"]["loss"]]
    assert "Its test losses are {}, {} and {}:".format(*tests) in TOLD
