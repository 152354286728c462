"""What a learned optimizer is made of, apart from any framework: its architectures, its constants,
φ's shapes.

JAX and PyTorch both take their step from what stands here, and nothing here imports either.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laconic.errors import LaconicError, unknown

LAMBDA = 0.001
LEAST_SHARE = (
    1 / 8
)  # of a whole step, for the widest tensors: an embedding's many rows are no inputs of one sum
TIME_SHIFT = {"shifted": 1.0, "paper": 0.0}
TIMESCALES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
MOMENTUM = (0.9, 0.99, 0.999)
SECOND_MOMENT = (0.999,)
ADAFACTOR = (0.9, 0.99, 0.999)
DECAYS = MOMENTUM + SECOND_MOMENT + ADAFACTOR
ARCHITECTURES = {
    "lopt-a": "mean delta, parameter, accumulators and time",
    "lagg-a": "every worker's delta, parameter, accumulators and time",
    "lopt": "mean delta, parameter and time only",
    "lagg": "every worker's delta, parameter and time only",
}
LAYOUTS = {
    "torch": "weights as torch.nn keeps them: Linear [out, in], convolutions [out, in, …]",
    "as-is": "weights that are [in, out] or […, in, out] already",
}
FILLS = {"mean": "the mean of the workers that are there", "zero": "zeros"}


@dataclass(frozen=True)
class Architecture:
    """Which of the four it is, and its sizes.

    architecture: one of `ARCHITECTURES`
    workers:      K for lagg-a and lagg, None for lopt-a and lopt
    hidden:       width of the two hidden layers
    time:         "shifted" is tanh(t/x − 1), "paper" is tanh(t/x)
    output_scale: shrinks the last layer's first weights; near 0 an untrained φ does almost nothing
    widest:       the inputs of a tensor up to which it takes whole steps (0: always, as in the paper); see `share`
    deepest:      the matrices of a model up to which it takes whole steps (0: always, as in the paper); see `share`
    """

    architecture: str = "lopt-a"
    workers: int | None = None
    hidden: int = 32
    time: str = "shifted"
    output_scale: float = 1.0
    widest: int = 0
    deepest: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise unknown("architecture", self.architecture, ARCHITECTURES)
        if self.time not in TIME_SHIFT:
            raise unknown("time features", self.time, TIME_SHIFT)
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
        return self.deltas + (38 if self.accumulates else 12)

    @property
    def weights(self) -> int:
        """|φ|, the MLP alone: 2402 for LOpt-A."""
        F, N = self.inputs, self.hidden
        return F * N + N + N * N + N + N * 2 + 2

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of φ: weights and biases of three layers, and the offsets of seven decays if
        it has any."""
        sizes = (self.inputs, self.hidden, self.hidden, 2)
        found: dict[str, tuple[int, ...]] = {"decay": (7,)} if self.accumulates else {}
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
        want, have = self.shapes, {name: tuple(x.shape) for name, x in theta.items()}
        if want != have:
            wrong = sorted(n for n in {*want, *have} if want.get(n) != have.get(n))
            detail = ", ".join(
                f"{n} is {have.get(n, 'missing')}, not {want.get(n, 'known')}" for n in wrong
            )
            raise LaconicError(
                f"these weights are not of {self.architecture} with {self.deltas} deltas: {detail}."
            )


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
