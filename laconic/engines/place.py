"""Which worker this process is, where SLURM or torchrun started it: told by environment variables.

torchrun: RANK of WORLD_SIZE; all meet at MASTER_ADDR, one port after MASTER_PORT, which torchrun
listens on itself.

SLURM (srun): SLURM_PROCID of SLURM_STEP_NUM_TASKS, or of SLURM_NTASKS where that is missing. All
meet at the first host of SLURM_STEP_NODELIST, else of SLURM_JOB_NODELIST, else at
SLURM_LAUNCH_NODE_IPADDR, at a port made of SLURM_JOB_ID; MASTER_ADDR and MASTER_PORT go before
these. Where torchrun itself runs under SLURM (it sets TORCHELASTIC_RUN_ID), what torchrun says
counts.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from laconic.errors import LaconicError

RANKS, MASTER = ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")
SLURM = (
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
)
HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_LAUNCH_NODE_IPADDR")
FIRST_PORT, PORTS = 15000, 15000  # below what systems hand out by themselves
LAST_PORT = 65535


class Place(NamedTuple):
    """Worker number `worker` of `workers`, who meet at `host`:`port`, where worker 0 is; `source`
    said so."""

    worker: int
    workers: int
    host: str
    port: int
    source: str


def place_of(environment: Mapping[str, str]) -> Place | None:
    """The place that the environment gives this process; None if it says nothing.

    Variables that are there in part, are no numbers, or contradict each other are an error: a
    worker that took the wrong place would train in somebody else's stead.
    """
    given = {name: value for name, value in environment.items() if value}
    slurm = _slurm(given) if any(name in given for name in SLURM) else None
    torchrun = _torchrun(given) if any(name in given for name in RANKS) else None
    if slurm is None and torchrun is None and any(name in given for name in MASTER):
        raise _half(given, (*RANKS, *MASTER), "torchrun")
    if (
        slurm is not None
        and torchrun is not None
        and "TORCHELASTIC_RUN_ID" not in given
        and slurm[:2] != torchrun[:2]
    ):
        raise LaconicError(
            f"SLURM says this is worker {slurm.worker} of {slurm.workers} (SLURM_PROCID, "
            "SLURM_NTASKS), and RANK and "
            f"WORLD_SIZE say {torchrun.worker} of {torchrun.workers}: unset one of them, or give "
            "--join and --worker."
        )
    return torchrun or slurm


def _torchrun(given: Mapping[str, str]) -> Place:
    if any(name not in given for name in (*RANKS, *MASTER)):
        raise _half(given, (*RANKS, *MASTER), "torchrun")
    port = _whole(given, "MASTER_PORT") + 1
    return _checked(
        Place(
            _whole(given, "RANK"),
            _whole(given, "WORLD_SIZE"),
            given["MASTER_ADDR"],
            port,
            "torchrun",
        ),
        "RANK",
    )


def _slurm(given: Mapping[str, str]) -> Place:
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in given else "SLURM_NTASKS"
    hosts = next((name for name in HOSTS if name in given), HOSTS[1])
    needed = ("SLURM_PROCID", tasks, *(() if "MASTER_ADDR" in given else (hosts,)))
    needed += () if "MASTER_PORT" in given else ("SLURM_JOB_ID",)
    if any(name not in given for name in needed):
        raise _half(given, needed, "srun")
    host = given["MASTER_ADDR"] if "MASTER_ADDR" in given else first_host(given[hosts])
    chosen = "MASTER_PORT" in given
    port = (
        _whole(given, "MASTER_PORT")
        if chosen
        else FIRST_PORT + _whole(given, "SLURM_JOB_ID") % PORTS
    )
    return _checked(
        Place(_whole(given, "SLURM_PROCID"), _whole(given, tasks), host, port, "SLURM"),
        "SLURM_PROCID",
    )


def first_host(nodes: str) -> str:
    """The first name in SLURM's short form of a list: "gpu[07-09,12],cpu1" begins with gpu07."""
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+(?=,|$)", nodes)
    host = re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""
    if not re.fullmatch(r"[\w.:-]+", host):
        raise LaconicError(
            f"the first host of SLURM's list {nodes!r} cannot be told: set MASTER_ADDR to its name."
        )
    return host


def _half(given: Mapping[str, str], needed: tuple[str, ...], starter: str) -> LaconicError:
    there, missing = ([n for n in needed if (n in given) == here] for here in (True, False))
    return LaconicError(
        f"the environment sets {', '.join(there) or 'some of these variables'} but not "
        f"{', '.join(missing)}: start the "
        f"workers with {starter}, which sets all of them, or give --join and --worker."
    )


def _whole(given: Mapping[str, str], name: str) -> int:
    text = given[name]
    if not (text.isascii() and text.isdigit()):
        raise LaconicError(f"{name} must be a whole number, got {text!r}.")
    return int(text)


def _checked(place: Place, name: str) -> Place:
    if place.worker >= place.workers:
        raise LaconicError(
            f"{name} is {place.worker}, but there are only {place.workers} workers, counted from 0."
        )
    if not 0 < place.port <= LAST_PORT:
        raise LaconicError(
            f"the workers would meet at port {place.port}, which is none: set another MASTER_PORT."
        )
    return place
