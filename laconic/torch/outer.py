"""`LearnedOuter`: a published learned optimizer as a `torch.optim.Optimizer`.

Set `.grad` to the mean over workers of Δ = W_before − W_after, the parameters being back at
W_before, and `.step()`.
"""
# pyright: reportAttributeAccessIssue=false
# Where PyTorch is not installed, pyright takes this folder for it.

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from laconic.architecture import LAYOUTS, ON_NONFINITE, Architecture, matrices_among
from laconic.errors import LaconicError, unknown
from laconic.local import LocalOptimizer
from laconic.relative import RelativeArchitecture
from laconic.torch.features import (
    Ada,
    Axes,
    Fields,
    accumulate,
    axes_of,
    fields_of,
    inputs_first,
    shapes_of,
)
from laconic.torch.local import local_optimizer
from laconic.torch.relative import RelativePhi
from laconic.torch.step import Phi
from laconic.zoo import file

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class _Due(NamedTuple):
    """A parameter that has a gradient, with what the step needs of it; float32."""

    group: dict[str, Any]
    name: str
    param: torch.Tensor
    mean: torch.Tensor
    deltas: torch.Tensor  # [D, *s]
    squares: torch.Tensor | None = None  # every worker's ‖Δ‖² [K], where lopt-r is given deltas


ChangeOf = Callable[[_Due, dict[str, Any], torch.Tensor], torch.Tensor]


class LearnedOuter(torch.optim.Optimizer):
    """A published learned outer optimizer for PyTorch.

    Set each `.grad` to the mean over workers of Δ = W_before − W_after, the parameters being back
    at W_before, and call `step()`. Accumulators are float32 whatever the parameters are; `card`
    says what the optimizer was trained for.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        optimizer: its name in the zoo, or a .safetensors file.
        lr: multiplies the whole step, decay included; schedulers may change it.
        weight_decay: the share of each parameter that a round subtracts (decoupled).
        layout: "torch" for weights as torch.nn keeps them, [out, in] and [out, in, …], or "as-is"
            for [in, out]. It decides which axes are inputs, and between equally long axes. Each
            parameter group may have its own.
        on_nonfinite: at NaN, infinity or numbers whose squares overflow, "raise" an error or "skip"
            the round, which then changes nothing.
        tile: how many parameters to work on at a time (None: what suits the device).
        workers: K, as far as you know it. lopt-r takes other steps for other K; the others have no
            use for this and the next two.
        local_steps: H, as far as you know it.
        rounds: how long training will be, as far as you know it.

    Example:
        >>> import torch
        >>> from laconic.torch import LearnedOuter
        >>> model = torch.nn.Linear(3, 2)
        >>> outer = LearnedOuter(model.parameters(), "lopt-a-general")
        >>> for p in model.parameters():
        ...     p.grad = 0.01 * torch.ones_like(p)  # the mean over workers of Δ
        >>> outer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer: str | os.PathLike[str],
        *,
        lr: float = 1.0,
        weight_decay: float = 0.0,
        layout: str = "torch",
        on_nonfinite: str = "raise",
        tile: int | None = None,
        workers: int | None = None,
        local_steps: int | None = None,
        rounds: int | None = None,
    ) -> None:
        if on_nonfinite not in ON_NONFINITE:
            raise unknown("on_nonfinite", on_nonfinite, ON_NONFINITE)
        if tile is not None and tile < 1:
            raise LaconicError(f"tile counts parameters and must be at least 1, got {tile}.")
        architecture, theta, self.card = file.read(file.locate(optimizer))
        self._phi: Phi | RelativePhi
        if isinstance(architecture, RelativeArchitecture):
            self._phi = RelativePhi(architecture, theta, workers, local_steps, rounds)
        else:
            self._phi = Phi(architecture, theta, tile)
        self._on_nonfinite = on_nonfinite
        self._digest = file.digest_of(architecture, theta)
        own = {"lr": lr, "weight_decay": weight_decay, "layout": layout, "optimizer": self._digest}
        super().__init__(params, own)

    def recommended_local(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        """The workers' optimizer that this one was meta-trained with.

        Args:
            params: the parameters that a worker trains.

        Returns:
            A torch SGD, AdamW or Muon at the recommended rate. Every `step` clips the gradient to
            the recommended norm first, and a recommended cosine lowers the rate.
        """
        return local_optimizer(params, LocalOptimizer(**self.card.local))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their options; refuse dtypes that the step is not defined for."""
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1])
        except LaconicError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        worker_deltas: Sequence[torch.Tensor | None] | None = None,
        weights: Sequence[float] | torch.Tensor | None = None,
    ) -> Any:
        """Take the outer step; parameters without a gradient are left alone, their rounds not
        counted.

        Args:
            closure: computes the loss again, as for any torch optimizer.
            worker_deltas: for LAgg-A, every worker's Δ for each parameter in order, [K, …]. lopt-r
                looks how far the workers agree where it is given them, and does without elsewhere.
            weights: one number a worker; 0: it is absent, and LAgg-A sees the mean instead.

        Returns:
            What `closure` returns, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        due = self._due(worker_deltas, weights)
        if self._sound(due):
            change_of = self._changes(weights)
            for one in due:
                # Under autocast the MLP's matrices would be multiplied in half precision.
                with torch.autocast(one.param.device.type, enabled=False):
                    self._step_one(one, change_of)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state to the last bit: float32 stays float32 whatever the parameters are."""
        seen: dict[str, Any] = {}

        def look(_: Any, given: dict[str, Any]) -> None:
            seen.update(given)
            self._check_state(given)

        # The last of the hooks: it sees what is really loaded.
        hook = self.register_load_state_dict_pre_hook(look)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        names = [i for group in seen["param_groups"] for i in group["params"]]
        for i, p in zip(names, self._params(), strict=True):
            for key, value in seen["state"].get(i, {}).items():
                # By now torch has cast tensors to the parameter's dtype.
                is_tensor = isinstance(value, torch.Tensor)
                self.state[p][key] = value.detach().to(p.device, copy=True) if is_tensor else value

    def __getstate__(self) -> dict[str, Any]:
        names = ("card", "_phi", "_on_nonfinite", "_digest")
        ours = {name: getattr(self, name) for name in names}
        # torch's own keeps only what its optimizers have, and copies use it.
        return {**super().__getstate__(), **ours}

    def _params(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _due(self, worker_deltas: Any, weights: Any) -> list[_Due]:
        architecture = self._phi.architecture
        count = len(self._params())
        relative = isinstance(architecture, RelativeArchitecture)
        if not (architecture.gathers or (relative and worker_deltas is not None)):
            worker_deltas = [None] * count
        elif worker_deltas is None:
            raise LaconicError(
                f"{self.card.name} looks at every worker's delta: call step(worker_deltas=[…])."
            )
        elif len(worker_deltas) != count:
            raise LaconicError(
                f"worker_deltas has {len(worker_deltas)} entries, and there are {count} parameters."
            )
        due = []
        for i, (group, j) in enumerate(
            (g, j) for g in self.param_groups for j in range(len(g["params"]))
        ):
            p, name = group["params"][j], group.get("param_names", {j: f"parameter {i}"})[j]
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:
                raise LaconicError(
                    f"the gradient of {name} is sparse, and a learned step needs all of it: "
                    "densify it."
                )
            mean = p.grad.float()
            deltas, squares = mean[None], None
            if relative and worker_deltas[i] is not None:
                squares = _squares(name, p, worker_deltas[i], weights)
            elif isinstance(architecture, Architecture) and architecture.gathers:
                deltas = _gathered(name, p, worker_deltas[i], architecture.deltas).float()
                deltas = deltas if weights is None else _present(deltas, mean, weights)
            due.append(_Due(group, name, p, mean, deltas, squares))
        return due

    def _sound(self, due: list[_Due]) -> bool:
        """Whether all is finite and can be squared; reads from the device once for all tensors."""
        tensors = [(one.name, one.mean) for one in due]
        if self._phi.architecture.gathers:
            tensors = [(one.name, x) for one in due for x in (one.mean, one.deltas)]
        if not tensors:
            return True
        home = tensors[0][1].device
        norms = [torch.linalg.vector_norm(x).to(home) for _, x in tensors]
        finite = torch.stack(norms).isfinite().tolist()
        if all(finite) or self._on_nonfinite == "skip":
            return all(finite)
        wrong = [name for (name, _), good in zip(tensors, finite, strict=True) if not good]
        names = list(dict.fromkeys(wrong))
        raise LaconicError(
            f"the gradient of {', '.join(names[:3])} holds NaN, infinity or numbers too large to "
            "square: some worker diverged. Leave it out of the mean, or pass "
            'on_nonfinite="skip" to let such rounds change nothing.'
        )

    def _step_one(self, one: _Due, change_of: ChangeOf) -> None:
        p, state = one.param, self.state[one.param]
        lr, decay = float(one.group["lr"]), float(one.group["weight_decay"])  # may be tensors
        if not state:
            zeros = self._zeros(p, axes_of(p.shape, one.group["layout"]))
            state.update({"round": 0, **zeros})
        value = p.float()
        change = change_of(one, state, value)
        state["round"] += 1
        if decay:
            change.add_(value, alpha=decay)
        p.sub_(change, alpha=lr)

    def _changes(self, weights: Any) -> ChangeOf:
        """What makes a parameter's change in this round, of its gradient, state and value."""
        phi = self._phi
        if isinstance(phi, RelativePhi):
            shares = None if weights is None else torch.as_tensor(weights)
            return lambda one, state, value: phi.step(state, one.mean, value, one.squares, shares)
        rates = phi.rates() if phi.architecture.accumulates else []
        matrices = matrices_among(p.shape for p in self._params())  # with or without gradients

        def change_of(one: _Due, state: dict[str, Any], value: torch.Tensor) -> torch.Tensor:
            layout = one.group["layout"]
            fields = Fields(one.deltas, value[None])
            if phi.architecture.accumulates:
                axes = axes_of(value.shape, layout)
                ada = Ada(state["m"], state["v"], state["row"], state.get("col"))
                accumulate(ada, one.mean, rates, axes)
                fields = fields_of(value, ada, one.mean, one.deltas, axes)
            change = phi.step(fields, value.shape, state["round"])
            shape = inputs_first(value.shape, layout)
            return change.mul_(phi.architecture.share(shape, matrices))

        return change_of

    def _zeros(self, p: torch.Tensor, axes: Axes) -> dict[str, torch.Tensor]:
        zeros = lambda shape: torch.zeros(shape, dtype=torch.float32, device=p.device)
        return {key: zeros(shape) for key, shape in self._shapes(p, axes).items()}

    def _shapes(self, p: torch.Tensor, axes: Axes) -> dict[str, tuple[int, ...]]:
        if isinstance(self._phi, RelativePhi):
            return self._phi.shapes(p)
        return shapes_of(p.shape, axes) if self._phi.architecture.accumulates else {}

    def _check_state(self, given: dict[str, Any]) -> None:
        """Refuse accumulators of other shapes before loading; torch itself refuses other groups."""
        owners = {group.get("optimizer", self._digest) for group in given["param_groups"]}
        if owners - {self._digest}:
            raise LaconicError(
                f"the state belongs to another learned optimizer than {self.card.name}: load it "
                "into the one it was saved with, or start anew."
            )
        layouts = [
            (i, group.get("layout", "torch"))
            for group in given["param_groups"]
            for i in group["params"]
        ]
        for (i, layout), p in zip(layouts, self._params(), strict=False):
            found = {
                k: tuple(x.shape)
                for k, x in given["state"].get(i, {}).items()
                if isinstance(x, torch.Tensor)
            }
            shapes = self._shapes(p, axes_of(p.shape, layout))
            if i in given["state"] and found != shapes:
                raise LaconicError(
                    f"the state of parameter {i} has {found}, and a parameter of shape "
                    f"{tuple(p.shape)} under {self.card.name} needs {shapes}: it was saved by "
                    "another optimizer or for another model."
                )


def _check(group: dict[str, Any]) -> None:
    if group["layout"] not in LAYOUTS:
        raise unknown("layout", group["layout"], LAYOUTS)
    for knob in ("lr", "weight_decay"):
        if isinstance(group[knob], torch.Tensor) and group[knob].numel() != 1:
            count = group[knob].numel()
            raise LaconicError(f"{knob} must be one number, got a tensor of {count}.")
        if not (0 <= group[knob] < math.inf):
            raise LaconicError(f"{knob} must be a number of at least 0, got {group[knob]}.")
    wrong = sorted({str(p.dtype) for p in group["params"] if p.dtype not in DTYPES})
    if wrong:
        raise LaconicError(
            "a learned step is for real floating-point parameters, and some are "
            f"{', '.join(wrong)}: leave them out."
        )


def _gathered(name: str, p: torch.Tensor, deltas: Any, K: int) -> torch.Tensor:
    """One parameter's worker deltas, once they are known to be [K, *s]."""
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
    return deltas.to(p.device)


def _squares(name: str, p: torch.Tensor, deltas: torch.Tensor, weights: Any) -> torch.Tensor:
    """Every worker's ‖Δ‖² of one parameter [K]."""
    K = deltas.shape[0] if deltas.ndim else 1
    each = _gathered(name, p, deltas, K).float()
    if weights is not None and len(weights) != K:
        raise LaconicError(f"weights must be one number a worker, {K} in all, got {len(weights)}.")
    return each.square().flatten(1).sum(1) if p.ndim else each.square()


def _present(deltas: torch.Tensor, mean: torch.Tensor, weights: Any) -> torch.Tensor:
    """The deltas, the mean standing in for absent workers."""
    here = torch.as_tensor(weights, device=deltas.device) > 0
    if here.shape != deltas.shape[:1]:
        raise LaconicError(
            f"weights must be one number a worker, {len(deltas)} in all, got {tuple(here.shape)}."
        )
    return torch.where(here.reshape(-1, *[1] * mean.ndim), deltas, mean[None])
