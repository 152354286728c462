"""Which of this machine's NVIDIA GPUs each worker of a launch sees.

A JAX process takes memory on every GPU that it sees, so each is shown its own by
CUDA_VISIBLE_DEVICES. Other accelerators are not handed out.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from laconic.engines.devices import Devices, check_devices
from laconic.engines.machine import local_devices
from laconic.errors import LaconicError
from laconic.show.table import plural

VISIBLE, PLATFORMS = "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"
NODES = Path("/dev")
OTHERS = ("kfd", "accel", "vfio")  # what AMD's GPUs and TPUs are called under /dev


def gpus_here(environment: Mapping[str, str], nodes: Path = NODES) -> list[str]:
    """The GPUs that a process with this environment would see, as CUDA_VISIBLE_DEVICES names them;
    CUDA itself is not asked, as that would take memory."""
    platforms = environment.get(PLATFORMS, "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return []
    if VISIBLE not in environment:
        found = [node for node in nodes.glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name)]
        return [str(number) for number in range(len(found))]
    named = [word.strip() for word in environment[VISIBLE].split(",")]
    known = [bool(word) and not word.startswith("-") for word in named]
    return named[: known.index(False)] if False in known else named  # CUDA stops there as well


def only_cpu(environment: Mapping[str, str], nodes: Path = NODES) -> bool:
    """Whether a process with this environment computes on a CPU, as far as one can see."""
    if environment.get(PLATFORMS):
        return environment[PLATFORMS] == "cpu"
    others = any(node.name.startswith(OTHERS) for node in nodes.glob("*"))
    return not others and not gpus_here(environment, nodes)


def shares(gpus: Sequence[str], workers: int, devices: Devices) -> list[list[str]]:
    """The GPUs of each worker; one GPU each is shared where there are too few."""
    here = plural(len(gpus), "GPU")
    if devices == "all":
        devices, rest = divmod(len(gpus), workers)
        if rest:
            raise LaconicError(
                f"{here} of this machine cannot be divided evenly over {workers} workers: say how "
                "many each gets with --devices N."
            )
    if devices == 1:
        return [[gpus[k % len(gpus)]] for k in range(workers)]
    if workers * devices > len(gpus):
        raise LaconicError(
            f"{workers} workers with {devices} devices each need {workers * devices} GPUs, and "
            f"this machine has {here}: ask for fewer --devices, or start fewer workers --here."
        )
    return [list(gpus[k * devices : (k + 1) * devices]) for k in range(workers)]


def told(shares: Sequence[Sequence[str]]) -> str:
    """Who gets which, in words."""
    seen = {}
    for k, own in enumerate(shares):
        seen.setdefault(tuple(own), []).append(str(k))
    parts = []
    for own, workers in seen.items():
        who = f"worker {workers[0]}" if len(workers) == 1 else f"workers {', '.join(workers)}"
        parts.append(f"{who} on GPU{'' if len(own) == 1 else 's'} {', '.join(own)}")
    return "; ".join(parts)


def hand_out(
    devices: Devices, batch: int, workers: int, environment: Mapping[str, str]
) -> tuple[Devices, list[list[str]]]:
    """How many devices each of this machine's workers uses, and the GPUs each sees, if there are
    any; what cannot be is refused before a worker starts."""
    gpus = gpus_here(environment)
    if gpus:
        found = shares(gpus, workers, devices)
        check_devices(len(found[0]), batch)
        return len(found[0]), found
    if only_cpu(environment):
        local_devices(devices, batch)
    return devices, []
