"""The learning curve's numbers against loops, and its picture."""

import math

import matplotlib.image
import numpy as np
import pytest

from laconic.show.meta import history, smooth, write_learning_curve

RNG = np.random.default_rng(0)


def progress(begin, losses, norms):
    return {
        "kind": "progress",
        "begin": begin,
        "end": begin + len(losses),
        "loss": losses,
        "norm": norms,
    }


def a_run(steps=120, tasks=2):
    loss = np.exp(RNG.normal(size=(steps, tasks)))
    norm = np.exp(RNG.normal(size=(steps, tasks)))
    half = steps // 2
    config = {"architecture": "lopt-a", "tasks": [f"task{i}" for i in range(tasks)]}
    records = [
        {"kind": "run", "config": config},
        progress(0, loss[:half].tolist(), norm[:half].tolist()),
        *(
            {"kind": "judged", "which": w, "step": half, "best": True, "score": 0.5}
            | {"at": [1, 2], "losses": [[2.0, 1.0]] * tasks}
            for w in ("theta", "average")
        ),
        progress(half, loss[half:].tolist(), norm[half:].tolist()),
        {"kind": "summary"},
    ]
    return records, loss, norm


def test_history_joins_the_parts():
    records, loss, norm = a_run()
    np.testing.assert_array_equal(history(records)[0], loss)
    np.testing.assert_array_equal(history(records)[1], norm)


def test_what_was_written_again_counts():
    """A run killed after step 4 whose checkpoint was of step 2."""
    records = [
        progress(0, [[1.0], [2.0]], [[9.0], [9.0]]),
        progress(2, [[3.0], [4.0]], [[9.0], [9.0]]),
    ]
    records.append(progress(2, [[5.0], [6.0], [7.0]], [[1.0], [2.0], [3.0]]))
    loss, norm = history(records)
    assert loss[:, 0].tolist() == [1, 2, 5, 6, 7]
    assert norm[:, 0].tolist() == [9, 9, 1, 2, 3]


def test_steps_that_no_record_tells_of_are_nan():
    loss, norm = history([progress(1, [[2.0], [None]], [[1.0], [None]])])
    assert np.isnan(loss[:, 0]).tolist() == [True, False, True]
    assert np.isnan(norm[:, 0]).tolist() == [True, False, True]


def test_no_progress_is_an_empty_history():
    for values in history([{"kind": "run"}]):
        assert values.shape == (0, 1)


@pytest.mark.parametrize("window", [1, 2, 5, 19, 20, 21, 50])
def test_smoothing_is_a_trailing_mean(window):
    values = RNG.normal(size=(20, 3))
    oracle = [values[max(0, i + 1 - window) : i + 1].mean(axis=0) for i in range(20)]
    np.testing.assert_allclose(smooth(values, window), oracle, rtol=1e-12, atol=1e-12)


def test_smoothing_leaves_out_what_is_missing():
    values = np.array([[1.0], [math.nan], [3.0], [math.nan], [math.nan]])
    np.testing.assert_allclose(smooth(values, 2)[:, 0], [1, 1, 3, 3, math.nan])


def test_smoothing_does_not_change_its_input():
    values = RNG.normal(size=(9, 1))
    before = values.copy()
    smooth(values, 3)
    np.testing.assert_array_equal(values, before)


def test_the_picture_is_drawn(tmp_path):
    records, _, _ = a_run()
    write_learning_curve(records, tmp_path / "curve.png")
    image = matplotlib.image.imread(tmp_path / "curve.png")
    assert image.shape[:2] > (900, 1400)
    assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 50


def test_the_picture_needs_no_judgement_and_few_steps(tmp_path):
    records, _, _ = a_run(steps=2, tasks=1)
    write_learning_curve([r for r in records if r["kind"] != "judged"], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
