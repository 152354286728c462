"""A Flower strategy that takes laconic's outer steps; clients stay as they are and need nothing of
laconic."""

from laconic.flower.strategy import LearnedStrategy

__all__ = ["LearnedStrategy"]
