"""Published learned optimizers: one safetensors file each, weights and card together.

Cards and files need no JAX; it is imported when `load`, `publish` or `Published` is first asked
for.
"""

from typing import TYPE_CHECKING, Any

from laconic.zoo.card import Card, to_markdown
from laconic.zoo.exchange import pull, push
from laconic.zoo.file import cards, export, faults, published

if TYPE_CHECKING:
    from laconic.zoo.optimizer import Published, load, publish

__all__ = [
    "Card",
    "Published",
    "cards",
    "export",
    "faults",
    "load",
    "publish",
    "published",
    "pull",
    "push",
    "to_markdown",
]


def __getattr__(name: str) -> Any:
    if name not in ("Published", "load", "publish"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from laconic.zoo import optimizer

    return getattr(optimizer, name)
