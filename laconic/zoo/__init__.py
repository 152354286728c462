"""Published learned optimizers: one safetensors file each, weights and card together."""

from laconic.zoo.card import Card, to_markdown
from laconic.zoo.published import Published, publish
from laconic.zoo.shelf import cards, export, faults, load, published

__all__ = ["Card", "Published", "cards", "export", "faults", "load", "publish", "published", "to_markdown"]
