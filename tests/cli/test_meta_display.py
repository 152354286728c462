"""What is shown while meta-training goes on, with a clock of the test's own."""

import io
import math

import numpy as np
import pytest
from rich.console import Console

from laconic.cli.meta_train import MetaDisplay, sparkline

STEPS = 400


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def display(terminal=False):
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=terminal, width=140, color_system=None)
    return MetaDisplay("a-recipe", console, clock), clock


def written(shown):
    return shown.console.file.getvalue()


def steps(shown, done, losses, norm=1.5):
    for step, loss in enumerate(losses, start=done - len(losses) + 1):
        shown.progress("meta-training", step, float(loss), norm)


def test_a_log_gets_a_line_at_first_and_then_every_ten_seconds():
    shown, clock = display()
    with shown:
        assert written(shown) == ""
        shown.begin("meta-training", STEPS, 0, 160)
        clock.now += 8
        steps(shown, 1, [2.0])
        for done in range(2, 22):  # a step a second: twenty of them
            clock.now += 1
            steps(shown, done, [2.0 - done / 100])
    compiling, first, tenth, twentieth = written(shown).splitlines()
    assert compiling == "a-recipe: outer step 0/400, compiling …, elapsed 0:00:00"
    assert (
        first == "a-recipe: outer step 1/400, meta-loss 2.0000, gradient norm 1.5, elapsed 0:00:08"
    )
    mean = (2.0 + sum(2.0 - done / 100 for done in range(2, 12))) / 11
    assert tenth == (
        f"a-recipe: outer step 11/400, meta-loss {mean:.4f}, gradient norm 1.5, 160 rounds/s, "
        "elapsed 0:00:18, left 0:06:29"
    )
    assert "outer step 21/400" in twentieth


def test_the_loss_shown_is_the_mean_of_the_last_fifty():
    shown, _ = display()
    shown.begin("meta-training", STEPS, 0, 160)
    values = np.linspace(3, 1, 90)
    steps(shown, 90, values)
    assert f"meta-loss {values[40:].mean():.4f}" in shown.facts()


def test_the_best_is_kept():
    shown, _ = display()
    shown.begin("meta-training", STEPS, 0, 160)
    steps(shown, 1, [2.0])
    assert not any("best" in fact for fact in shown.facts())
    shown.judged(100, 0.5, True)
    shown.judged(200, 0.7, False)
    assert shown.facts()[-1] == "best 0.5000 on held-out seeds (step 100)"


def test_a_resumed_run_shows_what_was_and_its_own_speed():
    shown, clock = display()
    shown.begin("meta-training", STEPS, 100, 160)
    steps(shown, 100, np.full(100, 2.0))  # what the runner says again
    shown.judged(100, 0.5, True)
    assert shown.facts() == ["compiling …", "best 0.5000 on held-out seeds (step 100)"]
    clock.now += 30
    steps(shown, 101, [2.0])
    assert shown.steps_per_second is None
    clock.now += 5
    steps(shown, 111, [2.0] * 10)
    assert shown.steps_per_second == pytest.approx(2.0)
    assert shown.times() == ["elapsed 0:00:35", "left 0:02:24"]  # 289 steps


def test_a_terminal_gets_a_panel():
    shown, clock = display(terminal=True)
    with shown:
        assert "preparing …" in written(shown)
        shown.begin("meta-training", STEPS, 0, 160)
        steps(shown, 1, [2.0])
        clock.now += 4
        steps(shown, 200, np.linspace(2, 1, 199))
        shown.judged(200, 0.25, True)
        shown.note("a [b]note[/b]")
    text = written(shown)
    assert "note: a [b]note[/b]" in text
    last = text.split("a-recipe")[-1]
    rate = f"{199 * 160 / 4:,.0f} rounds/s"
    for part in (
        "━",
        "outer step 200/400",
        "elapsed 0:00:04",
        "left 0:00:04",
        "meta-loss 1.1237",
        rate,
        "best 0.2500",
    ):
        assert part in last
    line = next(line for line in last.splitlines() if "█" in line)
    assert line.split()[0] == sparkline([2.0, *np.linspace(2, 1, 199)])
    assert shown.facts()[0] == f"meta-loss {np.linspace(2, 1, 199)[-50:].mean():.4f}"


@pytest.mark.parametrize(
    ("values", "picture"),
    [
        ([], ""),
        ([3.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        (range(8), "▁▂▃▄▅▆▇█"),
        ([7, 0, math.nan, 3.4, math.inf], "█▁ ▄ "),
        ([math.nan] * 3, "   "),
    ],
)
def test_a_sparkline_spans_lowest_to_highest(values, picture):
    assert sparkline(list(values)) == picture


def test_a_long_sparkline_has_sixty_columns_of_means():
    values = np.repeat(np.arange(60.0), 5) + np.tile(
        [-0.2, 0.1, 0.0, 0.1, 0.0], 60
    )  # each five have the mean i
    assert sparkline(values) == sparkline(np.arange(60.0))
    assert len(sparkline(np.arange(1234.0))) == 60
    assert len(sparkline(np.arange(1234.0), 10)) == 10
