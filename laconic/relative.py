"""What `lopt-r` is made of, in any framework: its inputs, constants and shapes of φ.

JAX and PyTorch both derive their steps from this file, and it imports neither. The step itself is
written out in `outer/relative.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from laconic.architecture import RELATIVE, check_shapes
from laconic.errors import LaconicError

DECAYS = (0.5, 0.9, 0.99)  # of the momenta b_β ← β·b_β + Δ
FAST = DECAYS.index(0.9)  # the momentum of the Adam-like direction
SQUARE_DECAY = 0.99  # of v ← 0.99·v + 0.01·Δ², for each parameter
SCALE_DECAY = 0.95  # of q ← 0.95·q + 0.05·mean(Δ²), for the tensor
TIMESCALES = (3, 10, 30, 100, 300, 1000)
GAIN = 1.5  # the step's length is between e^−1.5 and e^1.5 of Nesterov's
SWING = 1.2  # momentum is between −0.2 and 2.2 of Nesterov's, so that o need not be −1 for none
SHORT = 0.5  # the largest factor of b_0.5
LONG = 0.1  # the largest factor of b_0.99
ADAM = 3.0  # the largest factor of the Adam-like direction
GATES = (1.0, 0.5, 3.0, 1.0, 3.0)  # the largest factors of the directions per parameter
GATE_INPUTS = 5
GATE_LIMIT = 3.0  # of what a gate sees
FLOOR = 0.1  # of s, in the denominator of the Adam-like direction
LIMIT = 5.0  # of the logarithms of ratios
PARAMETER_UNIT = 5.0  # log(s / rms p) is divided by it
PARAMETER_LIMIT = 3.0  # and then kept within this
COUNT_UNIT = 4.0  # log K and log H are divided by it
SIZE_UNIT = 10.0  # the logarithm of the tensor's size is divided by it
TINY = 1e-37  # below roots, against 0/0; squares as small are 0 in float32 anyway
INPUTS = (
    *(f"cosine of delta and momentum {beta}" for beta in DECAYS),
    *(f"log rms of momentum {beta} over s" for beta in DECAYS),
    "log rms of delta over s",
    "log s over rms of parameters",
    "log mean size over rms of delta",
    "log agreement",
    "agreement known",
    "log workers",
    "workers known",
    "log local steps",
    "local steps known",
    "log size",
    "scalar or vector",
    "matrix",
    "other",
    *(f"time {scale}" for scale in TIMESCALES),
    "share of training done",
    "length of training known",
)
OUTPUTS = 5


@dataclass(frozen=True)
class RelativeArchitecture:
    """The sizes of an `lopt-r`, and the Nesterov step that it is at φ = 0.

    rate:     the nominal rate ρ
    momentum: the nominal momentum μ, one of `DECAYS`
    hidden:   width of the hidden layer
    gates:    width of the hidden layer of the gates per parameter; 0: none
    inputs:   the names of its inputs, all of `INPUTS` or some of them in that order
    """

    architecture: ClassVar[str] = RELATIVE
    workers: ClassVar[None] = None
    gathers: ClassVar[bool] = False

    rate: float = 0.8
    momentum: float = 0.9
    hidden: int = 16
    gates: int = 0
    inputs: tuple[str, ...] = INPUTS

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise LaconicError(f"the nominal rate must be positive and finite, got {self.rate}.")
        if self.momentum not in DECAYS:
            choices = ", ".join(map(str, DECAYS))
            raise LaconicError(
                f"the nominal momentum must be one of {choices}, got {self.momentum}."
            )
        if self.hidden < 1:
            raise LaconicError(f"the hidden layer has at least one unit, got {self.hidden}.")
        if not self.inputs or tuple(x for x in INPUTS if x in self.inputs) != tuple(self.inputs):
            raise LaconicError(
                f"these weights are for {len(self.inputs)} inputs that are not among the "
                f"{len(INPUTS)} of this laconic's lopt-r, in their "
                "order: install the laconic that wrote them."
            )

    @property
    def columns(self) -> tuple[int, ...]:
        """Where its inputs are among `INPUTS`."""
        return tuple(map(INPUTS.index, self.inputs))

    @property
    def weights(self) -> int:
        """|φ|: 533 with all inputs and 16 hidden units."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of φ: weights and biases of two layers."""
        head = {
            "w0": (len(self.inputs), self.hidden),
            "b0": (self.hidden,),
            "w1": (self.hidden, OUTPUTS),
            "b1": (OUTPUTS,),
        }
        if not self.gates:
            return head
        return head | {
            "g0": (GATE_INPUTS + self.hidden, self.gates),
            "c0": (self.gates,),
            "g1": (self.gates, len(GATES)),
            "c1": (len(GATES),),
        }

    def check(self, theta: Mapping[str, Any]) -> None:
        """Refuse φ of another architecture; only names and shapes are looked at."""
        check_shapes(self.architecture, self.shapes, theta)


def kind_of(axes: int) -> tuple[float, float, float]:
    """Whether a tensor of so many axes is a scalar or vector, a matrix, or something else."""
    return float(axes < 2), float(axes == 2), float(axes > 2)


def check_told(**told: Any) -> None:
    """Refuse counts that cannot be; traced numbers and None (unknown) pass."""
    for name, value in told.items():
        if isinstance(value, int | float) and not 1 <= value < float("inf"):
            raise LaconicError(f"{name} must be at least 1, or left out if unknown, got {value}.")
