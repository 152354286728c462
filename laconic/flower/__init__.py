"""A Flower strategy that takes laconic's outer steps; clients need not know of it."""

from laconic.flower.strategy import LearnedStrategy

__all__ = ["LearnedStrategy"]
