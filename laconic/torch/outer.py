"""`LearnedOuter`: a published learned optimizer as a `torch.optim.Optimizer`.

Set `.grad` to the mean over workers of Δ = W_before − W_after, the parameters being back at
W_before, and `.step()`.
"""
# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false
# Where PyTorch is not installed, pyright takes this folder for it.

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from laconic.architecture import LAYOUTS, ON_NONFINITE, matrices_among
from laconic.errors import LaconicError, unknown
from laconic.local import LocalOptimizer
from laconic.relative import RelativeArchitecture
from laconic.torch.features import (
    Ada,
    Axes,
    Fields,
    accumulate,
    averaged_axes,
    axes_of,
    fields_of,
    inputs_first,
    shapes_of,
)
from laconic.torch.gradients import Due, due_of, unsound
from laconic.torch.local import local_optimizer
from laconic.torch.relative import RelativePhi
from laconic.torch.shards import held, spread_as, zeros
from laconic.torch.step import Phi, tile_on
from laconic.zoo import file

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# The change of parameters of one shape [G, *s], of their gradients, accumulators and values.
ChangeOf = Callable[[Sequence[Due], dict[str, torch.Tensor], torch.Tensor, int], torch.Tensor]


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
        foreach: step small tensors of one shape together (None: on accelerators only).
        matrices: how many weight matrices the whole model has, if `params` are a part of it (None:
            count them).
        workers: K, as far as you know it. lopt-r takes other steps for other K; the others have no
            use for this and the next two.
        local_steps: H, as far as you know it.
        rounds: how long training will be, as far as you know it.

    Example:
        >>> import torch
        >>> from laconic.torch import LearnedOuter
        >>> model = torch.nn.Linear(3, 2)
        >>> outer = LearnedOuter(model.parameters(), "lopt-r")
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
        foreach: bool | None = None,
        matrices: int | None = None,
        workers: int | None = None,
        local_steps: int | None = None,
        rounds: int | None = None,
    ) -> None:
        if on_nonfinite not in ON_NONFINITE:
            raise unknown("on_nonfinite", on_nonfinite, ON_NONFINITE)
        if tile is not None and tile < 1:
            raise LaconicError(f"tile counts parameters and must be at least 1, got {tile}.")
        if matrices is not None and matrices < 1:
            raise LaconicError(f"a model has at least one matrix, got matrices={matrices}.")
        architecture, theta, self.card = file.read(file.locate(optimizer))
        self._phi: Phi | RelativePhi
        if isinstance(architecture, RelativeArchitecture):
            self._phi = RelativePhi(architecture, theta, workers, local_steps, rounds)
        else:
            self._phi = Phi(architecture, theta, tile)
        self._on_nonfinite, self._tile = on_nonfinite, tile
        self._foreach, self._matrices = foreach, matrices
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
        given = self._given(worker_deltas)
        due = list(due_of(self.param_groups, self._phi.architecture, given, weights))
        if self._sound(due):
            change_of = self._changes(weights)
            for some in self._together(due):
                # Under autocast the MLP's matrices would be multiplied in half precision.
                with torch.autocast(some[0].param.device.type, enabled=False):
                    self._step_some(some, change_of)
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
        layouts = [(p, group["layout"]) for group in self.param_groups for p in group["params"]]
        names = [i for group in seen["param_groups"] for i in group["params"]]
        for i, (p, layout) in zip(names, layouts, strict=True):
            if i in seen["state"]:
                saved = dict(seen["state"][i])
                # By now torch has cast tensors to the parameter's dtype, so start from zeros.
                own = self._zeros(p, axes_of(p.shape, layout))
                for key, x in own.items():
                    held(x).copy_(held(spread_as(x, saved[key].detach())))
                self.state[p] = {**saved, **own}

    def __getstate__(self) -> dict[str, Any]:
        names = ("card", "_phi", "_on_nonfinite", "_digest", "_tile", "_foreach", "_matrices")
        ours = {name: getattr(self, name) for name in names}
        # torch's own keeps only what its optimizers have, and copies use it.
        return {**super().__getstate__(), **ours}

    def _params(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _given(self, worker_deltas: Any) -> Sequence[Any]:
        """Of every parameter what was given of its workers' deltas, None where it is of no use."""
        architecture = self._phi.architecture
        count = len(self._params())
        relative = isinstance(architecture, RelativeArchitecture)
        if not (architecture.gathers or (relative and worker_deltas is not None)):
            return [None] * count
        if worker_deltas is None:
            raise LaconicError(
                f"{self.card.name} looks at every worker's delta: call step(worker_deltas=[…])."
            )
        if len(worker_deltas) != count:
            raise LaconicError(
                f"worker_deltas has {len(worker_deltas)} entries, and there are {count} parameters."
            )
        return worker_deltas

    def _sound(self, due: Sequence[Due]) -> bool:
        """Whether all is finite and can be squared."""
        names = unsound(due)
        if not names or self._on_nonfinite == "skip":
            return not names
        raise LaconicError(
            f"the gradient of {', '.join(names[:3])} holds NaN, infinity or numbers too large to "
            "square: some worker diverged. Leave it out of the mean, or pass "
            'on_nonfinite="skip" to let such rounds change nothing.'
        )

    def _together(self, due: Sequence[Due]) -> Iterator[list[Due]]:
        """What is stepped at once: one parameter, or with `foreach` those that differ in nothing
        but their numbers, up to a tile of them."""
        alike: dict[Any, list[Due]] = {}
        for i, one in enumerate(due):
            device = one.param.device
            foreach = device.type != "cpu" if self._foreach is None else self._foreach
            if not foreach:
                alike[i] = [one]
                continue
            rounds = self.state[one.param].get("round", 0) if one.param in self.state else 0
            key = (one.spread, device, id(one.group), rounds, one.squares is None)
            alike.setdefault(key, []).append(one)
        for some in alike.values():
            most = max(1, tile_on(some[0].param.device, self._tile) // max(1, some[0].spread.size))
            yield from (some[i : i + most] for i in range(0, len(some), most))

    def _step_some(self, some: Sequence[Due], change_of: ChangeOf) -> None:
        """Step parameters of one group that have one shape and one round."""
        group, spread = some[0].group, some[0].spread
        lr, decay = float(group["lr"]), float(group["weight_decay"])  # may be tensors
        axes, states = axes_of(spread.shape, group["layout"]), []
        for one in some:
            state = self.state[one.param]
            if not state:
                state.update({"round": 0, **self._zeros(one.param, axes)})
            states.append(state)
        round_t = states[0]["round"]
        for state in states:
            state["round"] += 1
        if not spread.size:
            return
        kept = {key: [held(x[key]) for x in states] for key in states[0] if key != "round"}
        params = [held(one.param) for one in some]
        lead = {key: max(0, parts[0].ndim - len(spread.shape)) for key, parts in kept.items()}
        stacks = {key: _stack(parts, lead[key]) for key, parts in kept.items()}
        values = _stack([p.float() for p in params])
        changes = change_of(some, stacks, values, round_t)
        if decay:
            changes.add_(values, alpha=decay)
        torch._foreach_sub_(params, list(changes), alpha=lr)
        if len(some) > 1:  # else the stacks are views
            for key, parts in kept.items():
                torch._foreach_copy_(parts, list(stacks[key].unbind(lead[key])))

    def _changes(self, weights: Any) -> ChangeOf:
        """What makes the changes of this round."""
        phi = self._phi
        if isinstance(phi, RelativePhi):
            shares = None if weights is None else torch.as_tensor(weights)

            def change_relative(
                some: Sequence[Due], state: dict[str, torch.Tensor], values: torch.Tensor, t: int
            ) -> torch.Tensor:
                mean = _stack([one.mean for one in some])
                squares = [one.squares for one in some if one.squares is not None]
                seen = _stack(squares, 1) if squares else None
                return phi.step(state, t, mean, values, some[0].spread, seen, shares)

            return change_relative
        rates = phi.rates() if phi.architecture.accumulates else []
        counted = matrices_among(p.shape for p in self._params())  # with or without gradients
        matrices = counted if self._matrices is None else self._matrices

        def change(
            some: Sequence[Due], state: dict[str, torch.Tensor], values: torch.Tensor, t: int
        ) -> torch.Tensor:
            spread, layout = some[0].spread, some[0].group["layout"]
            deltas = _stack([one.deltas for one in some], 1)
            fields = Fields(deltas, values[None])
            if phi.architecture.accumulates:
                axes, mean = axes_of(spread.shape, layout), _stack([one.mean for one in some])
                ada = Ada(state["m"], state["v"], state["row"], state.get("col"))
                accumulate(ada, mean, rates, axes, spread)
                fields = fields_of(values, ada, mean, deltas, axes, spread)
            found = phi.step(fields, spread, t)
            return found.mul_(phi.architecture.share(inputs_first(spread.shape, layout), matrices))

        return change

    def _zeros(self, p: torch.Tensor, axes: Axes) -> dict[str, torch.Tensor]:
        averaged = averaged_axes(axes)
        shapes = self._shapes(p, axes).items()
        return {key: zeros(p, shape, averaged.get(key)) for key, shape in shapes}

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


def _stack(parts: Sequence[torch.Tensor], at: int = 0) -> torch.Tensor:
    """The tensors along a new axis; a view if there is only one."""
    return parts[0].unsqueeze(at) if len(parts) == 1 else torch.stack(list(parts), at)
