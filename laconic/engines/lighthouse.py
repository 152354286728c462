# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""torchft's Lighthouse, which says who is alive: as a process, and one worker's link to it.

    python -m laconic.engines.lighthouse --bind 127.0.0.1:29510

It holds no state. Losing it stops new quorums until it is back at the same address.
"""

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from laconic.engines.address import with_port
from laconic.engines.supervisor import end_with_stdin
from laconic.errors import LaconicError

os.environ.setdefault("RUST_LOG", "error")  # torchft's own log tells every quorum in full
try:
    from torchft.coordination import LighthouseClient, LighthouseServer, ManagerServer
except ImportError as error:
    raise LaconicError(
        f"this engine needs torchft ({error}): pip install 'laconic[torchft]'."
    ) from error

LINGER = 3.0  # seconds for the workers to end their round
LOOK = 0.2  # seconds between looks at a Lighthouse that is silent
PAUSE = 0.02  # seconds between looks at one that is down
CONNECT = timedelta(seconds=5)


def serve(bind: str, heartbeat_timeout: float = 5.0, join_timeout: float = 600.0) -> object:
    """Start a Lighthouse in this process and keep the returned object: it serves while that lives.

    heartbeat_timeout: seconds of silence after which a worker counts as dead
    join_timeout: seconds to wait for workers that are alive but not finished with their local steps
    """
    return LighthouseServer(
        bind=bind,
        min_replicas=1,
        join_timeout_ms=int(1000 * join_timeout),
        quorum_tick_ms=10,
        heartbeat_timeout_ms=int(1000 * heartbeat_timeout),
    )


class LighthouseLink:
    """One worker's link: a torchft manager sends its heartbeats, and `ask` finds who else is there.

    The manager could ask too, but it would wait in vain for a Lighthouse that died; asked directly,
    the broken connection shows at once. `replaced`: whether the last answer came from another
    Lighthouse than the one before.
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
        self._name = name
        self._lighthouse = f"http://{lighthouse}"
        self._bind = bind
        self._host = host
        self._store = store
        self._heartbeat = timedelta(seconds=heartbeat)
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
        wait for a dead Lighthouse to come back.
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
            replicas = tuple(sorted(member.replica_id for member in answer.participants))
            self._compare(answer.quorum_id, replicas)
            return [_card(member.data) for member in answer.participants]

    def _ask(self, step: int, card: str, timeout: float, answers: "queue.SimpleQueue[Any]") -> None:
        limit, about = timedelta(seconds=timeout), {"step": step, "data": {"card": card}}
        try:
            answers.put(self._client.quorum(self._name, limit, store_address=self._store, **about))
        except Exception as error:  # raised by the thread that waits
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description="the membership service of the torchft engine")
    option = parser.add_argument
    option("--bind", default="127.0.0.1:29510", help="address to listen on")
    option("--heartbeat-timeout", type=float, default=5.0, help="seconds of silence: it is dead")
    option("--join-timeout", type=float, default=600.0, help="seconds to wait for slow workers")
    option("--until-eof", action="store_true", help="leave when standard input ends")
    options = parser.parse_args(arguments)
    if options.until_eof:
        end_with_stdin(after=LINGER)
    server = serve(options.bind, options.heartbeat_timeout, options.join_timeout)
    sys.stdout.write(f"lighthouse at {options.bind}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    del server


if __name__ == "__main__":
    main()
