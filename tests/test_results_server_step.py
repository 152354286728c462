"""What the docs tell of the server's step on a GPU is what the records say."""

from pathlib import Path

import pytest

from tests.recorded import benchmark

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "server-step.md").read_text()


@pytest.mark.parametrize("size", ["vit-b", "gpt2-medium"])
def test_the_docs_show_the_server_step_on_a_gpu(size):
    figures = benchmark(f"server-step-{size}-h200")["figures"]
    keys = ("ratio_to_adamw", "temporary_bytes_per_parameter")
    for name, figure in figures.items():
        ratio, temporary = (f"{figure[key]:.2f}" for key in keys)
        share = f"{figure['share_of_memory_floor']:.3f}"
        assert f"| {1e3 * figure['seconds']:.2f} | {ratio} | {share} | {temporary} |" in PAGE, name


def test_the_docs_tell_what_the_first_kernels_took():
    figures = benchmark("server-step-h200")["figures"]
    took = [f"{1e3 * figures[f'vit-b {name}']['seconds']:.2f}" for name in ("lopt-a", "lagg-a")]
    assert f"took {took[0]} and {took[1]} ms" in PAGE


def test_the_learned_steps_are_fast_enough_on_a_gpu():
    found = benchmark("server-step-vit-b-h200")
    assert found["tuning"]["precision"] == "half"
    assert found["figures"]["vit-b lopt-a"]["seconds"] <= 5e-3
    assert found["figures"]["vit-b lagg-a"]["seconds"] <= 6e-3
    assert all(figure["temporary_bytes_per_parameter"] < 16 for figure in found["figures"].values())
    lopt, lagg = (
        f"{1e3 * found['figures'][f'vit-b {name}']['seconds']:.2f}" for name in ("lopt-a", "lagg-a")
    )
    assert f"{lopt} ms for LOpt-A and {lagg} ms for LAgg-A" in " ".join(
        (ROOT / "CHANGELOG.md").read_text().split()
    )


ERRORS = benchmark("step-accuracy-h200")["errors"]


@pytest.mark.parametrize("precision", ERRORS["lopt-a"])
def test_the_docs_show_the_errors_on_a_gpu_and_these_are_below_what_is_tested(precision):
    (row,) = (
        line for line in PAGE.splitlines() if line.startswith(f"| `{precision}`") and "e-" in line
    )
    limit, *told = (cell.strip() for cell in row.strip("|").split("|")[2:])
    measured = [ERRORS[name][precision] for name in ("lopt-a", "lagg-a")]
    assert max(measured) < float(limit)
    assert told == [f"{error:.1e}".replace("e-0", "e-") for error in measured]
