"""A Flower strategy that takes laconic's outer steps; clients need not know of it."""

import importlib.util

if importlib.util.find_spec("flwr") is None:
    raise ImportError("laconic.flower needs Flower: pip install 'laconic[flower]'")

from laconic.flower.strategy import LearnedStrategy

__all__ = ["LearnedStrategy"]
