"""Every optimizer that comes with the package keeps its promises."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic import zoo
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.store.archive import records_file
from laconic.zoo.card import to_json
from laconic.zoo.file import WEIGHTS
from tests.outer.trees import QUICK, SHAPES, random_deltas, random_tree
from tests.zoo.made import LOPT_A, a_card, weights

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "laconic" / "zoo" / "weights").glob("*"))
SEVERAL = {
    name: SHAPES[name] for name in ("scalar", "vector", "tall", "cube", "kernel")
}  # 0-D to 4-D


def step_of(got: zoo.Published):
    """One step from random weights on random deltas."""
    K = got.learned.workers or 4
    params = random_tree(SEVERAL, 1)
    deltas = {name: d[0] for name, d in random_deltas(SEVERAL, 1, K, 2).items()}
    tx = got.optax()
    mean = {name: d.mean(axis=0) for name, d in deltas.items()}
    return jax.jit(tx.update, compiler_options=QUICK)(
        mean, tx.init(params), params, worker_deltas=deltas
    )[0]


def missing_records(card: zoo.Card, results: Path) -> list[str]:
    return [row["record"] for row in card.results if not records_file(results / row["record"])]


def empty_fields(card: zoo.Card) -> list[str]:
    return [name for name, value in to_json(card).items() if value in ([], {})]


def test_the_names_are_the_files():
    """Nothing in the folder is left out of the tests below, nor of `published`."""
    assert WEIGHTS == ROOT / "laconic" / "zoo" / "weights"
    assert [path.suffix for path in FILES] == [".safetensors"] * len(FILES)
    assert zoo.published() == sorted(path.stem for path in FILES)
    assert sorted(zoo.cards()) == zoo.published()


def test_the_checks_can_fail(tmp_path):
    hollow = a_card(results=[], limits=[])
    assert empty_fields(hollow) == ["results", "limits"]
    assert missing_records(a_card(), tmp_path) == ["fmnist-baselines/records.jsonl"] * 3
    (tmp_path / "fmnist-baselines").mkdir()
    (tmp_path / "fmnist-baselines" / "records.jsonl").write_text("{}\n")
    assert missing_records(a_card(), tmp_path) == []
    broken = zoo.Published(LOPT_A, {**weights(), "b2": jnp.full(2, 3e38)}, a_card())
    assert not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(step_of(broken)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestEveryFile:
    def test_it_loads_under_its_own_name(self, path):
        got = zoo.load(path.stem)
        assert got.name == path.stem
        assert got.card == zoo.cards()[path.stem]
        assert got.outer().horizon == got.card.horizon[1]
        got.check_workers(got.learned.workers or 8)

    def test_it_is_the_architecture_of_its_recipe(self, path):
        assert zoo.load(path.stem).learned == META_RECIPES[path.stem][1].learned()

    def test_it_is_small(self, path):
        assert path.stat().st_size < 20_000

    def test_its_card_is_complete(self, path):
        card = zoo.cards()[path.stem]
        assert empty_fields(card) == []
        assert missing_records(card, ROOT / "results") == []
        assert card.name in zoo.to_markdown(card)

    def test_one_step_is_finite_and_moves_everything(self, path):
        for name, change in step_of(zoo.load(path.stem)).items():
            assert np.all(np.isfinite(change)), name
            assert np.any(change != 0), name
