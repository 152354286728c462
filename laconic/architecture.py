"""What a learned optimizer is made of, in any framework: its features, constants and shapes of φ.

JAX and PyTorch both derive their steps from this file, and it imports neither. To add a feature,
add a line to `FEATURES` and its formula to `FORMULAS` in `outer/features.py` (every JAX path, GPU
kernels included) and in `torch/features.py`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from laconic.errors import LaconicError, unknown

LAMBDA = 0.001
# Of a whole step, for the widest tensors: the many rows of an embedding are not inputs of one sum.
LEAST_SHARE = 1 / 8
TIME_SHIFT = {"shifted": 1.0, "paper": 0.0}
TIMESCALES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
MOMENTUM = (0.9, 0.99, 0.999)
SECOND_MOMENT = (0.999,)
ADAFACTOR = (0.9, 0.99, 0.999)
DECAYS = MOMENTUM + SECOND_MOMENT + ADAFACTOR
# Which of the decays are those of the momenta, of the second moment, and of rows and columns.
OF_M = slice(0, len(MOMENTUM))
OF_V = len(MOMENTUM)
OF_FACTORED = slice(len(MOMENTUM) + len(SECOND_MOMENT), len(DECAYS))
SQUARE_EPSILON = 1e-30  # added to Δ² before means over rows and columns
MEAN_EPSILON = 1e-9  # added to the mean that row accumulators are divided by
LEAST_SQUARE = 1e-9  # below the root of a factor
NORMALISER_EPSILON = 1e-5  # added to a feature's mean square below the root of its normaliser
ARCHITECTURES = {
    "lopt-a": "mean delta, parameter, accumulators and time",
    "lagg-a": "every worker's delta, parameter, accumulators and time",
    "lopt": "mean delta, parameter and time only",
    "lagg": "every worker's delta, parameter and time only",
}
RELATIVE = "lopt-r"  # its inputs and sizes are in `relative.py`
LAYOUTS = {
    "torch": "weights as torch.nn keeps them: Linear [out, in], convolutions [out, in, …]",
    "as-is": "weights that are [in, out] or […, in, out] already",
}
ON_NONFINITE = {"skip": "the round changes nothing", "raise": "an error"}
FILLS = {"mean": "the mean of the workers that are there", "zero": "zeros"}


@dataclass(frozen=True)
class Feature:
    """One kind of numbers that the MLP sees of each parameter.

    name:        as in the `FORMULAS` of each framework
    count:       how many numbers; None: one for each delta that the optimizer sees
    along:       "parameter" if they differ between all parameters; "row" or "column" if between
                 rows or columns only (these come in pairs, a row one and a column one of the same
                 formula); "round" if between rounds only (these come last)
    epsilon:     what its formula adds below a root
    accumulated: whether it needs accumulators, which LOpt and LAgg do not keep
    """

    name: str
    count: int | None = 1
    along: str = "parameter"
    epsilon: float = 0.0
    accumulated: bool = True

    @property
    def normalised(self) -> bool:
        """Whether it is divided by its root mean square over the tensor: all but constants are."""
        return self.along != "round"

    def numbers(self, deltas: int) -> int:
        """How many numbers it is in an optimizer that sees so many deltas."""
        return deltas if self.count is None else self.count


FEATURES = (
    Feature("deltas", count=None, accumulated=False),
    Feature("parameter", accumulated=False),
    Feature("m", len(MOMENTUM)),
    Feature("v"),
    Feature("m_rsqrt_v", len(MOMENTUM), epsilon=1e-6),
    Feature("rsqrt_v", epsilon=1e-6),
    Feature("factored_delta", len(ADAFACTOR), epsilon=1e-9),
    Feature("row", len(ADAFACTOR), "row"),
    Feature("col", len(ADAFACTOR), "column"),
    Feature("rsqrt_row", len(ADAFACTOR), "row", epsilon=1e-8),
    Feature("rsqrt_col", len(ADAFACTOR), "column", epsilon=1e-8),
    Feature("factored_m", len(ADAFACTOR), epsilon=1e-6),
    Feature("time", len(TIMESCALES), "round", accumulated=False),
)


def features_along(*along: str, accumulates: bool = True) -> list[Feature]:
    """The features that change along these, in their order in the input vector."""
    return [f for f in FEATURES if f.along in along and (accumulates or not f.accumulated)]


def normalised_features(accumulates: bool = True) -> list[Feature]:
    """The features that are normalised, in their order in the input vector."""
    return features_along("parameter", "row", "column", accumulates=accumulates)


def numbers_in(features: Iterable[Feature], deltas: int) -> int:
    """How many numbers these features are in an optimizer that sees so many deltas."""
    return sum(f.numbers(deltas) for f in features)


def feature_places(deltas: int, accumulates: bool = True) -> dict[str, slice]:
    """Where each feature's numbers are in the input vector, and so its rows of the first layer."""
    found: dict[str, slice] = {}
    begin = 0
    for f in FEATURES:
        if accumulates or not f.accumulated:
            found[f.name] = slice(begin, begin + f.numbers(deltas))
            begin = found[f.name].stop
    return found


def epsilon_of(name: str) -> float:
    """The epsilon of a feature."""
    return next(f.epsilon for f in FEATURES if f.name == name)


Formula = TypeVar("Formula")


def formula_of(feature: Feature, formulas: Mapping[str, Formula], framework: str) -> Formula:
    """A framework's formula of a feature; an error says which framework has none."""
    if feature.name not in formulas:
        raise LaconicError(
            f"{framework} has no formula for the feature {feature.name!r}: add it to FORMULAS."
        )
    return formulas[feature.name]


@dataclass(frozen=True)
class Architecture:
    """Which of the four it is, and its sizes.

    architecture: one of `ARCHITECTURES`
    workers:      K for lagg-a and lagg, None for lopt-a and lopt
    hidden:       width of the two hidden layers
    time:         "shifted" is tanh(t/x − 1), "paper" is tanh(t/x)
    output_scale: shrinks the last layer's first weights; near 0 an untrained φ does almost nothing
    widest:       tensors of more inputs take smaller steps (0: off, as in the paper); see `share`
    deepest:      models of more matrices take smaller steps (0: off, as in the paper); see `share`
    """

    architecture: str = "lopt-a"
    workers: int | None = None
    hidden: int = 32
    time: str = "shifted"
    output_scale: float = 1.0
    widest: int = 0
    deepest: int = 0

    def __post_init__(self) -> None:
        if self.architecture == RELATIVE:
            raise LaconicError(f"{RELATIVE} has sizes of its own: use RelativeOptimizer().")
        if self.architecture not in ARCHITECTURES:
            raise unknown("architecture", self.architecture, ARCHITECTURES)
        if self.time not in TIME_SHIFT:
            raise unknown("time features", self.time, TIME_SHIFT)
        if not math.isfinite(self.output_scale):
            raise LaconicError(f"output_scale must be finite, got {self.output_scale}.")
        if self.widest < 0:
            raise LaconicError(
                f"widest counts a tensor's inputs and cannot be negative, got {self.widest}."
            )
        if self.deepest < 0:
            raise LaconicError(
                f"deepest counts a model's matrices and cannot be negative, got {self.deepest}."
            )
        if self.gathers and (self.workers is None or self.workers < 1):
            raise LaconicError(
                f"{self.architecture} sees every worker's delta and needs workers=K, got "
                f"{self.workers}."
            )
        if not self.gathers and self.workers is not None:
            raise LaconicError(
                f"{self.architecture} sees only the mean delta and serves any K; leave workers out."
            )

    @property
    def gathers(self) -> bool:
        """Whether it sees every worker's delta."""
        return self.architecture.startswith("lagg")

    @property
    def accumulates(self) -> bool:
        """Whether it keeps Ada accumulators."""
        return self.architecture.endswith("-a")

    @property
    def deltas(self) -> int:
        """How many delta features there are."""
        return self.workers if self.workers is not None else 1

    @property
    def inputs(self) -> int:
        """Features per parameter: 39 for LOpt-A, 38 + K for LAgg-A."""
        return self.normalised + numbers_in(features_along("round"), self.deltas)

    @property
    def normalised(self) -> int:
        """How many of the features are normalised; they come first."""
        return numbers_in(normalised_features(self.accumulates), self.deltas)

    @property
    def weights(self) -> int:
        """|φ|, the MLP alone: 2402 for LOpt-A."""
        F, N = self.inputs, self.hidden
        return F * N + N + N * N + N + N * 2 + 2

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of φ: weights and biases of three layers, and offsets of any decays."""
        sizes = (self.inputs, self.hidden, self.hidden, 2)
        found: dict[str, tuple[int, ...]] = {"decay": (len(DECAYS),)} if self.accumulates else {}
        for i in range(3):
            found |= {f"w{i}": (sizes[i], sizes[i + 1]), f"b{i}": (sizes[i + 1],)}
        return found

    def share(self, shape: Sequence[int], matrices: int) -> float:
        """The share of a whole step for a tensor of this shape, outputs last, in a model of so many
        matrices.

        φ sees one tensor at a time, every feature normalised over it, so it cannot see that steps
        of one size add up to more in a sum of more inputs, and over more layers. With `widest`, a
        matrix or kernel of n > widest inputs takes widest/n of a step; with `deepest`, every tensor
        of a model of M > deepest matrices takes deepest/M of that.
        """
        inputs = math.prod(shape[:-1]) if len(shape) > 1 else 0
        wide = max(LEAST_SHARE, self.widest / inputs) if 0 < self.widest < inputs else 1.0
        return wide * (self.deepest / matrices if 0 < self.deepest < matrices else 1.0)

    def check(self, theta: Mapping[str, Any]) -> None:
        """Refuse φ of another architecture; only names and shapes are looked at."""
        check_shapes(f"{self.architecture} with {self.deltas} deltas", self.shapes, theta)


def check_shapes(what: str, want: Mapping[str, tuple[int, ...]], theta: Mapping[str, Any]) -> None:
    """Refuse φ whose names and shapes are not those of `what`."""
    have = {name: tuple(x.shape) for name, x in theta.items()}
    if want != have:
        wrong = sorted(n for n in {*want, *have} if want.get(n) != have.get(n))
        detail = ", ".join(
            f"{n} is {have.get(n, 'missing')}, not {want.get(n, 'known')}" for n in wrong
        )
        raise LaconicError(f"these weights are not of {what}: {detail}.")


def matrices_among(shapes: Iterable[Sequence[int]]) -> int:
    """How many of a model's tensors have two or more axes."""
    return sum(len(shape) > 1 for shape in shapes)


def factored_axes(shape: Sequence[int]) -> tuple[int, int]:
    """(largest, second largest) axis; of equal ones the later counts as the larger."""
    order = sorted(range(len(shape)), key=lambda axis: (shape[axis], axis))
    return order[-1], order[-2]


def axis_order(axes: int, layout: str) -> Sequence[int]:
    """In which order the axes of a tensor in this layout are [in, out] or HWIO."""
    return (*range(2, axes), 1, 0) if layout == "torch" and axes > 1 else range(axes)
