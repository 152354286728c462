"""What a round brings: every parameter's mean Δ, and every worker's, checked.

Here too tensors are the parts that this process holds.
"""
# pyright: reportAttributeAccessIssue=false
# Where PyTorch is not installed, pyright takes this folder for it.

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from laconic.architecture import Architecture
from laconic.errors import LaconicError
from laconic.relative import RelativeArchitecture
from laconic.torch.shards import Spread, held, spread_as, spread_of


class Due(NamedTuple):
    """A parameter that has a gradient, with what the step needs of it; float32."""

    group: dict[str, Any]
    name: str
    param: torch.Tensor
    spread: Spread
    mean: torch.Tensor
    deltas: torch.Tensor  # [D, *s]
    squares: torch.Tensor | None = None  # every worker's ‖Δ‖² [K], where lopt-r is given deltas


def due_of(
    groups: Sequence[dict[str, Any]],
    architecture: Architecture | RelativeArchitecture,
    worker_deltas: Sequence[Any],
    weights: Any,
) -> Iterator[Due]:
    """The parameters that have a gradient, in order; `worker_deltas` has an entry for each."""
    places = ((group, j) for group in groups for j in range(len(group["params"])))
    for i, ((group, j), given) in enumerate(zip(places, worker_deltas, strict=True)):
        p, name = group["params"][j], group.get("param_names", {j: f"parameter {i}"})[j]
        if p.grad is None:
            continue
        if p.grad.layout != torch.strided:
            raise LaconicError(
                f"the gradient of {name} is sparse, and a learned step needs all of it: densify it."
            )
        spread = spread_of(p, name)
        mean = held(spread_as(p, p.grad)).float()
        deltas, squares = mean[None], None
        if isinstance(architecture, RelativeArchitecture):
            if given is not None:
                squares = _squares(name, p, spread, given, weights)
        elif architecture.gathers:
            deltas = _gathered(name, p, given, architecture.deltas).float()
            deltas = deltas if weights is None else _present(deltas, mean, weights)
        yield Due(group, name, p, spread, mean, deltas, squares)


def unsound(due: Sequence[Due]) -> list[str]:
    """The names of parameters whose deltas are not finite or cannot be squared; the same in all
    processes. Reads from the device once for all tensors."""
    by_cuts: dict[tuple[Any, ...], list[Due]] = {}
    for one in due:
        by_cuts.setdefault(one.spread.cuts, []).append(one)
    totals = [
        Spread((), cuts).total(torch.stack([_square(one, due[0].mean.device) for one in group]))
        for cuts, group in by_cuts.items()
    ]
    finite = torch.cat(totals).isfinite().tolist() if totals else []
    names = [one.name for group in by_cuts.values() for one in group]
    return [name for name, good in zip(names, finite, strict=True) if not good]


def _square(one: Due, home: torch.device) -> torch.Tensor:
    """‖Δ‖² of this process's part, of the mean and of the workers' together."""
    norms = [torch.linalg.vector_norm(x) for x in (one.mean, one.deltas)]
    return torch.stack(norms).square().sum().to(home)


def _gathered(name: str, p: torch.Tensor, deltas: Any, K: int) -> torch.Tensor:
    """This process's part of one parameter's worker deltas, once they are known to be [K, *s]."""
    if deltas is None:
        raise LaconicError(
            f"{name} has a gradient and its entry of worker_deltas is None: give [K, …] for it."
        )
    shape = tuple(deltas.shape)
    if deltas.ndim == p.ndim + 1 and shape[1:] == tuple(p.shape) and shape[0] != K:
        raise LaconicError(
            f"this optimizer was made for K = {K} workers, and worker_deltas of {name} hold "
            f"{shape[0]}."
        )
    if shape != (K, *p.shape):
        raise LaconicError(
            f"worker_deltas of {name} must be [K, …] = {(K, *p.shape)}, got {shape}."
        )
    return held(spread_as(p, deltas.to(p.device)))


def _squares(
    name: str, p: torch.Tensor, spread: Spread, deltas: torch.Tensor, weights: Any
) -> torch.Tensor:
    """Every worker's ‖Δ‖² of one parameter [K]."""
    K = deltas.shape[0] if deltas.ndim else 1
    each = _gathered(name, p, deltas, K).float()
    if weights is not None and len(weights) != K:
        raise LaconicError(f"weights must be one number a worker, {K} in all, got {len(weights)}.")
    return spread.total(each.square().flatten(1).sum(1) if p.ndim else each.square())


def _present(deltas: torch.Tensor, mean: torch.Tensor, weights: Any) -> torch.Tensor:
    """The deltas, the mean standing in for absent workers."""
    here = torch.as_tensor(weights, device=deltas.device) > 0
    if here.shape != deltas.shape[:1]:
        raise LaconicError(
            f"weights must be one number a worker, {len(deltas)} in all, got {tuple(here.shape)}."
        )
    return torch.where(here.reshape(-1, *[1] * mean.ndim), deltas, mean[None])
