"""How many devices a process uses, as a flag says it. Light: no JAX is imported."""

from typing import Literal

from laconic.errors import LaconicError

Devices = int | Literal["all"]


def check_divides(examples: int, devices: int) -> None:
    """Raise unless a minibatch can be split evenly."""
    if examples % devices:
        raise LaconicError(
            f"a minibatch of {examples} examples does not divide over {devices} devices, each of "
            f"which takes the same number: choose --batch a multiple of {devices}, or other "
            "--devices."
        )


def check_devices(devices: Devices, batch: int) -> None:
    """Raise for what cannot be asked of any machine; no device is looked at."""
    if devices == "all":
        return
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise LaconicError(
            f"devices is how many of its devices a process uses, from 1 on, or all of them with "
            f"'all'; got {devices!r}."
        )
    check_divides(batch, devices)
