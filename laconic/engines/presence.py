# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""Signs of life, and the question who else is there: one process's dealings with the Lighthouse."""

import os
import queue
import threading
import time
from datetime import timedelta
from typing import Any

from laconic.engines.address import with_port
from laconic.errors import LaconicError

os.environ.setdefault("RUST_LOG", "error")  # torchft's own log tells every quorum in full
try:
    from torchft.coordination import LighthouseClient, ManagerServer
except ImportError as error:
    raise LaconicError(
        f"this engine needs torchft ({error}): pip install 'laconic[torchft]'."
    ) from error

LOOK = 0.2  # seconds between looks at a Lighthouse that is silent
PAUSE = 0.02  # seconds between looks at one that is down
CONNECT = timedelta(seconds=5)


class Presence:
    """A torchft manager, which gives the signs of life of one process, and the questions that this
    one asks.

    The manager would ask for us, but what a Lighthouse takes along when it dies it waits for in
    vain; asked directly, the broken connection tells at once. `replaced` says whether the last
    answer came from another Lighthouse.
    """

    def __init__(
        self,
        name: str,
        lighthouse: str,
        bind: str,
        host: str,
        store: str,
        heartbeat: float,
        patience: float,
    ):
        """`heartbeat` seconds between signs of life; `patience` for the Lighthouse to be there."""
        self._name, self._lighthouse = name, f"http://{lighthouse}"
        self._bind, self._host, self._store, self._heartbeat = (
            bind,
            host,
            store,
            timedelta(seconds=heartbeat),
        )
        self._last: tuple[int, tuple[str, ...]] = (0, ())
        self.replaced = False
        self._join(patience)

    def _join(self, patience: float) -> None:
        give_up = time.monotonic() + patience
        while not _lives(self._lighthouse, self._name):
            if time.monotonic() > give_up:
                raise LaconicError(
                    f"no Lighthouse answers at {self._lighthouse}: start it, or check the address."
                )
            time.sleep(PAUSE)
        self._server = ManagerServer(
            replica_id=self._name,
            lighthouse_addr=self._lighthouse,
            hostname=self._host,
            bind=with_port(self._bind, 0),
            store_addr=self._store,
            world_size=1,
            heartbeat_interval=self._heartbeat,
            connect_timeout=CONNECT,
            quorum_retries=0,
        )
        self._client = LighthouseClient(self._lighthouse, CONNECT)

    def ask(self, step: int, card: str, timeout: float, lost: float) -> list[str] | None:
        """Show a card; everyone's cards as soon as all are there, or None if there was no answer.

        A machine that loses its power breaks no connection. So the question is asked on a thread
        while this one looks whether the Lighthouse still lives; asking anew just in case would
        leave the first question standing there, for others to take for a member. `lost`: seconds to
        wait for a dead one to come back.
        """
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._ask, args=(step, card, timeout, answers), daemon=True).start()
        while True:
            try:
                answer = answers.get(timeout=LOOK)
            except queue.Empty:
                if _lives(self._lighthouse, self._name):
                    continue
                answer = RuntimeError()
            if isinstance(answer, RuntimeError):
                self._server.shutdown()
                self._join(lost)
                return None
            if isinstance(answer, TimeoutError):
                return None
            if isinstance(answer, Exception):
                raise answer
            self._compare(
                answer.quorum_id, tuple(sorted(member.replica_id for member in answer.participants))
            )
            return [_card(member.data) for member in answer.participants]

    def _ask(self, step: int, card: str, timeout: float, answers: "queue.SimpleQueue[Any]") -> None:
        try:
            limit, store = timedelta(seconds=timeout), self._store
            answers.put(
                self._client.quorum(
                    self._name, limit, store_address=store, step=step, data={"card": card}
                )
            )
        except Exception as error:  # handed to the one who waits
            answers.put(error)

    def _compare(self, number: int, replicas: tuple[str, ...]) -> None:
        """One Lighthouse counts upwards, with every change of members."""
        last, self._last = self._last, (number, replicas)
        self.replaced = number < last[0] or (number == last[0] and replicas != last[1])

    def close(self) -> None:
        """No more signs of life."""
        self._server.shutdown()


def _card(data: Any) -> str:
    """What a member shows; a stranger may have brought anything."""
    card = data.get("card") if isinstance(data, dict) else None
    return card if isinstance(card, str) else ""


def _lives(lighthouse: str, name: str) -> bool:
    limit = timedelta(seconds=1)
    try:
        LighthouseClient(lighthouse, limit).heartbeat(name, limit)
    except (RuntimeError, TimeoutError):
        return False
    return True
