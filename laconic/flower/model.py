"""The model that a strategy trains, as Flower carries it: named arrays.

Statistics such as BatchNorm's running mean are averaged; of whole numbers the largest is taken. All
other arrays are parameters: the outer optimizer gets them in float32 and as [in, out] or HWIO,
whatever the clients' own dtype and layout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from laconic.architecture import LAYOUTS, axis_order
from laconic.errors import LaconicError, unknown

AVERAGED = ("*running_mean", "*running_var", "*num_batches_tracked")
FLOATS = ("float16", "float32", "float64")

Arrays = dict[str, np.ndarray]


class Form(NamedTuple):
    """What an array has to be."""

    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """The forms of all arrays in order, the names of the averaged ones, the others' layout."""

    forms: dict[str, Form]
    averaged: frozenset[str]
    layout: str

    @classmethod
    def of(cls, arrays: Arrays, averaged: Sequence[str], layout: str) -> "Model":
        """The model that these arrays are, with `averaged` as patterns of names."""
        check_form(layout, averaged)
        forms = {name: Form(x.dtype, x.shape) for name, x in arrays.items()}
        kept = {name for name in forms if any(fnmatchcase(name, pattern) for pattern in averaged)}
        kept |= {name for name, form in forms.items() if form.dtype.kind in "iub"}
        floats = {form.dtype.name for form in forms.values() if form.dtype.kind not in "iub"}
        wrong = sorted(floats - set(FLOATS))
        if wrong:
            raise LaconicError(
                f"the model has arrays of {', '.join(wrong)}, which no outer step is defined for: "
                f"keep parameters as {', '.join(FLOATS)} and leave everything else out of the "
                "ArrayRecord."
            )
        if kept == set(forms):
            raise LaconicError(
                f"of {len(forms)} initial arrays none is a parameter, so there is nothing to "
                "train: give the model's weights as floating-point arrays, under names that "
                "`averaged` does not match."
            )
        if not all_finite(arrays):
            raise LaconicError(
                "the initial arrays hold NaN or infinity: no client could start from them."
            )
        return cls(forms, frozenset(kept), layout)

    @property
    def learned(self) -> list[str]:
        """The names of the arrays that the outer optimizer moves."""
        return [name for name in self.forms if name not in self.averaged]

    def params(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """The parameters as the outer optimizer takes them."""
        return {name: self._inputs_first(arrays[name]) for name in self.learned}

    def delta(self, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> Arrays:
        """Δ = W_before − W_after of the parameters, as the outer optimizer takes it."""
        with np.errstate(over="ignore"):  # what overflows is infinite, and the guard refuses that
            return {
                name: self._inputs_first(_wide(before[name]) - _wide(after[name]))
                for name in self.learned
            }

    def moved(self, before: Mapping[str, np.ndarray], updates: Mapping[str, np.ndarray]) -> Arrays:
        """The parameters after the outer optimizer's updates, in their own dtypes and layout."""
        found = {}
        for name in self.learned:
            form = self.forms[name]
            back = np.argsort(axis_order(len(form.shape), self.layout))
            with np.errstate(over="ignore"):
                moved = _wide(before[name]) + np.transpose(updates[name], back)
                found[name] = moved.astype(form.dtype)
        return found

    def _inputs_first(self, x: np.ndarray) -> np.ndarray:
        turned = np.transpose(x, axis_order(x.ndim, self.layout))
        with np.errstate(over="ignore"):
            return np.asarray(turned, np.float32, order="C")


def check_form(layout: str, averaged: Sequence[str]) -> None:
    """Refuse an unknown layout, and a bare string, whose letters would each be a pattern."""
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    if isinstance(averaged, str):
        raise LaconicError(
            f"averaged is a list of patterns of names, got the string {averaged!r}: put it in a "
            "list."
        )


def all_finite(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether no number is NaN or infinite."""
    return all(bool(np.isfinite(x).all()) for x in arrays.values() if x.dtype.kind == "f")


def weighted_mean(trees: Sequence[Mapping[str, np.ndarray]], weights: Sequence[float]) -> Arrays:
    """Σ w x / Σ w of arrays by name, in float64; of whole numbers and flags the largest."""
    total = sum(weights)
    mean = {}
    for name, first in trees[0].items():
        if first.dtype.kind in "iub":
            mean[name] = np.max(np.stack([tree[name] for tree in trees]), axis=0)
            continue
        summed = np.zeros(first.shape)
        for tree, weight in zip(trees, weights, strict=True):
            summed += tree[name] * np.float64(weight / total)
        mean[name] = summed.astype(first.dtype)
    return mean


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype == np.float16 else x
