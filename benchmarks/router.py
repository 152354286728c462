"""A network of namespaces on this machine, connected by a router in user space that delays, loses,
slows or cuts what goes over it.

Each namespace has one TUN device; the router reads every packet that leaves one and writes it to
the one it is meant for, by rules for each pair and direction. The kernel's netem is not needed.
Needs root, /dev/net/tun and `ip`; without them it says so and does nothing.
"""

import ctypes
import errno
import fcntl
import heapq
import json
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
DEVICE, NET = "tun0", "10.78.0"
QUEUE = 0.25  # seconds that a packet may wait on a slow link before it is dropped
PACKET, BURST = 65536, 64

Pair = tuple[int, int]


@dataclass(frozen=True)
class Rule:
    """What a link does to packets in one direction.

    delay: seconds · loss: the share that is lost · rate: bits a second, 0: any
    cut: nothing passes
    """

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    cut: bool = False


PERFECT = Rule()
Rules = Mapping[Pair, Rule]


def between(left: Iterable[int], right: Iterable[int], rule: Rule) -> dict[Pair, Rule]:
    """The same rule from all on the left to all on the right, and back."""
    found = one_way(left := list(left), right := list(right), rule)
    return found | one_way(right, left, rule)


def one_way(left: Iterable[int], right: Iterable[int], rule: Rule) -> dict[Pair, Rule]:
    """The same rule from all on the left to all on the right."""
    right = list(right)
    return {(i, j): rule for i in left for j in right if i != j}


class Links:
    """Decides about each packet; counts what passed and what was dropped, by pair."""

    def __init__(self, rules: Rules, seed: int = 0):
        self._random = random.Random(seed)
        self._free: dict[Pair, float] = {}
        self.passed: Counter[Pair] = Counter()
        self.dropped: Counter[Pair] = Counter()
        self.rules = dict(rules)

    def due(self, pair: Pair, size: int, now: float) -> float | None:
        """When a packet of `size` bytes arrives; None if it never does."""
        rule = self.rules.get(pair, PERFECT)
        if rule.cut or (rule.loss and self._random.random() < rule.loss):
            self.dropped[pair] += 1
            return None
        sent = now
        if rule.rate:
            begin = max(now, self._free.get(pair, now))
            if begin - now > QUEUE:
                self.dropped[pair] += 1
                return None
            sent = self._free[pair] = begin + 8 * size / rule.rate
        self.passed[pair] += 1
        return sent + rule.delay

    def counts(self) -> dict[str, int]:
        """All pairs together."""
        return {"passed": self.passed.total(), "dropped": self.dropped.total()}


class Router:
    """Moves packets between file descriptors, each with the IPv4 address of who is behind it."""

    def __init__(
        self,
        ports: Mapping[str, int],
        links: Links,
        clock: Callable[[], float] = time.monotonic,
    ):
        """The place of a port in `ports` is its number in the rules."""
        self._fds = list(ports.values())
        self._numbers = {socket.inet_aton(address): i for i, address in enumerate(ports)}
        self._links = links
        self._clock = clock
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._turn = 0

    def take(self, source: int) -> None:
        """Read what has come to a port."""
        for _ in range(BURST):
            try:
                packet = os.read(self._fds[source], PACKET)
            except BlockingIOError:
                return
            target = self._numbers.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is None:
                continue
            due = self._links.due((source, target), len(packet), self._clock())
            if due is not None:
                self._turn += 1
                heapq.heappush(self._waiting, (due, self._turn, target, packet))

    def deliver(self) -> float | None:
        """Write what is due → seconds until the next is, None if nothing waits."""
        while self._waiting and self._waiting[0][0] <= self._clock():
            _, _, target, packet = heapq.heappop(self._waiting)
            try:
                os.write(self._fds[target], packet)
            except OSError as error:  # a full queue drops packets, as in any network
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.EIO):
                    raise
        return max(0.0, self._waiting[0][0] - self._clock()) if self._waiting else None

    def serve(self, control: int, heard: Callable[[bytes], bool]) -> None:
        """Route until `heard`, which gets each line that comes on `control`, says False."""
        with selectors.DefaultSelector() as selector:
            selector.register(control, selectors.EVENT_READ, None)
            for number, fd in enumerate(self._fds):
                selector.register(fd, selectors.EVENT_READ, number)
            while True:
                for key, _ in selector.select(self.deliver()):
                    if key.data is not None:
                        self.take(key.data)
                    elif not heard(os.read(control, PACKET)):
                        return


# --- the router as a process ----------------------------------------------------------------------


def open_tun(namespace: str) -> int:
    """A TUN device inside a namespace; it stays there, the file descriptor is ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        _check(libc.setns(there, CLONE_NEWNET))
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        return fd
    finally:
        _check(libc.setns(own, CLONE_NEWNET))
        os.close(own)
        os.close(there)


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(words: Sequence[str]) -> None:
    """Route between namespaces (name=address …); each line on stdin is a new set of rules."""
    named = dict(word.split("=") for word in words)
    ports = {address: open_tun(name) for name, address in named.items()}
    links = Links({})

    def heard(text: bytes) -> bool:
        for line in text.splitlines():
            links.rules = {(i, j): Rule(**rule) for i, j, rule in json.loads(line)}
            print(json.dumps(links.counts()), flush=True)
        return bool(text)

    print("ready", flush=True)
    Router(ports, links).serve(0, heard)


# --- namespaces -----------------------------------------------------------------------------------


class Namespaces:
    """`count` namespaces that reach each other through the router alone; a context manager that
    ends whatever still runs in them."""

    def __init__(self, count: int, packet: int = 1500):
        """`packet` bytes are the most that one packet holds."""
        self._packet = packet
        self.names = [f"laconic-{os.getpid()}-{k}" for k in range(count)]
        self.addresses = [f"{NET}.{k + 1}" for k in range(count)]
        self._made: list[str] = []
        self._router: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        require_namespaces()
        try:
            for name in self.names:
                _ip("netns", "add", name)
                self._made.append(name)
            self._start_router()
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
                _ip("-n", name, "link", "set", DEVICE, "mtu", str(self._packet), "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_router(self) -> None:
        pairs = zip(self.names, self.addresses, strict=True)
        command = [sys.executable, __file__, *(f"{name}={address}" for name, address in pairs)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._router = subprocess.Popen(command, **pipes)
        if self._answer() != "ready":
            raise SystemExit("the router did not start: see its error above.")

    def _answer(self) -> str:
        assert self._router is not None
        assert self._router.stdout is not None
        return self._router.stdout.readline().strip()

    def rule(self, rules: Rules) -> dict[str, int]:
        """Put rules in the place of those before → what was passed and dropped so far."""
        assert self._router is not None
        assert self._router.stdin is not None
        said = [(i, j, asdict(rule)) for (i, j), rule in rules.items()]
        self._router.stdin.write(json.dumps(said) + "\n")
        self._router.stdin.flush()
        return json.loads(self._answer())

    def start(self, number: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """A process inside a namespace."""
        within = ["ip", "netns", "exec", self.names[number]]
        return subprocess.Popen([*within, *command], **options)

    def __exit__(self, *exc: object) -> None:
        if self._router is not None:
            assert self._router.stdin is not None
            assert self._router.stdout is not None
            self._router.stdin.close()
            self._router.wait(10)
            self._router.stdout.close()
        for name in self._made:
            for pid in _ip("netns", "pids", name).split():
                os.kill(int(pid), 9)
            _ip("netns", "del", name)


def require_namespaces() -> None:
    """End with one line unless namespaces and TUN devices can be had."""
    reasons = []
    if os.geteuid() != 0:
        reasons.append("this is not root")
    if not Path("/dev/net/tun").exists():
        reasons.append("there is no /dev/net/tun")
    if shutil.which("ip") is None:
        reasons.append("the program ip (iproute2) is not installed")
    if reasons:
        raise SystemExit(
            f"error: the network scenarios need namespaces, but {' and '.join(reasons)}. Run them "
            "as root on Linux with iproute2 and the tun module; nothing was run."
        )


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise SystemExit(
            f"error: `ip {' '.join(words)}` failed ({done.stderr.strip()}): the network scenarios "
            "need a kernel and a container that allow network namespaces; nothing was run."
        )
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
