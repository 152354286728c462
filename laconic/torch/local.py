"""The workers' optimizers in PyTorch: the steps of `LocalOptimizer.optax()`."""
# pyright: reportAttributeAccessIssue=false
# Where PyTorch is not installed, pyright takes this folder for it.

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from laconic.local import CONSISTENT_RMS, LocalOptimizer


class Muon(torch.optim.Optimizer):
    """Muon for matrices and Adam with Nesterov momentum for the rest, as `optax.contrib.muon`.

    `torch.optim.Muon` takes matrices only, works in bfloat16 and does not correct the momentum of
    its first steps. Weights may be [out, in] or [in, out]: a step is the same for both.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr: learning rate of all of them.
        weight_decay: decoupled, of all of them.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; parameters without a gradient are left alone."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    direction = self._direction(p, p.grad.float())
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(direction.to(p.dtype), alpha=group["lr"])
        return loss

    def _direction(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        state, matrix = self.state[p], p.ndim == 2
        if not state:
            state.update(step=0, m=torch.zeros_like(grad))
            if not matrix:
                state["v"] = torch.zeros_like(grad)
        state["step"] += 1
        t, beta = state["step"], 0.95 if matrix else 0.9
        state["m"].lerp_(grad, 1 - beta)
        ahead = state["m"] * (beta / (1 - beta ** (t + 1))) + grad * ((1 - beta) / (1 - beta**t))
        if matrix:
            return _orthogonal(ahead) * (CONSISTENT_RMS * math.sqrt(max(p.shape)))
        state["v"].lerp_(grad.square(), 0.001)
        return ahead / ((state["v"] / (1 - 0.999**t)).sqrt() + 1e-8)


def _orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Five steps of Newton and Schulz's iteration, in float32."""
    x = x / (torch.linalg.matrix_norm(x) + 1e-8)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def local_optimizer(params: Iterable[Any], told: LocalOptimizer) -> torch.optim.Optimizer:
    """The torch optimizer that takes the steps of `told.optax()`, clipping and cosine included."""
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "muon": Muon}
    made = kinds[told.name](params, lr=told.learning_rate, weight_decay=told.weight_decay)
    done = itertools.count()

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        given = [p.grad for group in optimizer.param_groups for p in group["params"]]
        grads = [grad for grad in given if grad is not None]
        if told.clip and grads:
            norms = torch.stack([torch.linalg.vector_norm(grad.float()) for grad in grads])
            share = (told.clip / torch.linalg.vector_norm(norms)).clamp(max=1.0)
            for grad in grads:
                grad.mul_(share.to(grad.device, grad.dtype))
        if told.decay_steps:
            share = 0.5 * (1 + math.cos(math.pi * min(next(done) / told.decay_steps, 1.0)))
            for group in optimizer.param_groups:
                group["lr"] = told.learning_rate * share

    made.register_step_pre_hook(before)
    return made
