"""Federated learning: a population of clients with data of their own, of which each round samples a
few."""
