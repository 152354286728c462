import io
import itertools
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from PIL import Image

from laconic.show import comparison as compared
from laconic.show import curves, figures
from laconic.show.page import _inches
from tests.show.made_up import (
    DENSE,
    LABELS,
    LINK,
    STEP,
    comparison,
    diverging,
    method_record,
    oracle_smooth,
    usual,
)


def lines_of(ax: Any, part: str = "-method-") -> list[Any]:
    """The lines whose name holds `part`, without the crosses at their ends."""
    named = [(str(line.get_gid()), line) for line in ax.get_lines()]
    return [line for name, line in named if part in name and not name.endswith("-end")]


def axes_of(records: Any) -> list[Any]:
    return list(compared.curves_figure(records).axes)


def test_every_method_has_a_line_in_every_panel_with_the_smoothed_mean():
    records = usual(link=LINK)
    train, test, seconds = axes_of(records)
    per_round = 4 * STEP + 2 * 0.02 + 2 * DENSE / 1e8
    for ax, scale in ((train, 1.0), (seconds, per_round)):
        assert len(lines_of(ax)) == len(LABELS)
        assert ax.get_yscale() == "log"
        for line, method in zip(lines_of(ax), records[1:-1], strict=True):
            expected = oracle_smooth(np.array(method["train"]).mean(axis=0))
            np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-12)
            np.testing.assert_allclose(line.get_xdata(), scale * np.arange(1, 121), rtol=1e-12)
    assert (train.get_xscale(), seconds.get_xscale()) == ("linear", "log")
    assert len(lines_of(test)) == len(LABELS)
    for line, method in zip(lines_of(test), records[1:-1], strict=True):
        np.testing.assert_allclose(
            line.get_ydata(), 100 * np.array(method["heldout"]["accuracy"]).mean(axis=0)
        )
        np.testing.assert_array_equal(line.get_xdata(), method["evaluated_at"])
    assert train.get_ylabel() == "train loss (trailing 10-round mean)"
    assert (test.get_ylabel(), seconds.get_xlabel()) == (
        "test accuracy, %",
        "seconds on a 100Mbit/20ms link",
    )


def test_bands_are_one_standard_error_of_the_smoothed_seeds():
    records = usual(seeds=5, rounds=60)
    ax = axes_of(records)[0]
    assert len(ax.collections) == len(LABELS)
    for band, method in zip(ax.collections, records[1:-1], strict=True):
        smooth = np.array([oracle_smooth(np.array(curve)) for curve in method["train"]])
        mean, error = smooth.mean(axis=0), smooth.std(axis=0, ddof=1) / math.sqrt(5)
        vertices = {(round(x), y) for x, y in band.get_paths()[0].vertices}
        for t in range(9, 60):
            drawn = sorted({y for x, y in vertices if x == t + 1})
            np.testing.assert_allclose(
                (drawn[0], drawn[-1]), (mean[t] - error[t], mean[t] + error[t]), rtol=1e-9
            )


def test_a_band_is_thin_where_seeds_agree_and_goes_on_from_there():
    records = usual(seeds=2)
    method = records[1]
    ends = [[0.1] * (len(method["evaluated_at"]) - 1) + [last] for last in (0.2, 0.4)]
    method["heldout"]["accuracy"] = ends
    band = axes_of(records)[1].collections[0]
    x = method["evaluated_at"]
    expected = {
        (x[-2], 10.0),
        (x[-1], 20.0),
        (x[-1], 40.0),
    }  # the standard error of two is half of what they differ by
    assert {
        (float(a), round(float(b), 6)) for a, b in band.get_paths()[0].vertices if a >= x[-2]
    } == expected


def test_one_seed_has_no_band_and_the_target_a_thin_dotted_line():
    records = usual(seeds=1)
    ax = axes_of(records)[0]
    assert all(len(band.get_paths()) == 0 for band in ax.collections)
    (target,) = lines_of(ax, "-target")
    np.testing.assert_array_equal(target.get_ydata(), [records[-1]["target_loss"]] * 2)
    assert target.get_linestyle() == ":"
    assert target.get_linewidth() < 1


def test_test_loss_stands_in_for_a_missing_accuracy_and_nothing_for_both():
    loss_only = usual(heldout=("loss",))
    _, test = axes_of(loss_only)
    assert (test.get_ylabel(), test.get_yscale()) == ("test loss", "log")
    np.testing.assert_allclose(
        lines_of(test)[0].get_ydata(), np.mean(loss_only[1]["heldout"]["loss"], axis=0)
    )
    assert len(axes_of(usual(heldout=()))) == 1


def test_traffic_has_a_panel_of_its_own_where_it_differs():
    records = usual()
    assert not compared.traffic_differs(records)
    records[2]["traffic"]["sent_bits"] = DENSE // 50
    records[5]["traffic"]["sent_bits"] = 0
    assert compared.traffic_differs(records)
    (ax,) = figures.grid_figure([compared.bits_panel(records)]).axes
    assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "megabytes sent per worker")
    first, second, *_, last = lines_of(ax)
    assert len(lines_of(ax)) == 4  # what sends nothing has no place on a log axis
    np.testing.assert_allclose(first.get_xdata(), np.arange(1, 121) * DENSE / 8e6)
    np.testing.assert_allclose(second.get_xdata(), np.arange(1, 121) * (DENSE // 50) / 8e6)
    np.testing.assert_allclose(
        last.get_ydata(), oracle_smooth(np.mean(records[4]["train"], axis=0))
    )


def test_a_diverged_method_is_drawn_until_it_diverges_and_marked():
    figure = compared.curves_figure(diverging(at=60))
    axes: list[Any] = list(figure.axes)
    train, test = axes
    y = lines_of(train)[3].get_ydata()
    assert np.isfinite(
        y[9:58]
    ).all()  # up to round 58; round 59 is nonsense, round 60 is not finite
    assert not np.isfinite(y[58:]).any()
    (cross,) = [line for line in train.get_lines() if str(line.get_gid()).endswith("-end")]
    assert (cross.get_marker(), cross.get_xdata()[0], cross.get_ydata()[0]) == ("x", 58, y[57])
    at = lines_of(test)[3]
    assert [bool(np.isfinite(v)) for v in at.get_ydata()] == [x < 60 for x in at.get_xdata()]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[3] == "FedAdam (diverged: 2 of 3 seeds)"
    assert sum("diverged" in text for text in texts) == 1
    assert train.get_ylim()[1] < 10  # 1e30 does not squash the rest


def test_nothing_is_drawn_outside_the_axes_though_nothing_is_clipped():
    for records in (diverging(), usual(link=LINK)):
        for ax in axes_of(records):
            (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
            for line in ax.get_lines():
                x, y = (np.asarray(v, dtype=float) for v in line.get_data())
                drawn = np.isfinite(y)
                assert ((left <= x[drawn]) & (x[drawn] <= right)).all()
                assert ((bottom <= y[drawn]) & (y[drawn] <= top)).all()


def test_twelve_methods_differ_in_colour_or_marker_and_all_in_greyscale():
    labels = ("local-sgd", *(f"m{i}" for i in range(11)))
    figure = compared.curves_figure(usual(seeds=1, rounds=20, labels=labels))
    handles: list[Any] = figure.legends[0].legend_handles[:12]
    assert (
        len(
            {
                (to_hex(h.get_color()), str(h._unscaled_dash_pattern), h.get_marker())
                for h in handles
            }
        )
        == 12
    )
    assert len({(str(h._unscaled_dash_pattern), h.get_marker()) for h in handles}) == 12
    okabe_ito = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}
    assert {to_hex(h.get_color()) for h in handles[1:]} == okabe_ito
    assert to_hex(handles[0].get_color()) == curves.INK


def test_losses_that_are_not_positive_get_a_linear_axis():
    methods = [method_record(i, label, 2, 40) for i, label in enumerate(LABELS[:2])]
    for method in methods:
        method["train"] = (np.array(method["train"]) - 1.5).tolist()
    ax = axes_of(comparison(methods))[0]
    assert ax.get_yscale() == "linear"
    np.testing.assert_allclose(
        lines_of(ax)[0].get_ydata(), oracle_smooth(np.mean(methods[0]["train"], axis=0))
    )


def test_a_finite_blow_up_does_not_squash_losses_that_are_not_positive():
    methods = [method_record(i, label, 2, 40) for i, label in enumerate(LABELS[:3])]
    for method in methods:
        method["train"] = (np.array(method["train"]) - 1.5).tolist()
    methods[1]["train"][0][30] = 1e30
    ax = axes_of(comparison(methods))[0]
    assert ax.get_yscale() == "linear"
    assert ax.get_ylim()[1] < 10


@pytest.mark.parametrize(("target", "drawn"), [(0.04, 1), (1e-9, 0), (-1.0, 0), (50.0, 0)])
def test_a_target_far_from_every_curve_is_not_drawn(target, drawn):
    methods = usual()[1:-1]
    ax = axes_of(comparison(methods, target=target))[0]
    assert len(lines_of(ax, "-target")) == drawn
    lowest = min(np.nanmin(oracle_smooth(np.mean(method["train"], axis=0))) for method in methods)
    shown = min(lowest, target) if drawn else lowest
    assert shown / 1.3 < ax.get_ylim()[0] < shown  # a margin, and no room for what is not drawn


@pytest.mark.parametrize("columns", [1, 2])
def test_a_long_title_is_broken_and_stays_inside_the_figure(columns):
    title = "Fashion-MNIST, 2-layer MLP, α = 0.1 (heterogeneous)"
    panels = [replace(panel, title=title) for panel in compared.panels(usual())]
    figure = figures.grid_figure(panels, columns=columns)
    figure.draw_without_rendering()
    for ax in figure.axes:
        assert ax.get_title("left").split() == title.split()
        assert ax._left_title.get_window_extent().x1 <= ax.get_window_extent().x1


@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_runs_shorter_than_the_window_show_their_one_mean(rounds):
    records = usual(seeds=2, rounds=rounds, link=LINK)
    ax = axes_of(records)[0]
    assert ax.get_ylabel() == f"train loss (trailing {rounds}-round mean)"
    y = lines_of(ax)[0].get_ydata()
    assert np.isfinite(y).sum() == 1
    assert y[-1] == pytest.approx(np.mean(records[1]["train"]))
    assert lines_of(ax)[0].get_marker() == "o"
    figures.png_bytes(compared.curves_figure(records))


def test_a_method_that_never_was_finite_is_only_in_the_legend():
    methods = [method_record(i, label, 2, 30) for i, label in enumerate(LABELS[:2])]
    methods[1] |= {"train": [[None] * 30] * 2, "diverged": [True, True]}
    for records in (comparison(methods), comparison(methods[1:], reference=None)):
        figure = compared.curves_figure(records)
        assert figures.png_bytes(figure).startswith(b"\x89PNG")
        assert "SlowMo γ 0.1, β 0.95 (diverged)" in [
            text.get_text() for text in figure.legends[0].get_texts()
        ]


@settings(deadline=None, max_examples=50)
@given(st.floats(-9, 9), st.floats(0.1, 30), st.integers(4, 8))
def test_round_values_lie_in_range_and_are_few_but_not_too_few(start, decades, most):
    low, high = 10.0**start, 10.0 ** (start + decades)
    values = curves.round_values(low, high, most)
    assert all(low <= value <= high for value in values)
    assert all(a < b for a, b in itertools.pairwise(values))
    assert 1 <= len(values) <= most
    assume(decades > 0.2)
    assert len(values) >= 2


def test_round_values_of_familiar_ranges():
    assert curves.round_values(0.045, 2.3, 6) == [0.05, 0.1, 0.2, 0.5, 1, 2]
    assert curves.round_values(3.1, 4.25, 6) == [3.2, 3.4, 3.6, 3.8, 4.0, 4.2]
    assert curves.round_values(3, 9, 6) == [3, 5, 7]
    assert curves.round_values(0.9, 1.1e6, 6) == [1, 100, 10_000, 1_000_000]


def test_matplotlib_waits_for_the_first_figure_and_keeps_its_settings():
    code = """if True:
        import sys
        from laconic.show import curves, figures
        assert not [name for name in sys.modules if name.startswith("matplotlib")]
        import matplotlib
        matplotlib.rcParams.update({"text.usetex": True, "font.size": 50.0, "svg.fonttype": "path"})
        kept = [k for k in matplotlib.rcParams if k != "backend"]
        settings = lambda: {k: matplotlib.rcParams[k] for k in kept}
        before = settings()
        curve = curves.Curve("a", curves.Style("#0072b2"), *[figures.np.arange(1.0, 5)] * 3)
        panel = curves.Panel("rounds", "Loss", "rounds", "loss", (curve,))
        assert b"<text" in figures.svg_bytes(figures.panel_figure(panel))
        assert settings() == before
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


# --- grids, bars and marks ------------------------------------------------------------------------

RED = curves.Style("#d55e00")


def a_panel(title: str, y: Any, **options: Any) -> curves.Panel:
    line = curves.plain_curve("a", RED, [1, 2, 3, 4], y, options.pop("error", None))
    return curves.Panel(title, title, "x", "y", (line,), **options)


def test_a_grid_has_every_panel_one_legend_and_the_note():
    shown = [a_panel(f"p{i}", [4, 3, 2, 1]) for i in range(4)]
    bars = figures.Bars("b", "y", ["one, two"], [figures.Bar(0, "a", 1.0)], {"a": RED})
    wide = figures.grid_figure([*shown, bars], [(RED, "_a$")], "Title", "a note")
    assert [ax.get_title(loc="left") for ax in wide.axes if ax.axison] == [
        "p0",
        "p1",
        "p2",
        "p3",
        "b",
    ]
    assert [ax.axison for ax in wide.axes] == [True] * 5 + [False]
    assert wide.get_suptitle() == "Title\na note"
    assert [text.get_text() for text in wide.legends[0].get_texts()] == ["_a$"]
    narrow = figures.grid_figure(shown, [(RED, "a")], "Title", columns=1)
    assert narrow.get_figwidth() == 4.6 < wide.get_figwidth()
    assert narrow.axes[0].get_gridspec().ncols == 1


def test_bars_are_values_and_diamonds_references():
    bars = [figures.Bar(0, "a", 3.0, 0.5, reference=2.0), figures.Bar(1, "a", None)]
    figure = figures.grid_figure([figures.Bars("b", "y", ["one, two", "three"], bars, {"a": RED})])
    (ax,) = figure.axes
    (bar,) = ax.patches
    assert (bar.get_height(), bar.get_x() + bar.get_width() / 2) == (3.0, pytest.approx(0))
    assert [text.get_text() for text in ax.texts] == ["–"]
    assert [list(x.get_ydata()) for x in ax.lines if x.get_marker() == "D"] == [[2.0]]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["one,\ntwo", "three"]


def marks_of(panel: curves.Panel) -> list[tuple[Any, list[float]]]:
    (ax,) = figures.panel_figure(panel).axes
    ends = [line for line in ax.get_lines() if str(line.get_gid()).endswith("-end")]
    return [(line.get_marker(), list(line.get_xdata())) for line in ends]


def test_a_curve_that_leaves_the_chart_is_marked_where_it_does():
    assert marks_of(a_panel("p", [1, 1, 1e6, 1])) == [("^", [2.0])]
    assert marks_of(a_panel("p", [1, 1, 1, 1])) == []


def test_a_level_a_key_and_an_axis_that_does_not_begin_at_0():
    panel = a_panel("p", [4, 3, 2, 1], from_zero=False, key=((RED, "inside"),))
    level = replace(panel.curves[0], level=2.0)
    (ax,) = figures.grid_figure([replace(panel, curves=(level,))]).axes
    assert ax.get_xlim() == (1, 4)
    assert [x.get_linestyle() for x in ax.get_lines() if list(x.get_ydata()) == [2.0, 2.0]] == [":"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["inside"]


def test_a_linear_axis_holds_the_whole_band():
    panel = a_panel("p", [50, 51, 52, 53], error=[9.0] * 4, log_y=False)
    (ax,) = figures.panel_figure(panel).axes
    bottom, top = ax.get_ylim()
    assert bottom < 41 < 62 < top


def test_styles_of_many_labels_differ():
    looks = curves.label_styles(["Local SGD", *(f"m{i}" for i in range(13))], {"Local SGD"})
    assert len(set(looks.values())) == 14
    assert looks["Local SGD"] == curves.Style(curves.INK)
    assert all(look.dashes == () for look in list(looks.values())[:7])


def test_a_small_picture_is_as_sharp_as_a_png_of_its_size():
    figure = compared.curves_figure(usual())
    small = figures.webp_bytes(figure)
    files = small, figures._saved(figure, "png", dpi=figures.WEBP_DOTS)
    found, exact = (np.asarray(Image.open(io.BytesIO(f)).convert("RGB"), int) for f in files)
    assert _inches(small) == pytest.approx(figure.get_figwidth(), abs=0.01)
    assert len(np.unique(found.reshape(-1, 3), axis=0)) <= figures.WEBP_COLOURS
    assert np.percentile(np.abs(found - exact).max(axis=-1), 99.9) < 60
