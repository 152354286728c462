"""The engine for tightly coupled clusters: each process is a worker, and XLA's own collectives
carry the messages.

All processes of `jax.distributed` are devices of one mesh, and a round's messages are one
all-gather over it. It is not fault tolerant: when one process dies, JAX ends all of them at its
heartbeat timeout (100 s by default), and a dead one cannot come back into the same mesh. Start the
run again from its checkpoints; `elastic` is the engine for machines that may die. A replica that
diverged is noticed and healed as with any engine.
"""

from collections.abc import Mapping
from dataclasses import asdict

import jax
import numpy as np
from jax.experimental import multihost_utils

from laconic.engines import membership
from laconic.engines.address import split_address, with_port
from laconic.engines.base import (
    Bounds,
    Counts,
    Digest,
    Frame,
    Interrupted,
    Quorum,
    Refused,
    Snapshot,
)
from laconic.engines.identity import refusal
from laconic.engines.membership import Card
from laconic.engines.session import token_sign
from laconic.engines.wire import Seal
from laconic.errors import LaconicError

WORD = 8
ID = 64  # letters of a part of an identity, at most


def join(
    coordinator: str,
    processes: int,
    process: int,
    *,
    bind: str = "",
    heartbeat_timeout: int = 100,
    patience: int = 300,
) -> None:
    """Connect this process to the others; call it before anything else of JAX.

    Process 0 listens at `coordinator`, or at the address `bind` with the same port; the others wait
    `patience` seconds for it. `heartbeat_timeout` seconds of silence of one process end them all.
    """
    host, port = split_address(coordinator)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow our SIGTERM
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            # by default it listens on every interface
            coordinator_bind_address=with_port(bind or host, port),
            heartbeat_timeout_seconds=heartbeat_timeout,
            initialization_timeout=patience,
        )
    except RuntimeError as error:
        raise LaconicError(
            f"the processes did not meet at {coordinator}: {error}".splitlines()[0]
        ) from error


def same_run(seal: Seal) -> Seal:
    """The seal with process 0's run id, once all have the same token and run the same thing.

    JAX connects whoever reaches its coordinator, so this finds mistakes and keeps nobody out.
    """
    ours = {"token": token_sign(seal, b"mesh").hex()[:ID], **asdict(seal.identity)}
    text = "".join(part.ljust(ID) for part in ours.values())
    rows = np.asarray(multihost_utils.process_allgather(np.frombuffer(text.encode(), np.uint8)))
    said = [row.tobytes().decode() for row in rows.reshape(jax.process_count(), -1)]
    parts = [[row[i : i + ID].strip() for i in range(0, len(row), ID)] for row in said]
    differing = {
        name: [k for k, theirs in enumerate(parts) if theirs[i] and theirs[i] != parts[0][i]]
        for i, name in enumerate(ours)
    }
    if any(differing.values()):
        names = [name for name, who in differing.items() if who]
        they = ", ".join(str(k) for k in sorted({k for who in differing.values() for k in who}))
        raise Refused(f"worker {they} {refusal(names, 'worker 0')}.")
    return seal.of_run(parts[0][list(ours).index("run")])


class JaxDistributedEngine:
    """Worker k is process k of `jax.distributed`, which must have been joined."""

    def __init__(self) -> None:
        if jax.device_count() != jax.process_count() * jax.local_device_count():
            raise LaconicError(
                "jax-distributed needs the same number of devices in every process, and they see "
                f"{jax.device_count()} in all, {jax.local_device_count()} of them here: show each "
                "the same number."
            )
        self.slots = jax.process_count()
        self.mine = (jax.process_index(),)
        self.counts = Counts(0, 0, {})
        self._healed: np.ndarray | None = None

    def open(
        self, size: int, structure: bytes, snapshot: Snapshot, bounds: Bounds = Bounds()
    ) -> None:
        """Check that all run the same thing."""
        self._snapshot = snapshot
        everyone = self._all_gather(np.frombuffer(structure, np.uint8))
        if not np.all(everyone == everyone[0]):
            raise LaconicError(
                "the processes run different tasks or methods: give all of them the same command."
            )

    def quorum(self, round: int, digest: Digest) -> Quorum:
        """Everyone; the state they follow is sent at once to those who hold another."""
        rows = self._all_gather(np.frombuffer(digest + round.to_bytes(WORD, "little"), np.uint8))
        cards = {k: _card(k, row) for k, row in enumerate(rows)}
        quorum = membership.plan(cards).quorum
        if len(quorum.sources) < self.slots:  # seen alike by all, so all take part
            self._healed = self._hand_over(quorum)
        return quorum

    def _hand_over(self, quorum: Quorum) -> np.ndarray:
        source = quorum.sources[0]
        body = self._snapshot(quorum.round, quorum.digest) if self.mine[0] == source else b""
        if body is None:
            raise LaconicError(
                f"worker {source} no longer holds the state of round {quorum.round}: start again."
            )
        own = np.frombuffer(body, np.uint8)
        sizes = self._all_gather(np.frombuffer(own.size.to_bytes(WORD, "little"), np.uint8))
        padded = own if own.size else np.zeros(int(sizes.view("<u8").max()), np.uint8)
        sends = self.mine[0] == source
        return np.asarray(multihost_utils.broadcast_one_to_all(padded, is_source=sends))

    def gather(self, frames: Mapping[int, Frame], size: int) -> dict[int, Frame]:
        """One all-gather over the mesh of all processes."""
        own = np.frombuffer(frames[self.mine[0]], np.uint8)[:size]
        if own.size < size:
            own = np.pad(own, (0, size - own.size))
        return dict(enumerate(self._all_gather(own))) | {self.mine[0]: own}

    def _all_gather(self, own: np.ndarray) -> np.ndarray:
        rows = np.asarray(multihost_utils.process_allgather(own)).reshape(self.slots, own.size)
        self.counts.sent += (self.slots - 1) * own.nbytes
        self.counts.received += (self.slots - 1) * own.nbytes
        return rows

    def commit(self, ok: bool, digest: Digest) -> bool:
        """As this process says; a failure is the end of the mesh anyhow."""
        return ok

    def heal(self, quorum: Quorum) -> Frame:
        """The state that came with the quorum."""
        healed, self._healed = self._healed, None
        if healed is None:
            raise Interrupted("no state came with this quorum.")
        return healed

    def close(self) -> None:
        """The mesh ends with the process."""


def _card(worker: int, row: np.ndarray) -> Card:
    """A process's state as a card, unsigned: JAX connects only its own processes."""
    digest, now = row[:-WORD].tobytes().hex(), int.from_bytes(row[-WORD:].tobytes(), "little")
    return Card(worker, 0, 0, now, digest, "mesh", "", "", "")
