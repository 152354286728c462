"""A population of clients in numbers, as flags and records hold it. Light: no JAX is imported."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from laconic.errors import LaconicError

CLIENTS = 400  # of a population that does not say


@dataclass(frozen=True)
class Federated:
    """A population of clients with data of their own, of which every round samples K.

    With all defaults there is no population.

    Example::

        Federated(clients=400, alpha=0.1, epochs=2)
    """

    clients: int = 0
    """How many clients there are. 0: no population, or 400 if another federated option is set."""
    alpha: float | None = None
    """Dirichlet α of the clients' class mixes: 0.1 differs much, 100 hardly. Left out, data is
    dealt out at random."""
    epochs: int = 1
    """E, local epochs of a sampled client. They decide H = E · samples ÷ batch, in place of
    local_steps."""
    spread: float = 0.0
    """Standard deviation of the logarithm of clients' sizes. 0: all have as many samples."""
    dropout: float = 0.0
    """The probability that a sampled client does not answer."""
    least_work: float = 1.0
    """Sampled clients do a share of their steps between this and 1, drawn uniformly. 1: all of
    them."""
    weighting: Literal["samples", "uniform", "fednova"] = "samples"
    """How clients count in the mean: by samples, all the same, or by samples with each delta
    divided by its steps and the mean multiplied by the mean number of them (FedNova)."""
    partition: Literal["drawn", "natural"] = "drawn"
    """natural: the clients that the data itself has, such as the speakers of lm-speakers."""

    def __post_init__(self) -> None:
        if self.alpha is not None and not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise LaconicError(
                f"federated.alpha must be positive and finite, got {self.alpha}: 0.1 makes clients "
                "differ much, 100 hardly; leave it out to deal the data at random."
            )
        if self.clients < 0 or self.epochs < 1:
            raise LaconicError(
                f"a population needs a positive number of clients and epochs, got {self.clients} "
                f"and {self.epochs}."
            )
        if not (self.spread >= 0 and math.isfinite(self.spread)):
            raise LaconicError(
                f"federated.spread must be finite and not negative, got {self.spread}."
            )
        if not 0 <= self.dropout < 1:
            raise LaconicError(f"federated.dropout is a probability below 1, got {self.dropout}.")
        if not 0 < self.least_work <= 1:
            raise LaconicError(
                "federated.least_work is a share of the steps, above 0 and up to 1; "
                f"{self.least_work}."
            )
        if self.partition not in ("drawn", "natural"):
            raise LaconicError(f"federated.partition is drawn or natural, got {self.partition!r}.")
        if self.partition == "natural" and (self.clients or self.alpha or self.spread):
            raise LaconicError(
                "with federated.partition natural the data says which clients there are and what "
                "each has: leave federated.clients, alpha and spread out."
            )
        if self.weighting not in ("samples", "uniform", "fednova"):
            raise LaconicError(
                f"federated.weighting is samples, uniform or fednova, got {self.weighting!r}."
            )

    @property
    def active(self) -> bool:
        """Whether there is a population at all."""
        return self != Federated()

    @property
    def population(self) -> int:
        """How many clients there are."""
        return self.clients or CLIENTS

    def words(self) -> str:
        """What differs from no population, as in `clients=400,alpha=0.1`."""
        if not self.active:
            return ""
        said = [f"clients={self.population}"] if self.partition == "drawn" else []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("clients", "dropout") or value == each.default:
                continue
            text = f"{value:g}" if isinstance(value, float) else value
            said.append(f"{each.name}={text}")
        return ",".join(said)


# The types of the options' values; only α, a number, is None by default.
KINDS: dict[str, type] = {
    f.name: float if f.default is None else type(f.default) for f in fields(Federated)
}


def read_federated(values: dict[str, Any], source: str) -> dict[str, Any]:
    """A record's settings with its population as `Federated`; old records have none."""
    found = values.get("federated", {})
    if not isinstance(found, dict):
        raise LaconicError(f"the population in {source} is no table of settings; start anew.")
    wrong = [name for name, x in found.items() if name not in KINDS or not _of_kind(name, x)]
    if wrong:
        raise LaconicError(
            f"{wrong[0]!r} of the population in {source} is not known to this version; start anew."
        )
    return {**values, "federated": Federated(**found)}


def _of_kind(name: str, value: Any) -> bool:
    return name == "alpha" if value is None else isinstance(value, KINDS[name] | int)


def in_words(config: dict[str, Any]) -> str:
    """The population of a record's settings, to follow K, H and B on a line; "" without one."""
    options: Federated = read_federated(config, "the record")["federated"]
    if not options.active:
        return ""
    if options.partition == "natural":
        return ", of the data's own clients"
    mix = "dealt at random" if options.alpha is None else f"Dirichlet({options.alpha:g})"
    return f", of {options.population} clients, {mix}"
