"""Federated learning: a population of clients with data of their own, of which each round samples a
few."""

from laconic.federated.clients import proximal_client, scaffold_client
from laconic.federated.population import (
    Federated,
    Plan,
    Population,
    draw_population,
    plan_for,
    population_of,
    settle,
)

__all__ = [
    "Federated",
    "Plan",
    "Population",
    "draw_population",
    "plan_for",
    "population_of",
    "proximal_client",
    "scaffold_client",
    "settle",
]
