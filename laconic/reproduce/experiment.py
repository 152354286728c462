"""An experiment as data: its parts, what the paper says, and what is left out."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from laconic.errors import unknown
from laconic.reproduce.part import Part
from laconic.reproduce.scale import SCALES

if TYPE_CHECKING:
    from laconic.reproduce.panel import Learned

P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Across:
    """An axes with curves of several panels: all their methods, or those of some labels.

    view: one of `curves.VIEWS`, or "bars": the metric that the paper has numbers of
    """

    title: str
    view: str
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Listing:
    """A table of the paper's that nothing here is run for."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    parts:    what is carried out and shown; parts of one name share one run
    says:     what the paper states of it in words
    leaves_out: what of it is not covered here, and where values had to be chosen
    averaged: the panels whose numbers are averaged · across: axes over several panels
    """

    name: str
    title: str
    what: str
    parts: tuple[Part, ...] = ()
    says: tuple[str, ...] = ()
    leaves_out: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()
    across: tuple[Across, ...] = ()
    listings: tuple[Listing, ...] = ()

    def of(self, kind: type[P]) -> tuple[P, ...]:
        """Its parts of one kind."""
        return tuple(part for part in self.parts if isinstance(part, kind))

    def kinds(self) -> list[type[Part]]:
        """The kinds of its parts, in the order in which they come."""
        return list(dict.fromkeys(type(part) for part in self.parts))

    def names(self) -> list[str]:
        """The names of what can be carried out by itself."""
        return list(dict.fromkeys(part.name for part in self.parts))

    def optimizers(self) -> "dict[str, Learned]":
        """The learned optimizers that its parts need, each once."""
        return {name: x for part in self.parts for name, x in part.optimizers().items()}

    def tasks(self) -> list[str]:
        """The tasks it trains on, by name alone, each once."""
        specs = [task for part in self.parts for task in part.tasks()]
        specs += [x.task for learned in self.optimizers().values() for x in learned.config.inners()]
        return list(dict.fromkeys(spec.partition(":")[0] for spec in specs))

    def check(self, names: Iterable[str]) -> None:
        """Refuse the name of a part that the experiment does not have."""
        for name in names:
            if name not in self.names():
                raise unknown(f"panel of {self.name}", name, self.names())

    def narrowed(self, names: Collection[str]) -> "Experiment":
        """The experiment with these parts only; a mean over panels needs all of them."""
        return replace(
            self,
            parts=tuple(part for part in self.parts if part.name in names),
            averaged=self.averaged if set(self.averaged) <= set(names) else (),
        )

    def at_scale(self, scale: str) -> "Experiment":
        """The experiment at "full" (as it is) or "smoke"."""
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        if scale == "full":
            return self
        return replace(self, parts=tuple(part.smoke() for part in self.parts))

    def needs(self) -> str:
        """What the full scale takes, in counts."""
        counts = [text for kind in self.kinds() for text in kind.needs(self)]
        return f"{'; '.join(counts)}; tasks {', '.join(self.tasks())}"
