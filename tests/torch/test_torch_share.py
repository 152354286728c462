"""Wide tensors take smaller steps in PyTorch too, by their inputs in torch.nn's layout."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from laconic.outer.learned import LearnedOptimizer
from tests.torch.pairs import Pair

SHARES = {  # in JAX's layout, with whole steps up to four inputs
    (6,): 1.0,
    (4, 9): 1.0,
    (5, 9): 4 / 5,
    (16, 2): 1 / 4,
    (2, 4, 3): 1 / 2,
    (3, 3, 1, 2): 4 / 9,
    (99, 2): 1 / 8,
}
SHAPES = {f"w{i}": shape for i, shape in enumerate(SHARES)}


def test_a_steps_share_follows_from_the_inputs(tmp_path):
    changes = {}
    for widest in (0, 4):
        folder = tmp_path / str(widest)
        folder.mkdir()
        changes[widest] = Pair(LearnedOptimizer("lopt-a", widest=widest), folder, SHAPES).step(0)
    for name, share in zip(SHAPES, SHARES.values(), strict=True):
        np.testing.assert_allclose(changes[4][name], share * changes[0][name], rtol=2e-6, err_msg=name)
