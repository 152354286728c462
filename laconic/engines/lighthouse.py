"""A torchft Lighthouse as a process of its own: `python -m laconic.engines.lighthouse --bind
127.0.0.1:29510`.

It only says who is alive. Losing it stops new quorums until it is back at the same address; no
state is lost with it.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from laconic.engines.lifeline import end_with_stdin

LINGER = 3.0  # seconds for the workers to end their round
os.environ.setdefault("RUST_LOG", "error")


def serve(
    bind: str, heartbeat_timeout: float = 5.0, join_timeout: float = 600.0, min_workers: int = 1
) -> object:
    """Start one in this process and keep the returned object: it serves as long as that lives.

    heartbeat_timeout: seconds of silence after which a worker is taken for dead
    join_timeout: seconds to wait for workers that are alive but not finished with their local steps
    """
    from torchft.coordination import LighthouseServer  # pyright: ignore[reportMissingImports]

    return LighthouseServer(
        bind=bind,
        min_replicas=min_workers,
        join_timeout_ms=int(1000 * join_timeout),
        quorum_tick_ms=10,
        heartbeat_timeout_ms=int(1000 * heartbeat_timeout),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(
        description="who is alive: the membership service of the torchft engine"
    )
    parser.add_argument("--bind", default="127.0.0.1:29510", help="address to listen on")
    parser.add_argument(
        "--heartbeat-timeout", type=float, default=5.0, help="seconds of silence that mean death"
    )
    parser.add_argument(
        "--join-timeout", type=float, default=600.0, help="seconds to wait for slow workers"
    )
    parser.add_argument(
        "--min-workers", type=int, default=1, help="fewest workers that make a quorum"
    )
    parser.add_argument("--until-eof", action="store_true", help="leave when standard input ends")
    options = parser.parse_args(arguments)
    if options.until_eof:
        end_with_stdin(after=LINGER)
    server = serve(
        options.bind, options.heartbeat_timeout, options.join_timeout, options.min_workers
    )
    sys.stdout.write(f"lighthouse at {options.bind}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    del server


if __name__ == "__main__":
    main()
