"""The same problem for JAX and for PyTorch: a random φ in a file, weights in both layouts, twenty
rounds of deltas."""

from typing import Any

import numpy as np
import torch

from laconic import zoo
from laconic.torch import LearnedOuter
from tests.outer.cases import Case
from tests.zoo.made import a_card

# In JAX's layout, [in, out] and HWIO. Every rank from 0 to 5, and where axes are equally long the
# two layouts would choose differently: a square matrix, kernels with as many inputs as outputs, and
# inputs as many as the kernel is wide.
SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "vector": (7,),
    "tall": (6, 4),
    "wide": (3, 8),
    "square": (5, 5),
    "row": (1, 6),
    "conv1d": (3, 4, 4),
    "kernel": (3, 3, 4, 6),
    "even": (3, 3, 4, 4),
    "few": (3, 3, 3, 5),
    "conv3d": (2, 3, 2, 3, 3),
    "large": (36, 33),
}


def to_torch(x: Any, lead: int = 0) -> Any:
    """[*lead, …, in, out] → [*lead, out, in, …], as torch.nn keeps it; vectors and scalars as they
    are."""
    n = np.ndim(x) - lead
    if n < 2:
        return np.asarray(x)
    return np.transpose(x, (*range(lead), lead + n - 1, lead + n - 2, *range(lead, lead + n - 2)))


def from_torch(x: Any) -> Any:
    """And back."""
    n = np.ndim(x)
    return np.asarray(x) if n < 2 else np.transpose(x, (*range(2, n), 1, 0))


class Pair:
    """A case and the torch optimizer for it, by default on float64 parameters.

    In float64 the change of a parameter can be read off to all its digits; the step itself is
    float32 always.
    """

    def __init__(
        self,
        spec: Any,
        folder: Any,
        shapes: Any = SHAPES,
        dtype: Any = torch.float64,
        **options: Any,
    ):
        self.case = Case(spec, shapes)
        self.path = folder / "made-up.safetensors"
        zoo.publish(self.path, spec, self.case.theta, a_card(spec))
        self.params = [torch.nn.Parameter(tensor(x, dtype)) for x in self.case.params.values()]
        self.outer = LearnedOuter(self.params, self.path, **options)

    def set_grads(self, t: int) -> list[torch.Tensor]:
        """Round t's mean deltas as gradients → every worker's deltas."""
        mean, deltas = self.case.at(t)
        for p, x in zip(self.params, mean.values(), strict=True):
            p.grad = tensor(x, p.dtype)
        return [torch.tensor(to_torch(x, 1).copy()) for x in deltas.values()]

    def step(self, t: int, **given: Any) -> dict[str, np.ndarray]:
        """Round t → what every parameter changed by, in JAX's layout."""
        before = [p.detach().clone() for p in self.params]
        deltas = self.set_grads(t)
        self.outer.step(worker_deltas=deltas, **given)
        changes = [
            (p.detach() - old).double().numpy() for p, old in zip(self.params, before, strict=True)
        ]
        return {name: from_torch(x) for name, x in zip(self.case.params, changes, strict=True)}

    def weights(self) -> dict[str, np.ndarray]:
        values = [p.detach().double().numpy() for p in self.params]
        return {name: from_torch(x) for name, x in zip(self.case.params, values, strict=True)}


def tensor(x: Any, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.tensor(to_torch(x).copy(), dtype=dtype)
