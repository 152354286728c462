"""Which outer optimizer a strategy holds, and how many clients it needs a round."""

import os
from typing import NamedTuple

from laconic.errors import LaconicError
from laconic.methods import definition_of, parse_method
from laconic.outer import OuterOptimizer

FLOWERS_MINIMUM = 2  # of clients to sample, unless told otherwise
# a fraction of nodes that rounds down to nobody, so that the minimum decides how many are sampled
NEXT_TO_NONE = 1e-9


class Chosen(NamedTuple):
    """An outer optimizer, the name it was asked for by, and how many clients Flower is to sample
    for it."""

    label: str
    outer: OuterOptimizer
    fraction: float
    minimum: int


def choose(
    optimizer: str | os.PathLike[str] | OuterOptimizer,
    min_train_nodes: int | None,
    fraction_train: float | None,
) -> Chosen:
    """An outer optimizer as `laconic compare` spells it, from a file, or as it is."""
    label, outer = (
        ("own", optimizer)
        if isinstance(optimizer, OuterOptimizer)
        else _named(optimizer, min_train_nodes)
    )
    K = outer.workers
    if K is None:
        minimum = FLOWERS_MINIMUM if min_train_nodes is None else min_train_nodes
        return Chosen(label, outer, 1.0 if fraction_train is None else fraction_train, minimum)
    if fraction_train is not None:
        raise LaconicError(
            f"{label} samples exactly K = {K} clients a round: leave fraction_train out."
        )
    if min_train_nodes not in (None, K):
        raise LaconicError(
            f"{label} looks at each client's change and was made for K = {K} of them, and "
            "min_train_nodes says "
            f"{min_train_nodes}: leave that out, or take an optimizer of the mean such as "
            "lopt-a-general."
        )
    return Chosen(label, outer, NEXT_TO_NONE, K)


def _named(
    optimizer: str | os.PathLike[str], min_train_nodes: int | None
) -> tuple[str, OuterOptimizer]:
    if not isinstance(optimizer, str | os.PathLike):
        raise LaconicError(
            f"a {type(optimizer).__name__} is no outer optimizer: give a name, a .safetensors file "
            "or an "
            "OuterOptimizer, which laconic.from_optax makes of any optax optimizer."
        )
    spec = os.fspath(optimizer)
    name = spec.partition(":")[0]
    # A published one says its own K, which `choose` compares; an untrained one is made for as many
    # as are sampled.
    found = definition_of(name, "flower").published
    made_for = None if found is None else found.learned.workers
    method = parse_method(spec, made_for or min_train_nodes or FLOWERS_MINIMUM)
    if method.compressor.name != "dense":
        raise LaconicError(
            f"optimizer {spec!r}: Flower's clients send whole arrays; leave compress out."
        )
    return spec, method.outer
