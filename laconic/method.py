"""What is trained and how, in numbers: a method and the setting it runs in."""

from collections.abc import Callable
from dataclasses import dataclass, field

from laconic.client import Client, LocalOptimizer, local_client
from laconic.compress import DENSE, Compressor
from laconic.errors import LaconicError, require_positive, require_seed
from laconic.federated.options import Federated
from laconic.outer import OuterOptimizer
from laconic.tasks.base import Task


@dataclass(frozen=True)
class Setting:
    """K workers, H local steps of B examples, T rounds, over several seeds; held-out data every so
    many rounds.

    With a population the K workers of a round are sampled from its clients, whose local epochs
    decide H. `missing` workers of K are absent from each round, others every time: what they
    computed is lost. `seeds_at_once` of the seeds are trained side by side, 0: all; it changes how
    much memory that takes.
    """

    workers: int = 8
    local_steps: int = 4
    batch: int = 128
    rounds: int = 1000
    seeds: tuple[int, ...] = (0,)
    evaluate_every: int = 20
    federated: Federated = field(default_factory=Federated)
    missing: int = 0
    seeds_at_once: int = 0

    def __post_init__(self) -> None:
        require_positive(
            workers=self.workers,
            local_steps=self.local_steps,
            batch=self.batch,
            rounds=self.rounds,
            seeds=len(self.seeds),
            evaluate_every=self.evaluate_every,
        )
        for seed in self.seeds:
            require_seed(seed)
        if not 0 <= self.missing < self.workers:
            raise LaconicError(
                f"of {self.workers} workers 0 to {self.workers - 1} can be missing from a round, "
                f"got {self.missing}."
            )
        if self.seeds_at_once < 0:
            raise LaconicError(
                f"seeds_at_once counts seeds, or is 0 for all of them, got {self.seeds_at_once}."
            )

    @property
    def together(self) -> int:
        """How many seeds are trained side by side."""
        return min(self.seeds_at_once or len(self.seeds), len(self.seeds))

    @property
    def chunks(self) -> list[int]:
        """The lengths of the chunks that make up the rounds."""
        full, rest = divmod(self.rounds, self.evaluate_every)
        return [self.evaluate_every] * full + ([rest] if rest else [])


@dataclass(frozen=True)
class Method:
    """A whole way to train: what a worker does, how it compresses, and the outer optimizer.

    `name` is what it is called in the registry, `label` in a table. `budget` maps (K, H) to the
    workers and steps really used: small-batch SGD is one worker with K·H steps. The sha256 is of a
    published optimizer: names are reused.
    """

    label: str
    client: Callable[[Task], Client]
    outer: OuterOptimizer
    compressor: Compressor = DENSE
    name: str = "own"
    budget: Callable[[int, int], tuple[int, int]] = lambda K, H: (K, H)
    optimizer_sha256: str | None = None


def local_method(
    label: str, local: LocalOptimizer, outer: OuterOptimizer, compressor: Compressor = DENSE
) -> Method:
    """H steps of a local optimizer, then an outer optimizer."""
    return Method(label, lambda task: local_client(task, local.optax()), outer, compressor)


def check_workers(method: Method, K: int) -> None:
    """Refuse a worker-aware optimizer made for another K before anything is compiled."""
    made_for = method.outer.workers
    if made_for is not None and made_for != K:
        raise LaconicError(
            f"{method.label} sees each worker's delta and was made for K = {made_for} workers, not "
            f"{K}. "
            f"Use {made_for} workers, or an optimizer of the mean delta such as lopt-a."
        )
