# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPrivateImportUsage=false
"""Bytes between members: a gloo process group that is formed anew whenever somebody came, went or
fell silent."""

import socket
from datetime import timedelta
from typing import Any

import numpy as np

from laconic.engines.address import split_address, with_port
from laconic.engines.base import Frame, Interrupted
from laconic.engines.membership import Plan
from laconic.engines.wire import new_frame
from laconic.errors import LaconicError

try:
    import torch.distributed as dist
    from torch import from_numpy
    from torch.distributed.distributed_c10d import AllgatherOptions
except ImportError as error:
    raise LaconicError(
        f"this engine needs PyTorch ({error}): pip install 'laconic[torchft]'."
    ) from error


class Channel:
    """One worker's end of the group; `key` names the group it is in, "" for none."""

    def __init__(self, bind: str, host: str, timeout: float, slots: int, size: int):
        """Listens at `bind` (any port) and tells the others to come to `host`; frames have `size`
        bytes."""
        self._host, self._limit, self._size, self._slots = (
            host,
            timedelta(seconds=timeout),
            size,
            slots,
        )
        self._room = self._new_room()
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        listener = socket.create_server((bind, 0), family=family)
        port = listener.getsockname()[1]
        # A store that opens its own port would listen on every interface.
        self._store = dist.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            timeout=self._limit,
        )
        self.address = with_port(host, port)
        self.key = ""
        self._group: Any = None

    def gather(self, plan: Plan, worker: int, frame: Frame) -> dict[int, Frame]:
        """Everyone's frame by worker id, valid until the next gather; the group is formed first
        where it must be."""
        if plan.fresh or plan.group != self.key:
            self._connect(plan, worker)
        workers = plan.quorum.workers
        rows, own = [from_numpy(self._room[i]) for i in range(len(workers))], self._fit(frame)
        try:
            work = self._group.allgather([rows], [from_numpy(own)], AllgatherOptions())
            work.wait(self._limit)
        except RuntimeError as error:  # torch's distributed errors are all RuntimeErrors
            raise Interrupted(
                f"gathering from workers {workers} failed: {_first_line(error)}."
            ) from error
        return {w: own if w == worker else self._room[i] for i, w in enumerate(workers)}

    def _connect(self, plan: Plan, worker: int) -> None:
        self.leave()
        try:
            host, port = split_address(plan.cards[0].store)
            base = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=self._limit
            )
            options = dist.ProcessGroupGloo._Options()
            options._timeout = self._limit
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
            rank = plan.quorum.workers.index(worker)
            self._group = dist.ProcessGroupGloo(
                dist.PrefixStore(plan.group, base), rank, len(plan.cards), options
            )
        except RuntimeError as error:
            raise Interrupted(
                f"connecting to workers {plan.quorum.workers} failed: {_first_line(error)}."
            ) from error
        self.key = plan.group

    def _fit(self, frame: Frame) -> np.ndarray:
        """Exactly the agreed number of bytes: a collective of unequal sizes would break for
        everyone."""
        array = np.frombuffer(frame, np.uint8)
        if array.size == self._size and array.flags.writeable:
            return array
        fitted = new_frame(self._size)
        fitted[: array.size] = array[: self._size]
        return fitted

    def leave(self) -> None:
        """Let go of the group, which interrupts all who still wait in it."""
        group, self._group, self.key = self._group, None, ""
        if group is not None:
            group.abort()
            self._room = (
                self._new_room()
            )  # what was under way must not come into what the next group gathers

    def _new_room(self) -> np.ndarray:
        return new_frame(self._slots * self._size).reshape(self._slots, self._size)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
