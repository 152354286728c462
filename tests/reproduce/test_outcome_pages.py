"""What an experiment's records become: curves that match a slow oracle, bars, a table in Markdown
and in HTML."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from laconic.reproduce.experiment import Experiment, Listing
from laconic.reproduce.outcome import (
    experiment_blocks,
    experiment_figure,
    markdown,
    notes,
    page,
    rows_of,
    write_outcome,
)
from laconic.reproduce.panel_show import all_axes, bars_of, panels_table, styles_of
from laconic.reproduce.part import Outcome
from laconic.reproduce.scale import SMOKE_LINE
from laconic.reproduce.sweep_panel import SweepPanel
from laconic.runs.sweep import SweepConfig
from laconic.show.curves import Curve, Panel, Style
from laconic.show.figures import draw_bars, draw_panel, svg_bytes
from laconic.show.table import Table, signed
from laconic.store.records import read
from tests.recorded import ROOT
from tests.reproduce.made import LABELS, PAINTED, of_panel, records
from tests.show.made_up import oracle_smooth

PANELS = {"a": records(), "b": records(first=5, sent=1024)}
RUNS = {name: of_panel(name, found) for name, found in PANELS.items()}
ROWS = rows_of(PAINTED, RUNS)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8) + (100).to_bytes(4, "big")  # as much of one as is read
TITLES = {"a": "First", "b": "Second"}
ORIGIN = {"commit": "abc", "device": {"kind": "Abacus"}, "started": "2031-02-03T04:05:06+00:00"}


def record(scale="smoke", rows=ROWS):
    return {
        "scale": scale,
        "rows": rows,
        "optimizers": {"x": "lopt-a-fmnist", "y": "z.safetensors"},
    } | {"provenance": ORIGIN}


def outcome(experiment=PAINTED, runs=RUNS, made=None):
    return Outcome(experiment, runs, made or record())


def axes_of(title):
    return next(axes for axes in axes_in(PANELS) if axes.title == title)


def axes_in(panels):
    return all_axes(PAINTED.parts, PAINTED.across, panels)


def test_curves_are_smoothed_means_with_standard_errors_over_seeds():
    line = axes_of("First").curves[1]
    curves = np.array(PANELS["a"][2]["train"])
    assert line.label == "SlowMo"
    np.testing.assert_allclose(line.y, oracle_smooth(curves.mean(axis=0)), rtol=1e-12)
    smooth = np.array([oracle_smooth(curve) for curve in curves])
    np.testing.assert_allclose(line.error, smooth.std(axis=0, ddof=1) / math.sqrt(3), rtol=1e-12)
    np.testing.assert_array_equal(line.x, np.arange(1, 41))


def test_bits_are_counted_in_powers_of_two():
    lines = axes_of("Bits").curves
    assert [line.label for line in lines] == [
        f"{x}, {p}" for p in ("First", "Second") for x in LABELS
    ]
    assert lines[3].x[0] == 10  # one round of 1024 bits
    assert lines[3].x[31] == 15


def test_a_method_that_sends_nothing_has_no_place_among_bits():
    silent = {"a": records(sent=0), "b": PANELS["b"]}
    (bits,) = [axes for axes in axes_in(silent) if axes.title == "Bits"]
    assert len(bits.curves) == 3


def test_held_out_accuracy_is_in_percent_where_it_was_looked_at():
    accuracy, loss = [axes for axes in axes_in(PANELS) if axes.title == "First"][1:]
    measured = PANELS["a"][1]["heldout"]
    np.testing.assert_array_equal(accuracy.curves[0].x, PANELS["a"][1]["evaluated_at"])
    np.testing.assert_allclose(accuracy.curves[0].y, 100 * np.mean(measured["accuracy"], axis=0))
    np.testing.assert_allclose(loss.curves[0].y, np.mean(measured["loss"], axis=0))
    assert (accuracy.y_label, accuracy.log_y, loss.log_y) == ("test accuracy, %", False, True)


def test_one_label_across_panels_has_a_colour_for_each():
    lines = axes_of("LOpt-A").curves
    assert [line.label for line in lines] == ["LOpt-A, First", "LOpt-A, Second"]
    assert len({line.style.colour for line in lines}) == 2
    key = axes_of("LOpt-A").key
    assert [name for _, name in key] == ["First", "Second"]
    assert [style for style, _ in key] == [line.style for line in lines]


def test_looks_differ_even_for_many_labels():
    many = [{"kind": "method", "label": f"m{i}"} for i in range(13)] + [
        {"kind": "method", "label": "Local SGD"}
    ]
    looks = styles_of({"p": many})
    assert len(set(looks.values())) == 14


def test_the_bound_is_drawn_on_as_a_level():
    changed = [
        r | ({"method": "small-batch-sgd"} if r.get("label") == "SlowMo" else {})
        for r in PANELS["a"]
    ]
    (first, *_) = axes_in({"a": changed, "b": PANELS["b"]})
    assert [line.level is None for line in first.curves] == [True, False, True]
    assert first.curves[1].level == pytest.approx(np.mean(np.array(changed[2]["train"])[:, -10:]))


def test_the_figure_has_every_axes_the_legend_and_the_note():
    figure = experiment_figure(outcome())
    shown = [ax.get_title(loc="left") for ax in figure.axes if ax.axison]
    assert ", ".join(shown) == "First, First, First, Second, Bits, LOpt-A, Speedups (◇ the paper)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(LABELS)
    assert SMOKE_LINE in figure.get_suptitle()
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in figure.axes[:6])
    ElementTree.fromstring(svg_bytes(figure))


def test_two_axes_of_a_panel_stand_side_by_side():
    pairs = tuple(replace(panel, shown=("train", "test-loss")) for panel in PAINTED.parts)
    figure = experiment_figure(outcome(replace(PAINTED, parts=pairs, across=())))
    assert [plot.get_title(loc="left") for plot in figure.axes] == [
        "First",
        "First",
        "Second",
        "Second",
    ]
    assert figure.axes[0].get_gridspec().ncols == 2


def broken(losses, diverged):
    """The first panel with SlowMo's second seed at these losses from round 21 on."""
    slow = dict(PANELS["a"][2])
    slow["train"] = [list(curve) for curve in slow["train"]]
    slow["train"][1][20:] = losses
    slow["diverged"] = [False, diverged, False]
    return {**RUNS, "a": of_panel("a", [*PANELS["a"][:2], slow, *PANELS["a"][3:]])}


def test_a_diverged_curve_is_drawn_as_far_as_it_goes_and_told_of():
    panels = broken([None] * 20, True)
    figure = experiment_figure(outcome(runs=panels))
    (cross,) = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert cross.get_xdata() == [20]
    curve = np.mean(np.array(PANELS["a"][2]["train"])[:, 10:20])
    assert cross.get_ydata() == pytest.approx(curve)
    told = notes(outcome(runs=panels))
    assert "Diverged: SlowMo on First, 1 of 3 seeds, first in round 21." in told
    assert not [text for text in notes(outcome()) if "Diverged" in text]
    weights = "in its last rounds" in " ".join(notes(outcome(runs=broken([1.0] * 20, True))))
    assert weights, "only the weights were no numbers any more"


def test_a_curve_that_leaves_the_chart_is_marked_where_it_does():
    figure = experiment_figure(outcome(runs=broken([1e6] * 20, False)))
    markers = [(line.get_marker(), list(line.get_xdata())) for line in figure.axes[0].lines]
    assert [x for marker, x in markers if marker == "^"] == [[20]]
    assert not [x for marker, x in markers if marker == "x"]


def test_a_band_is_thin_where_seeds_agree_and_goes_on_from_there():
    from matplotlib.figure import Figure

    plot = Figure().subplots()
    x, y = np.array([10.0, 20.0, 30.0]), np.array([10.0, 10.0, 6.0])
    black = Style("#000000")
    lines = (
        Curve("a", black, x, y, np.array([0.0, 0.0, 5.0])),
        Curve("b", black, x, y, np.zeros(3)),
    )
    draw_panel(plot, Panel("p", "t", "x", "y", lines, log_y=False))
    (band,) = plot.collections
    drawn = {tuple(map(float, at)) for path in band.get_paths() for at in path.vertices}
    assert drawn == {(10, 10), (20, 10), (30, 1), (30, 11)}


def test_bars_are_our_numbers_and_diamonds_the_papers():
    from matplotlib.figure import Figure

    plot = Figure().subplots()
    blue = {"SlowMo": Style("#0072b2")}
    row = {"label": "SlowMo", "metric": "speedup", "paper_error": None}
    rows = [
        {**row, "panel": "a", "ours": 3.0, "error": 0.5, "paper": 2.0},
        {**row, "panel": "b", "ours": None, "error": None, "paper": None},
    ]
    draw_bars(plot, bars_of("Speedups", PAINTED.parts, rows, blue))
    (bar,) = plot.patches
    assert bar.get_height() == 3.0
    assert bar.get_x() + bar.get_width() / 2 == pytest.approx(0)
    assert [text.get_text() for text in plot.texts] == ["–"]
    diamonds = lambda plot: [
        list(line.get_ydata()) for line in plot.lines if line.get_marker() == "D"
    ]
    assert diamonds(plot) == [[2.0]]
    plot = Figure().subplots()
    # rounds to another loss cannot be laid beside the paper's
    rows[0] |= {"target": 1.5, "paper_target": 0.2}
    draw_bars(plot, bars_of("Rounds", PAINTED.parts, rows, blue))
    assert diamonds(plot) == []


def test_the_table_shows_both_numbers_and_the_difference():
    table = panels_table("t", TITLES, ROWS)
    heads = "panel, method, speedup, the paper, difference, final train loss"
    assert ", ".join(table.headers) == heads
    assert len(table.rows) == 6
    slowmo = next(row for row in table.rows if row[:2] == ["First", "SlowMo"])
    ours = next(
        r for r in ROWS if (r["panel"], r["label"], r["metric"]) == ("a", "SlowMo", "speedup")
    )
    assert slowmo[2].startswith(f"{ours['ours']:.2f}×")
    assert slowmo[3] == "2.00× ± 0.50"
    assert slowmo[4] == signed(ours["ours"] - 2.0)
    assert table.rows[0][3:5] == ["", ""]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.5, "+0.500"), (-31, "−31.0"), (0, "±0")]
)
def test_differences_have_a_sign(value, text):
    assert signed(value) == text


def test_rounds_say_which_loss_they_are_to():
    row = {"panel": "a", "label": "SlowMo", "metric": "rounds", "in_paper": True, "paper": 311}
    row |= dict.fromkeys(("ours", "error", "paper_error", "difference"))
    row |= {"target": 1.5, "paper_target": 0.2}
    table = panels_table("t", TITLES, [row])
    assert table.headers[2:] == ["rounds to 1.50", "the paper (to 0.200)", "difference"]
    assert table.rows == [["First", "SlowMo", "–", "311", "–"]]
    assert panels_table("t", TITLES, [row | {"target": 0.2}]).headers[3] == "the paper"


@pytest.mark.parametrize(("scale", "said"), [("smoke", True), ("full", False)])
def test_only_the_smoke_scale_says_so(scale, said):
    found = outcome(made=record(scale))
    for text in (markdown(found), page(found, PNG)):
        assert (SMOKE_LINE in text) == said
        assert ("a quarter of what" in text) == said
        for part in (
            "The paper: it is fast.",
            "much.",
            "bundled digits",
            "published lopt-a-fmnist",
            "Abacus",
        ):
            assert part in text


def test_markup_in_a_title_stays_text():
    text = page(outcome(replace(PAINTED, title="<b>x</b>", says=("<b>x</b>",))), PNG)
    assert "<b>x" not in text
    lines = [line for line in markdown(outcome()).splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_everything_is_written(tmp_path):
    files = write_outcome(tmp_path, outcome())
    pictures = ["figure-narrow.png", "figure.png", "figure.svg"]
    assert sorted(path.name for path in files) == [*pictures, "table.html", "table.md"]
    narrow, wide = (
        int.from_bytes((tmp_path / name).read_bytes()[16:20], "big") for name in pictures[:2]
    )
    assert narrow < 800 < 1800 < wide  # pixels, 160 an inch
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert "data:image/png;base64,iVBOR" in (tmp_path / "table.html").read_text()


def test_tuned_values_as_a_table_with_what_the_paper_lists_besides(tmp_path):
    row = {"panel": "FMNIST: SlowMo", "setting": "FMNIST", "method": "SlowMo", "label": "slowmo"}
    row |= {"metric": "hparams", "recorded": None}
    row |= {"ours": {"gamma": 0.1, "alpha": 1.0}, "paper": {"gamma": 0.3, "alpha": 5 / 3}}
    row |= {"loss": 0.2, "paper_loss": 0.5, "difference": 0.3}
    (table,) = SweepPanel.tables(PAINTED, [row])
    assert table.rows == [
        ["FMNIST", "SlowMo", "0.3 / 1.667", "0.1 / 1", "0.200", "0.500", "+0.300", "–"]
    ]
    sweeps = (SweepPanel("s", "S", SweepConfig(), "minimum", {}),)
    found = Experiment(
        "h", "H", "w", sweeps, listings=(Listing("Others", ("a", "b"), (("1", "2"),)),)
    )
    write_outcome(tmp_path, outcome(found, {}, record(rows=[row])))
    text = (tmp_path / "table.md").read_text()
    assert "## Others" in text
    assert "| 1 | 2 |" in text


# --- in a report ----------------------------------------------------------------------------------


def test_a_report_shows_an_experiment_on_record_by_the_records_of_its_parts():
    folder = ROOT / "results" / "reproduce" / "fig-ablation-full"
    lead, _, table, told, picture = experiment_blocks(read(folder / "records.jsonl"), folder)
    assert lead.text == "The effect of Ada features"
    assert table.markdown(aligned=False) in (folder / "table.md").read_text()
    assert any(note.startswith("Data: ") for note in told.items)
    for image in (picture.image(), picture.narrow()):
        assert (image[:4], image[8:12]) == (b"RIFF", b"WEBP")


def test_a_report_shows_an_experiment_that_has_no_name_by_its_own_record(tmp_path):
    table = {"title": "T", "headers": ["a", "b"], "rows": [["1", "2"]], "left": 1, "grouped": False}
    own = record() | {"kind": "experiment", "name": "mine", "title": "Mine"}
    lead, shown, told = experiment_blocks([own | {"tables": [table], "notes": ["x"]}], tmp_path)
    assert (lead.text, shown, list(told.items)) == ("Mine", Table(**table), ["x"])
