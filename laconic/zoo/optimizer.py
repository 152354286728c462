"""A published optimizer in JAX: φ as arrays, the architecture that it serves and its card."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from laconic.errors import LaconicError
from laconic.local import LocalOptimizer
from laconic.outer.base import OuterOptimizer
from laconic.outer.guarded import guarded
from laconic.outer.learned import LearnedOptimizer, Theta
from laconic.outer.relative import RelativeOptimizer
from laconic.relative import RelativeArchitecture
from laconic.zoo import file
from laconic.zoo.card import Card
from laconic.zoo.file import locate


@dataclass(frozen=True, eq=False)
class Published:
    """A learned optimizer with its trained weights φ (`theta`) and its card."""

    learned: LearnedOptimizer | RelativeOptimizer
    theta: Theta
    card: Card

    @property
    def name(self) -> str:
        """The name on its card."""
        return self.card.name

    @property
    def sha256(self) -> str:
        """The hash of all that decides its steps: φ, and what differs from the default options."""
        return file.digest_of(self.learned, self.theta)

    @property
    def recommended_local(self) -> LocalOptimizer:
        """The local optimizer it was meta-trained with."""
        return LocalOptimizer(**self.card.local)

    def outer(
        self,
        scale: float = 1.0,
        weight_decay: float = 0.0,
        fill: str = "mean",
        accumulators: str = "float32",
        workers: int | None = None,
        local_steps: int | None = None,
        rounds: int | None = None,
    ) -> OuterOptimizer:
        """The outer optimizer for a round; arguments as `LearnedOptimizer` and `RelativeOptimizer`
        take them.

        `workers`, `local_steps` and `rounds` are for lopt-r; the others have no use for them.
        """
        options: dict[str, Any] = {
            "scale": scale,
            "weight_decay": weight_decay,
            "accumulators": accumulators,
            "horizon": self.card.horizon[1],
        }
        if isinstance(self.learned, LearnedOptimizer):
            return self.learned(self.theta, fill=fill, **options)
        run = {"workers": workers, "local_steps": local_steps, "rounds": rounds}
        return self.learned(self.theta, **run, **options)

    def optax(
        self,
        scale: float | Callable[[Any], Any] = 1.0,
        weight_decay: float = 0.0,
        on_nonfinite: str = "skip",
        matrices: int | None = None,
        accumulators: str = "float32",
        workers: int | None = None,
        local_steps: int | None = None,
        rounds: int | None = None,
    ) -> optax.GradientTransformationExtraArgs:
        """The same as an optax optimizer: `update(mean_delta, state, params)`.

        lagg-a and lagg need the keyword `worker_deltas` as well, with leaves [K, …]; lopt-r looks
        how far the workers agree where it is given that, or `worker_squares`, every worker's ‖Δ‖²
        with leaves [K].

        Args:
          scale: multiplies every step; a number, or an optax schedule of rounds, which multiplies
            the weight decay too.
          weight_decay: the share of each parameter that a round subtracts, decoupled.
          on_nonfinite: at NaN, infinity or numbers whose squares overflow, "skip" the round, which
            the state's `skipped` counts, or "raise" an error.
          matrices: how many weight matrices the whole model has. Optimizers that shorten the steps
            of deep models need it under `optax.masked` and `optax.multi_transform`, where they
            see only a part.
          accumulators: "float32", or "bfloat16" for half the memory.
          workers: K, as far as you know it. lopt-r takes other steps for other K; the others have
            no use for this and the next two.
          local_steps: H, as far as you know it.
          rounds: how long training will be, as far as you know it.

        Returns:
          An optax transformation. Its state is refused by every other learned optimizer.

        Example:
          >>> tx = load("lopt-a-fmnist").optax(scale=optax.linear_schedule(1.0, 0.1, 500))
          >>> state = tx.init({"w": jnp.zeros((2, 3))})
        """
        varies = callable(scale)
        number = 1.0 if varies else scale
        if matrices is not None and matrices < 1:
            raise LaconicError(f"a model has at least one matrix, got matrices={matrices}.")
        options: dict[str, Any] = {
            "scale": number,
            "weight_decay": weight_decay,
            "accumulators": accumulators,
        }
        whole = False
        if isinstance(self.learned, LearnedOptimizer):
            tx = self.learned(self.theta, matrices=matrices, **options).tx
            whole = self.learned.deepest > 0 and matrices is None
        else:
            run = {"workers": workers, "local_steps": local_steps, "rounds": rounds}
            tx = self.learned(self.theta, **run, **options).tx
        return guarded(tx, self.sha256, on_nonfinite, scale if varies else None, whole)

    def check_workers(self, K: int) -> None:
        """Refuse a number of workers that it cannot serve."""
        if K < 1:
            raise LaconicError(f"a round has at least one worker, got K = {K}.")
        if self.learned.workers not in (None, K):
            raise LaconicError(
                f"{self.name} sees the deltas of K = {self.learned.workers} workers and cannot "
                f"serve {K}: "
                f"run {self.learned.workers} workers, or load an optimizer that sees only the mean "
                "(lopt-a)."
            )


def load(name_or_path: str | os.PathLike[str], *, sha256: str | None = None) -> Published:
    """A published optimizer.

    Args:
        name_or_path: a name of `published()`; the path of a .safetensors file, or of a folder in
            the Hugging Face Hub's layout; or user/repo or user/repo@revision on the Hub, where
            nothing here has that path.
        sha256: of the file of weights, as `sha256sum` tells it; another file is refused.

    Returns:
        The optimizer with its weights and card; `.outer()` is for a round, `.optax()` for a loop of
        your own, `.recommended_local` is the local optimizer it was meta-trained with.

    Example:
        >>> import laconic
        >>> learned = laconic.load("lopt-r")
        >>> learned.learned.architecture
        'lopt-r'
    """
    opened = file.read(locate(name_or_path, sha256))
    with jax.ensure_compile_time_eval():  # numbers, even while a caller is traced
        theta = {name: jnp.asarray(x) for name, x in opened.theta.items()}
    own = vars(opened.architecture)
    relative = isinstance(opened.architecture, RelativeArchitecture)
    learned = RelativeOptimizer(**own) if relative else LearnedOptimizer(**own)
    return Published(learned, theta, opened.card)


def publish(
    path: str | os.PathLike[str],
    learned: LearnedOptimizer | RelativeOptimizer,
    theta: Theta,
    card: Card,
) -> None:
    """Write weights and card to one .safetensors file, in one step; what `load` would refuse is
    refused here."""
    file.write(
        Path(path), learned, {name: np.asarray(x, order="C") for name, x in theta.items()}, card
    )
