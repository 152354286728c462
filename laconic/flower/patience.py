"""A grid that does not wait for the last: once half have answered, the rest get a multiple of the
time that took.

Flower waits for a client that died until its heartbeats are missed, about a minute, or until the
round's timeout.
"""
# pyright: reportMissingImports=false

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from laconic.errors import LaconicError

PAUSE = 0.5  # seconds between two looks for replies
LEAST = 5.0  # seconds that everybody gets, however quick the others are


def check_patience(patience: float | None) -> None:
    """Refuse to wait for less than half of the clients."""
    if patience is not None and not patience >= 1:
        raise LaconicError(
            "patience says how many times as long as the median client to wait, at least 1, got "
            f"{patience}."
        )


class PatientGrid(Grid):
    """Another grid, whose `send_and_receive` ends when those who are late have had `patience` times
    the median time."""

    def __init__(
        self,
        grid: Grid,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._patience, self._clock, self._sleep = grid, patience, clock, sleep

    def set_run(self, run: Any) -> None:
        """As the other grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """As the other grid."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As the other grid."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """As the other grid."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the other grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the other grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, and wait for all replies, for `timeout`, or for as long as patience lasts."""
        waiting, replies, times = set(self._grid.push_messages(messages)), [], []
        asked, begun = len(waiting), self._clock()
        while waiting:
            found = list(self._grid.pull_messages(waiting))
            spent = self._clock() - begun
            replies += found
            times += [spent] * len(found)
            waiting -= {message.metadata.reply_to_message_id for message in found}
            tired = 2 * len(times) >= asked and spent > max(LEAST, self._patience * median(times))
            if not waiting or tired or (timeout is not None and spent >= timeout):
                break
            self._sleep(PAUSE)
        return replies
