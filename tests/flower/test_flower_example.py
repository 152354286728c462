"""The example app runs as it stands, with its own clients, in this process; and its gradient is
one."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'laconic[flower]'")

import tomllib

from flwr.app import Context, RecordDict

from tests.flower.grids import FakeGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
NAMES = ("digits", "client_app", "server_app")


@pytest.fixture
def example(monkeypatch):
    """The modules of the app, which go by short names."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        del sys.modules[name]


class AppGrid(FakeGrid):
    """Four clients that are the app's own, in the order they are asked."""

    def __init__(self, app, config):
        super().__init__(dict.fromkeys(range(4)))
        self.app, self.config, self.losses = app, config, []

    def answers(self, messages):
        def reply(message):
            k = message.metadata.dst_node_id
            context = Context(
                1, k, {"partition-id": k, "num-partitions": 4}, RecordDict(), self.config
            )
            return self.app(message, context)

        replies = [reply(message) for message in messages]
        if replies[0].metadata.message_type == "evaluate":
            found = [one.content["metrics"] for one in replies]
            self.losses.append(float(np.mean([metrics["loss"] for metrics in found])))
        return replies


def losses_of(example, **given):
    config = (
        tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        | given
    )
    grid = AppGrid(example["client_app"].app, config)
    example["server_app"].app(grid, Context(1, 0, {}, RecordDict(), config))
    return grid.losses


def test_the_learned_optimizer_is_ahead_of_averaging_after_ten_rounds(example):
    learned, averaged = losses_of(example), losses_of(example, optimizer="fedavg")
    assert len(learned) == len(averaged) == 10
    assert learned[-1] < averaged[-1] < averaged[0]


def test_the_gradient_is_that_of_the_loss(example):
    digits = example["digits"]
    weights = {name: w.astype(np.float64) for name, w in digits.new_weights().items()}
    x, y = digits.load_data(1, 4)
    x, y = x[:20].astype(np.float64), y[:20]
    _, gradient = digits.loss_and_gradient(weights, x, y)
    draw = np.random.default_rng(0)
    along = {name: draw.standard_normal(w.shape) for name, w in weights.items()}
    ahead, behind = (
        digits.loss_and_gradient({name: w + s * along[name] for name, w in weights.items()}, x, y)[
            0
        ]
        for s in (1e-5, -1e-5)
    )
    slope = sum(float(np.sum(along[name] * g)) for name, g in gradient.items())
    assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-6)
