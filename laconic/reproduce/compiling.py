"""Compiling at smoke scale, where it takes longer than all that is computed: the compiler is spared
what it can be."""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager

import jax

# Compile times of learned optimizers about halve without XLA's fusion emitters. Level 1 is for
# convolutions; all else is compiled at level 0, by `compiled_for`.
XLA_FLAGS = ("--xla_backend_optimization_level=1", "--xla_cpu_use_fusion_emitters=false")


def spare_compiling(
    environment: MutableMapping[str, str], version: tuple[int, ...] = jax.__version_info__
) -> None:
    """Add `XLA_FLAGS` to an environment, before those that are there, which win; XLA reads them
    when it starts.

    Such flags come and go, and XLA ends the process at one it does not know: other releases of JAX
    get none.
    """
    if version[:2] == (0, 10):
        environment["XLA_FLAGS"] = " ".join([*XLA_FLAGS, *environment.get("XLA_FLAGS", "").split()])


@contextmanager
def compiled_for(scale: str, tasks: Sequence[str]) -> Iterator[None]:
    """Compile with little effort at smoke scale, unless there are convolutions: those would take
    longer to run."""
    before = jax.config.read("jax_disable_most_optimizations")
    quick = scale == "smoke" and not any("cnn" in task for task in tasks)
    jax.config.update("jax_disable_most_optimizations", before or quick)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
