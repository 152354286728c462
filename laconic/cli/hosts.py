"""The flags by which several processes, on one machine or many, join in one command."""

from dataclasses import dataclass

from laconic.engines.address import is_loopback
from laconic.engines.jax_distributed import join
from laconic.errors import LaconicError


@dataclass(frozen=True)
class Hosts:
    """Train with several processes: start the same command in each, with --process 0, 1, …."""

    coordinator: str | None = None
    """HOST:PORT of process 0, where all of them meet."""
    processes: int | None = None
    """How many processes there are; --devices counts those of all of them together."""
    process: int | None = None
    """Which one this is, from 0 on. Process 0 shows progress and writes the folder; to --resume,
    all must see it."""

    def join(self) -> bool:
        """Meet the others, if there are any → whether this process is the one that speaks."""
        if self == Hosts():
            return True
        if self.coordinator is None or self.processes is None or self.process is None:
            raise LaconicError(
                "--coordinator, --processes and --process belong together: give all three, or none."
            )
        if not 0 <= self.process < self.processes:
            raise LaconicError(
                f"--process counts from 0 to {self.processes - 1} here, got {self.process}."
            )
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise LaconicError(
                f"--coordinator is HOST:PORT, as in 10.0.0.1:1234, got {self.coordinator!r}."
            )
        # who names a machine that others can reach asks for it to be reached; its name may mean
        # something else there
        join(self.coordinator, self.processes, self.process, bind="" if is_loopback(host) else "::")
        return self.process == 0
