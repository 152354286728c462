"""Network addresses, and which worker this process is where SLURM or torchrun started it.

torchrun: RANK of WORLD_SIZE; all meet at MASTER_ADDR, one port after MASTER_PORT, which torchrun
listens on itself.

SLURM (srun): SLURM_PROCID of SLURM_STEP_NUM_TASKS, or of SLURM_NTASKS where that is missing. All
meet at the first host of SLURM_STEP_NODELIST, else of SLURM_JOB_NODELIST, else at
SLURM_LAUNCH_NODE_IPADDR, at a port made from SLURM_JOB_ID. MASTER_ADDR and MASTER_PORT override
these. Where torchrun itself runs under SLURM (it sets TORCHELASTIC_RUN_ID), torchrun's variables
count.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from laconic.errors import LaconicError

EVERYWHERE = ("0.0.0.0", "::")
SPARE_PORT = 9  # any will do where nothing is sent
ELSEWHERE = "192.0.2.1"  # reserved for documentation: belongs to nobody
LAST_PORT = 65535

RANKS = ("RANK", "WORLD_SIZE")
MASTER = ("MASTER_ADDR", "MASTER_PORT")
SLURM_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
SLURM_HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_LAUNCH_NODE_IPADDR")
SLURM = ("SLURM_PROCID", *SLURM_TASKS, *SLURM_HOSTS[:2])
FIRST_PORT, PORTS = 15000, 15000  # below the range that systems hand out by themselves


def with_port(host: str, port: int) -> str:
    """ "host:port"; a host with colons goes into brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; a host in brackets may hold colons."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > LAST_PORT:
        raise LaconicError(f"{address!r} is not HOST:PORT; write for example 127.0.0.1:29510.")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether the host can be reached from this machine only."""
    return all(ipaddress.ip_address(address).is_loopback for address in _resolved(host))


def facing(host: str) -> str:
    """The address of this machine on the way to `host`; nothing is sent."""
    target = _resolved(host)[0]
    with socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, SPARE_PORT))
        except OSError as error:
            raise LaconicError(f"there is no way from here to {host}: {error.strerror}.") from None
        return probe.getsockname()[0]


def outward() -> str | None:
    """The address of this machine on its way to the internet; None if there is no such way."""
    try:
        return facing(ELSEWHERE)
    except LaconicError:
        return None


def reached_at(bind: str, meeting: str) -> str:
    """Where others reach a process that listens at `bind`; all of them meet at host `meeting`."""
    if bind not in EVERYWHERE:
        return bind
    towards = facing(meeting)
    # a machine's own name often means its loopback to itself
    return outward() or towards if is_loopback(towards) else towards


def free_port(bind: str, port: int) -> int:
    """`port` at the address `bind`, or any free one if it is 0; an error if it cannot be had."""
    if not 0 <= port <= LAST_PORT:
        raise LaconicError(f"a port is a number from 0 (any free one) to 65535, got {port}.")
    address = _resolved(bind)[0]
    try:
        with socket.create_server((address, port), family=_family(address)) as server:
            return server.getsockname()[1]
    except OSError as error:
        hint = "give an address of this machine as --bind"
        if port:
            hint = "give another --port, or 0 for any free one"
        where = with_port(bind, port)
        raise LaconicError(f"cannot listen at {where}: {error.strerror}; {hint}.") from None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _resolved(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LaconicError(
            f"{host!r} is no address that this machine knows ({error}): check its spelling."
        ) from None
    return [str(address[0]).partition("%")[0] for *_, address in found]


# --- SLURM and torchrun ---------------------------------------------------------------------------


class ProcessRank(NamedTuple):
    """Worker `worker` of `workers`, who meet at worker 0's `host`:`port`, according to `source`."""

    worker: int
    workers: int
    host: str
    port: int
    source: str


def rank_from(environment: Mapping[str, str]) -> ProcessRank | None:
    """Which worker the environment says this process is; None if it says nothing.

    Variables that are incomplete, not numbers, or contradictory are an error: a worker with the
    wrong id would train in another worker's stead.
    """
    given = {name: value for name, value in environment.items() if value}
    slurm = _slurm(given) if any(name in given for name in SLURM) else None
    torchrun = _torchrun(given) if any(name in given for name in RANKS) else None
    if slurm is None and torchrun is None and any(name in given for name in MASTER):
        raise _incomplete(given, (*RANKS, *MASTER), "torchrun")
    if slurm and torchrun and "TORCHELASTIC_RUN_ID" not in given and slurm[:2] != torchrun[:2]:
        raise LaconicError(
            f"SLURM says this is worker {slurm.worker} of {slurm.workers} (SLURM_PROCID, "
            f"SLURM_NTASKS), and RANK and WORLD_SIZE say {torchrun.worker} of {torchrun.workers}: "
            "unset one of them, or give --join and --worker."
        )
    return torchrun or slurm


def _torchrun(given: Mapping[str, str]) -> ProcessRank:
    if any(name not in given for name in (*RANKS, *MASTER)):
        raise _incomplete(given, (*RANKS, *MASTER), "torchrun")
    worker, workers = (_whole(given, name) for name in RANKS)
    port = _whole(given, "MASTER_PORT") + 1
    found = ProcessRank(worker, workers, given["MASTER_ADDR"], port, "torchrun")
    return _checked(found, "RANK")


def _slurm(given: Mapping[str, str]) -> ProcessRank:
    tasks = next((name for name in SLURM_TASKS if name in given), SLURM_TASKS[1])
    hosts = next((name for name in SLURM_HOSTS if name in given), SLURM_HOSTS[1])
    needed = ["SLURM_PROCID", tasks]
    if "MASTER_ADDR" not in given:
        needed.append(hosts)
    if "MASTER_PORT" not in given:
        needed.append("SLURM_JOB_ID")
    if any(name not in given for name in needed):
        raise _incomplete(given, needed, "srun")
    host = given["MASTER_ADDR"] if "MASTER_ADDR" in given else first_host(given[hosts])
    if "MASTER_PORT" in given:
        port = _whole(given, "MASTER_PORT")
    else:
        port = FIRST_PORT + _whole(given, "SLURM_JOB_ID") % PORTS
    worker, workers = _whole(given, "SLURM_PROCID"), _whole(given, tasks)
    return _checked(ProcessRank(worker, workers, host, port, "SLURM"), "SLURM_PROCID")


def first_host(nodes: str) -> str:
    """The first name in SLURM's short form of a list: "gpu[07-09,12],cpu1" begins with gpu07."""
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+(?=,|$)", nodes)
    host = re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""
    if not re.fullmatch(r"[\w.:-]+", host):
        raise LaconicError(
            f"the first host of SLURM's list {nodes!r} cannot be told: set MASTER_ADDR to its name."
        )
    return host


def _incomplete(given: Mapping[str, str], needed: Sequence[str], starter: str) -> LaconicError:
    there = [name for name in needed if name in given]
    missing = [name for name in needed if name not in given]
    return LaconicError(
        f"the environment sets {', '.join(there) or 'some of these variables'} but not "
        f"{', '.join(missing)}: start the workers with {starter}, which sets all of them, or give "
        "--join and --worker."
    )


def _whole(given: Mapping[str, str], name: str) -> int:
    text = given[name]
    if not (text.isascii() and text.isdigit()):
        raise LaconicError(f"{name} must be a whole number, got {text!r}.")
    return int(text)


def _checked(rank: ProcessRank, name: str) -> ProcessRank:
    if rank.worker >= rank.workers:
        raise LaconicError(
            f"{name} is {rank.worker}, but there are only {rank.workers} workers, counted from 0."
        )
    if not 0 < rank.port <= LAST_PORT:
        raise LaconicError(
            f"the workers would meet at port {rank.port}, which does not exist: set another "
            "MASTER_PORT."
        )
    return rank
