"""Optimizers of a comparison, as words or as ready objects, and what records say of the objects."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import optax

from laconic.compress import Compressor
from laconic.errors import LaconicError
from laconic.local import LocalOptimizer
from laconic.means import RobustMean
from laconic.method import Method, local_method
from laconic.methods import parse_method
from laconic.outer import OuterOptimizer, from_optax
from laconic.zoo import Published

if TYPE_CHECKING:
    Ready = Method | OuterOptimizer | optax.GradientTransformation | Published
    Optimizer = str | Ready | tuple[str, Ready]
else:
    Optimizer = str  # what a flag and a record hold

LOCAL = LocalOptimizer("sgd", 0.1)  # the workers under an object that brings none
TAKEN = (
    "a word such as 'slowmo:gamma=0.3', a Method, an OuterOptimizer, an optax transformation or a "
    "loaded optimizer, or (label, one of these objects)"
)


def is_ready(given: Any) -> bool:
    """Whether an optimizer is an object instead of a word."""
    return not isinstance(given, str)


def methods_of(
    optimizers: Sequence[Any],
    K: int,
    compressor: Compressor,
    aggregate: RobustMean | None = None,
) -> list[Method]:
    """The methods that words and objects stand for, in order."""
    if isinstance(optimizers, str) or type(optimizers) not in (tuple, list):
        raise LaconicError(f"optimizers is a tuple; each is {TAKEN}.")
    return [
        _ready_method(given, K, compressor, aggregate, place)
        if is_ready(given)
        else parse_method(given, K, compressor, aggregate=aggregate)
        for place, given in enumerate(optimizers, start=1)
    ]


def _ready_method(
    given: Any, K: int, compressor: Compressor, aggregate: RobustMean | None, place: int
) -> Method:
    label = f"own-{place}"
    named = type(given) is tuple and len(given) == 2 and isinstance(given[0], str) and given[0]
    if named:
        label, given = given
    if isinstance(given, Method):
        return replace(given, label=label) if named else given
    if isinstance(given, Published):
        given.check_workers(K)
        title = label if named else given.name
        method = local_method(title, given.recommended_local, given.outer(), compressor, aggregate)
        return replace(method, name=given.name, optimizer_sha256=given.sha256)
    if isinstance(given, optax.GradientTransformation):
        given = from_optax(given)
    if isinstance(given, OuterOptimizer):
        return local_method(label, LOCAL, given, compressor, aggregate)
    raise LaconicError(f"optimizer {place} is of type {type(given).__name__}; each is {TAKEN}.")


def spoken(optimizers: Sequence[Any], methods: Sequence[Method]) -> tuple[str, ...]:
    """The optimizers as a record holds them: words, and the labels of objects."""
    pairs = zip(optimizers, methods, strict=True)
    return tuple(method.label if is_ready(given) else given for given, method in pairs)


def about_ready(optimizers: Sequence[Any], methods: Sequence[Method]) -> dict[str, str]:
    """What a record can say of the optimizers that are objects, by label."""
    found = {}
    for given, method in zip(optimizers, methods, strict=True):
        if is_ready(given):
            one = given[1] if type(given) is tuple else given
            under = isinstance(one, OuterOptimizer | optax.GradientTransformation)
            workers = f" over SGD workers at rate {LOCAL.learning_rate:g}" if under else ""
            found[method.label] = f"{type(one).__name__} from Python{workers}"
    return found
