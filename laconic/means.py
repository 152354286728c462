"""How the messages of K workers become one: the weighted mean, and means that withstand attackers.

A robust mean counts every worker that is present once. A weight is its sender's own claim, so it
only says who is there; a message that is not finite counts as absent. Of statistics beside Δ the
robust means treat each number by itself, or take those of the workers they chose; of whole numbers
they take the lower median.

Legend: K workers, n of them here; a rank is a worker's place in the order of one number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from laconic.errors import LaconicError, unknown

Tree = Any
UNROLLED = 32  # workers up to which a sum over them is written out


# --- the weighted mean ----------------------------------------------------------------------------


def weighted_mean(tree: Tree, weights_K: jax.Array) -> Tree:
    """Σ w_k x_k / Σ w_k over the first axis, 0 if no weight is positive; see `weighted_sum`."""
    shares_K = weights_K / positive(jnp.sum(weights_K))
    return jax.tree.map(partial(weighted_sum, shares_K=shares_K), tree)


def positive(total: jax.Array) -> jax.Array:
    """A sum of weights that is safe to divide by."""
    return jnp.where(total > 0, total, 1.0)


def weighted_sum(x_K: jax.Array, shares_K: jax.Array) -> jax.Array:
    """Σ_k s_k x_k, where a share of 0 drops even NaN; of integers and flags the largest."""
    if not jnp.issubdtype(x_K.dtype, jnp.floating):
        here = jnp.broadcast_to(along(shares_K > 0, x_K), x_K.shape)
        return jnp.max(x_K, axis=0, where=here, initial=_lowest(x_K.dtype))

    wide = _wide(x_K.dtype)
    shares_K = shares_K.astype(wide)

    def part(k: int | jax.Array) -> jax.Array:
        return jnp.where(shares_K[k] > 0, x_K[k].astype(wide) * shares_K[k], 0)

    # Written out, the sum is one pass over memory; a reduction is 40 times slower on CPUs.
    if x_K.shape[0] > UNROLLED:
        start = jnp.zeros_like(x_K[0], wide)
        total = jax.lax.fori_loop(0, x_K.shape[0], lambda k, total: total + part(k), start)
    else:
        total = sum(map(part, range(1, x_K.shape[0])), part(0))
    return total.astype(x_K.dtype)


def _lowest(dtype: Any) -> Any:
    return False if dtype == jnp.dtype(bool) else jnp.iinfo(dtype).min


def _wide(dtype: Any) -> Any:
    """In bfloat16 three thirds would be more than one."""
    return jnp.float32 if jnp.dtype(dtype).itemsize < 4 else dtype


def nothing_of(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """What `plus_share` begins with for arrays of this kind."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.zeros(shape, _wide(dtype))
    return jnp.full(shape, _lowest(dtype), dtype)


def plus_share(total: jax.Array, x: jax.Array, share: jax.Array) -> jax.Array:
    """`weighted_sum`, one worker after the other: a sum so far and s x of the next."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.where(share > 0, jnp.maximum(total, x), total)
    return total + jnp.where(share > 0, x.astype(total.dtype) * share.astype(total.dtype), 0)


def along(x_K: jax.Array, like_K: jax.Array) -> jax.Array:
    """x_K with axes of length 1 behind it, to go with an array [K, …]."""
    return x_K.reshape(-1, *[1] * (like_K.ndim - 1))


# --- robust means ---------------------------------------------------------------------------------


class Averaged(NamedTuple):
    """Δ and the statistics beside it, of one worker each or combined."""

    delta: Tree
    extra: Tree


# The second argument says who is here [K]; numbers of workers that are not are 0.
Rule = Callable[[Averaged, jax.Array], Averaged]
Within = Callable[[float, Averaged, jax.Array], Averaged]


@dataclass(frozen=True)
class RobustMean:
    """A mean of messages that some attackers among the workers cannot move far.

    `parse_aggregate` makes one from text. It needs every worker's message, so nothing can be summed
    on the way.

    Args:
        name: its words, as `parse_aggregate` takes them.
        rule: (messages with leaves [K, …], who is here [K]) → the combined message.
        least: the workers it needs at least to keep its promise.

    Example:
        >>> import jax.numpy as jnp
        >>> from laconic import parse_aggregate
        >>> median = parse_aggregate("median")
        >>> deltas = {"w": jnp.array([[1.0], [2.0], [1e9]])}
        >>> median.combine(deltas, (), jnp.ones(3))[0]["w"].tolist()
        [2.0]
    """

    name: str
    rule: Rule
    least: int = 1

    def combine(
        self, deltas: Tree, extra: Tree, weights_K: jax.Array
    ) -> tuple[Tree, Tree, jax.Array]:
        """The combined Δ and statistics, and the weights of the workers that counted, others 0."""
        here_K = (weights_K > 0) & _finite((deltas, extra), len(weights_K))
        floats, treedef = jax.tree.flatten(extra)
        counted = [_is_float(x) for x in floats]
        messages = Averaged(deltas, [x for x, f in zip(floats, counted, strict=True) if f])
        clean = jax.tree.map(lambda x: jnp.where(along(here_K, x), x, jnp.zeros_like(x)), messages)
        delta, found = self.rule(clean, here_K)
        rest = iter(found)
        kept = [
            next(rest) if f else _middle(x, here_K) for x, f in zip(floats, counted, strict=True)
        ]
        return delta, jax.tree.unflatten(treedef, kept), jnp.where(here_K, weights_K, 0.0)

    def squares(self, squares: Tree, weights_K: jax.Array) -> Tree:
        """Workers' squared norms, leaves [K], each replaced by the lower median of those here."""
        return jax.tree.map(lambda x: jnp.broadcast_to(_middle(x, weights_K > 0), x.shape), squares)


def _ranked(tree: Tree, here_K: jax.Array, low: jax.Array, high: jax.Array) -> Tree:
    """The mean of the ranks from `low` to `high`, the latter left out, of each number by itself."""
    ranks_K = jnp.arange(len(here_K))
    inside_K = (ranks_K >= low) & (ranks_K < high) & jnp.any(here_K)
    shares_K = inside_K.astype(jnp.float32) / jnp.maximum(high - low, 1).astype(jnp.float32)

    def one(x_K: jax.Array) -> jax.Array:
        ordered = jnp.sort(jnp.where(along(here_K, x_K), x_K, jnp.inf), axis=0)
        return weighted_sum(ordered, shares_K)

    return jax.tree.map(one, tree)


def _median(messages: Tree, here_K: jax.Array) -> Tree:
    count = jnp.sum(here_K)
    return _ranked(messages, here_K, jnp.maximum(count - 1, 0) // 2, count // 2 + 1)


def _trimmed(share: Fraction, messages: Averaged, here_K: jax.Array) -> Averaged:
    """Without the ⌈share·n⌉ largest and as many smallest, but for one or two numbers at least."""
    cuts = [min(math.ceil(share * n), max(n - 1, 0) // 2) for n in range(len(here_K) + 1)]
    count = jnp.sum(here_K)
    cut = jnp.asarray(cuts)[count]
    return _ranked(messages, here_K, cut, count - cut)


def _krum(attackers: int, several: bool, messages: Averaged, here_K: jax.Array) -> Averaged:
    """The message nearest to its n − f − 2 nearest others, or the mean of the n − f such ones."""
    count = jnp.sum(here_K)
    near = jnp.clip(count - attackers - 2, 1, None)
    distances = jnp.sort(_distances(messages.delta, here_K), axis=1)
    counted = jnp.arange(len(here_K))[None] < near
    score_K = jnp.sum(jnp.where(counted, distances, 0), axis=1)
    # An overflow is far away, but not as far as who is absent.
    score_K = jnp.where(here_K, jnp.minimum(score_K, jnp.finfo(jnp.float32).max), jnp.inf)
    many = jnp.maximum(count - attackers, 1) if several else jnp.int32(1)
    last = jnp.sort(score_K)[many - 1]
    sure_K = (here_K & (score_K < last)).astype(jnp.float32)
    tied_K = (here_K & (score_K == last)).astype(jnp.float32)
    many = many.astype(jnp.float32)
    rest = (many - jnp.sum(sure_K)) / positive(jnp.sum(tied_K))
    shares_K = (sure_K + tied_K * rest) / many
    return jax.tree.map(partial(weighted_sum, shares_K=shares_K), messages)


def _distances(deltas: Tree, here_K: jax.Array) -> jax.Array:
    """Squared distances [K, K] between messages; infinite to oneself and to who is not here."""

    def row(k: jax.Array) -> jax.Array:
        apart = jax.tree.map(lambda x: _squares(x - x[k][None]), deltas)
        others_K = here_K & (jnp.arange(len(here_K)) != k)
        return jnp.where(others_K, jax.tree.reduce(jnp.add, apart), jnp.inf)

    return jax.lax.map(row, jnp.arange(len(here_K)))


def _clipped(limit: float, messages: Averaged, here_K: jax.Array) -> Averaged:
    """Each Δ at most `limit` times as long as the lower median one, then the mean."""
    delta = _mean_within(limit, messages.delta, here_K)
    return Averaged(delta, _median(messages.extra, here_K))


def _centred(limit: float, messages: Averaged, here_K: jax.Array) -> Averaged:
    """The same of the differences from the median, which is added again."""
    middle = _median(messages, here_K)
    apart = jax.tree.map(lambda x, m: x - m[None], messages.delta, middle.delta)
    mean = _mean_within(limit, apart, here_K)
    return Averaged(jax.tree.map(jnp.add, middle.delta, mean), middle.extra)


def _mean_within(limit: float, tree: Tree, here_K: jax.Array) -> Tree:
    norms_K = jnp.sqrt(jax.tree.reduce(jnp.add, jax.tree.map(_squares, tree)))
    radius = limit * _middle(norms_K, here_K)
    factor_K = jnp.where(norms_K > radius, radius / positive(norms_K), 1.0)
    shares_K = jnp.where(here_K, factor_K, 0.0) / positive(jnp.sum(here_K).astype(jnp.float32))
    return jax.tree.map(partial(weighted_sum, shares_K=shares_K), tree)


def _middle(x_K: jax.Array, here_K: jax.Array) -> jax.Array:
    """The lower median of each number; 0 if nobody is here."""
    if x_K.dtype == bool:
        return _middle(x_K.astype(jnp.int8), here_K).astype(bool)
    top = jnp.inf if _is_float(x_K) else jnp.iinfo(x_K.dtype).max
    ordered = jnp.sort(jnp.where(along(here_K, x_K), x_K, jnp.asarray(top, x_K.dtype)), axis=0)
    found = ordered[jnp.maximum(jnp.sum(here_K) - 1, 0) // 2]
    return jnp.where(jnp.any(here_K), found, jnp.zeros_like(found))


def _squares(x_K: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(x_K.astype(jnp.float32)), axis=range(1, x_K.ndim))


def _finite(tree: Tree, K: int) -> jax.Array:
    """Whether all floats of a worker are finite [K]."""
    floats = [x for x in jax.tree.leaves(tree) if _is_float(x)]
    flags = [jnp.all(jnp.isfinite(x), axis=range(1, x.ndim)) for x in floats]
    return jnp.all(jnp.stack([jnp.ones(K, bool), *flags]), axis=0)


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


# --- by name --------------------------------------------------------------------------------------

MEAN = "mean"


class Entry(NamedTuple):
    """A line of the registry: what stands after the colon, what it does, and how it is made."""

    usage: str
    summary: str
    make: Callable[[str], tuple[Rule, int]]


def _number(word: str, holds: Callable[[Fraction], bool], what: str) -> Fraction:
    text = word.partition(":")[2]
    try:
        found = Fraction(text)
    except (ValueError, ZeroDivisionError):
        found = None
    if found is None or not holds(found):
        raise LaconicError(f"{word!r} needs {what}.")
    return found


def _make_trimmed(word: str) -> tuple[Rule, int]:
    what = "the share to leave out at each end, at least 0 and below 0.5, as in 'trimmed:0.2'"
    return partial(_trimmed, _number(word, lambda x: 0 <= 2 * x < 1, what)), 1


def _make_krum(several: bool, word: str) -> tuple[Rule, int]:
    name, _, text = word.partition(":")
    what = f"how many attackers it is for, as in '{name}:f=1'"
    if text.partition("=")[0] != "f":
        raise LaconicError(f"{word!r} needs {what}.")
    bare = f"{name}:{text.partition('=')[2]}"
    attackers = int(_number(bare, lambda x: x >= 0 and x.denominator == 1, what))
    return partial(_krum, attackers, several), 2 * attackers + 3


def _make_clip(rule: Within, word: str) -> tuple[Rule, int]:
    name = word.partition(":")[0]
    what = f"how many times the median a norm may be, above 0, as in '{name}:1'"
    return partial(rule, float(_number(word, lambda x: x > 0, what))), 1


def _make_median(word: str) -> tuple[Rule, int]:
    if word != "median":
        raise LaconicError(f"{word!r}: the median takes no number; write 'median'.")
    return _median, 1


ROBUST: dict[str, Entry] = {
    # Yin et al. (2018), both
    "median": Entry("median", "the median of each number by itself", _make_median),
    "trimmed": Entry(
        "trimmed:F",
        "the mean of each number without the share F of largest and of smallest ones",
        _make_trimmed,
    ),
    # Blanchard et al. (2017), both
    "krum": Entry(
        "krum:f=N",
        "the one message that is nearest to most others, against N attackers",
        partial(_make_krum, False),
    ),
    "multi-krum": Entry(
        "multi-krum:f=N",
        "the mean of the messages that are nearest to most others, all but N",
        partial(_make_krum, True),
    ),
    "clip": Entry(
        "clip:C",
        "the mean of the deltas, none longer than C times the median one",
        partial(_make_clip, _clipped),
    ),
    # Karimireddy, He and Jaggi (2021), from the median on instead of the round before
    "centred-clip": Entry(
        "centred-clip:C",
        "the median plus the mean difference from it, none longer than C times the median one",
        partial(_make_clip, _centred),
    ),
}
"""Robust means by name; adding one is a function and a line.

>>> list(ROBUST)
['median', 'trimmed', 'krum', 'multi-krum', 'clip', 'centred-clip']
"""


def parse_aggregate(spec: str) -> RobustMean | None:
    """A robust mean by name; None for "mean", the weighted mean.

    Args:
        spec: "mean", "median", "trimmed:0.2", "krum:f=1", "multi-krum:f=1", "clip:1" or
            "centred-clip:1", with numbers of your own.

    Returns:
        A `RobustMean`, or None.

    Example:
        >>> from laconic import parse_aggregate
        >>> parse_aggregate("krum:f=1").least
        5
    """
    if spec == MEAN:
        return None
    name = spec.partition(":")[0]
    if name == MEAN:
        raise LaconicError(f"{spec!r}: the mean takes no number; write {MEAN!r}.")
    if name not in ROBUST:
        raise unknown("robust mean", name, [MEAN, *(entry.usage for entry in ROBUST.values())])
    return RobustMean(spec, *ROBUST[name].make(spec))


def name_of(aggregate: RobustMean | None) -> str:
    """Its words, as `parse_aggregate` takes them."""
    return MEAN if aggregate is None else aggregate.name
