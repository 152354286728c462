"""The table and the picture of a sweep, from records that never ran."""

import itertools
import math

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import LogNorm

from laconic.methods import definition_of
from laconic.show.sweep import CEILING, ranked, ranking_text, sweep_figure, write_figure

GRID = [
    {"gamma": g, "alpha": a / g, "beta": b}
    for g, a, b in itertools.product((1.0, 0.3), (1.0, 0.1, 0.01), (0.9, 0.5))
]
OFF = [{"gamma": 0.3, "alpha": 0.7, "beta": 0.3}]


def made_up(method, points, values, grid_points, by="minimum", target=None, valid=()):
    config = {"method": method, "workers": 8, "local_steps": 4, "batch": 128, "rounds": 1000}
    run = {"kind": "run", "config": config, "task": {"name": "made-up"}, "grid_points": grid_points}
    records = []
    for i, (point, value) in enumerate(zip(points, values, strict=True)):
        known = value is not None
        fields = {"minimum": value if known else 0.001, "final": 2 * value if known else None}
        fields |= {"rounds_to_target": round(100 * value) if known and target else None}
        fields |= {"valid": dict.fromkeys(valid, value), "diverged": [not known, False]}
        fields |= {"seeds": [0, 1], "numbers": point}
        label = definition_of(method).spec(point)
        records.append({"kind": "point", "index": i, "label": label, **fields})
    order = ranked(records, by)
    ranking = {"kind": "ranking", "by": by, "target_loss": target, "best": order[0]["label"]}
    ranking |= {"order": [p["index"] for p in order], "seconds": 61.0}
    ranking |= {"diverged": sum(value is None for value in values)}
    return [run, *records, ranking]


def slowmo(**how):
    values = [0.4, 0.3, 0.2, None, 0.5, 9.0, 0.25, 0.15, 0.1, 0.6, 0.7, 0.8, 0.35]
    return made_up("slowmo", [*GRID, *OFF], values, len(GRID), **how)


def cells_of(text):
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return rows[0], rows[2:]


def test_the_table_holds_the_best_ten():
    text = ranking_text(slowmo())
    headers, rows = cells_of(text)
    assert headers == ["rank", "gamma", "alpha", "beta", "lowest train loss", "final train loss"]
    assert len(rows) == 10
    assert rows[0] == ["1", "0.3", "0.3333", "0.9", "0.100", "0.200"]
    losses = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7)
    assert [row[4] for row in rows] == [f"{value:.3f}" for value in losses]
    assert (
        "13 points, 1 diverged; 2 seeds; ranked by lowest train loss (trailing 10-round mean); 1 "
        "min." in text
    )
    assert "The best: `slowmo:gamma=0.3,alpha=0.33333333333333337,beta=0.9`." in text


def test_the_table_shows_targets_validation_and_divergence_where_there_are_any():
    points, values = [{"gamma": 0.5}, {"gamma": 1.0}], [0.5, None]
    records = made_up(
        "local-sgd", points, values, 2, by="rounds", target=0.25, valid=("loss", "accuracy")
    )
    headers, rows = cells_of(ranking_text(records))
    assert headers[4:] == ["rounds to 0.250", "valid loss", "valid accuracy", "diverged seeds"]
    assert rows == [
        ["1", "0.5", "0.500", "1.00", "50", "0.500", "50.0 %", "0"],
        ["2", "1", "0.00100", "–", "–", "–", "–", "1"],
    ]
    assert "ranked by rounds to a train loss of 0.250" in ranking_text(records)


def test_a_sweep_without_a_survivor_says_so():
    text = ranking_text(made_up("local-sgd", [{"gamma": 9.0}], [None], 1))
    assert "1 point, 1 diverged" in text
    assert "Every point diverged" in text
    assert "The best" not in text


def test_an_unfinished_sweep_has_no_report(raises_clearly, tmp_path):
    with raises_clearly("no ranking", "finish"):
        ranking_text(slowmo()[:-1])
    with raises_clearly("no ranking", "finish"):
        write_figure(slowmo()[:-1], tmp_path / "x.png")
    assert not any(tmp_path.iterdir())


def test_cells_hold_the_values_of_their_panel():
    records = slowmo()
    *panels, bar = sweep_figure(records).axes
    assert [ax.get_title(loc="left") for ax in panels] == ["gamma = 1", "gamma = 0.3"]
    for ax, gamma in zip(panels, (1.0, 0.3), strict=True):
        image = ax.get_images()[0]
        alphas, betas = [a / gamma for a in (0.01, 0.1, 1.0)], [0.5, 0.9]
        assert [t.get_text() for t in ax.get_xticklabels()] == [f"{alpha:.3g}" for alpha in alphas]
        assert [t.get_text() for t in ax.get_yticklabels()] == ["0.5", "0.9"]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("alpha", "beta")
        for y, x in itertools.product(range(2), range(3)):
            i = GRID.index({"gamma": gamma, "alpha": alphas[x], "beta": betas[y]})
            expected = math.nan if i == 3 else records[1 + i]["minimum"]
            np.testing.assert_equal(float(np.ma.filled(image.get_array(), np.nan)[y, x]), expected)
        assert isinstance(image.norm, LogNorm)
        assert (image.norm.vmin, image.norm.vmax) == (0.1, CEILING * 0.1)  # 9.0 lies beyond it
    written = [text.get_text() for ax in panels for text in ax.texts]
    assert sorted(written).count("×") == 1
    assert len(written) == len(GRID)
    assert [len(ax.patches) for ax in panels] == [0, 1]
    assert panels[1].patches[0].get_xy() == (0.5, 0.5)  # the best is alpha 0.1/0.3, beta 0.9
    assert "lowest train loss" in bar.get_ylabel()
    assert "×: diverged" in bar.get_ylabel()


def test_points_off_the_grid_are_named_below():
    figure = sweep_figure(slowmo())
    assert figure.get_supxlabel() == "off the grid: gamma 0.3, alpha 0.7, beta 0.3: 0.350"
    assert figure.get_suptitle() == "slowmo on made-up: K = 8, H = 4, B = 128, 1,000 rounds"
    on_grid = made_up("slowmo", GRID, [0.5] * 12, 12)
    assert sweep_figure(on_grid).get_supxlabel() == ""


def test_two_hyper_parameters_are_one_panel():
    points = [{"gamma": g, "eta": e} for g in (1.0, 0.1) for e in (0.1, 0.01, 0.001)]
    panel, _ = sweep_figure(made_up("fedadam", points, [0.3, 0.2, 0.5, 0.7, 0.9, 1.1], 6)).axes
    np.testing.assert_array_equal(
        panel.get_images()[0].get_array(), [[1.1, 0.5], [0.9, 0.2], [0.7, 0.3]]
    )
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("gamma", "eta")


def test_one_hyper_parameter_is_a_line():
    points, values = [{"gamma": g} for g in (1.0, 0.1, 0.5, 0.3)], [None, 0.4, 0.2, 0.3]
    (ax,) = sweep_figure(
        made_up("local-sgd", points, values, 3)
    ).axes  # the fourth was off the grid: on the line too
    line, crosses = ax.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [0.1, 0.3, 0.5])
    np.testing.assert_array_equal(line.get_ydata(), [0.4, 0.3, 0.2])
    assert list(crosses.get_xdata()) == [1.0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlabel().startswith("gamma")


@pytest.mark.parametrize(
    "values", [[None] * 12, [0.5] * 12, [0.0, *[0.5] * 11], [-1.0, *[0.5] * 11]]
)
def test_odd_values_can_be_drawn(values, tmp_path):
    write_figure(made_up("slowmo", GRID, values, 12), tmp_path / "grid.png")
    write_figure(
        made_up("local-sgd", [{"gamma": 0.1}, {"gamma": 1.0}], values[:2], 2), tmp_path / "line.png"
    )
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_records_give_the_same_bytes_and_nothing_global_changes(tmp_path):
    before = dict(mpl.rcParams)
    for name in ("a.png", "b.png"):
        write_figure(slowmo(), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert dict(mpl.rcParams) == before
