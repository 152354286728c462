"""How long a run takes and how much memory it needs, told before it has taken two minutes.

Time is measured on the run itself: one round is tried where the first look would be long in coming,
else the first rounds are extrapolated. Memory is what XLA says of the compiled program, and what
does not fit is refused before it is started. Nothing here changes what a run computes.
"""

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from laconic.client import gradient_client
from laconic.errors import CannotBegin, LaconicError
from laconic.meta.train import Call, compile_all
from laconic.runs.folder import Observer
from laconic.runs.measure import one_item
from laconic.show.table import duration, plural
from laconic.tasks.base import Task

if TYPE_CHECKING:
    from laconic.runs.simulate import Simulation

LONG = 120.0  # seconds: what takes less begins without a word
WAIT = 10.0  # seconds of work before the first look from which on one round is tried first
ENOUGH = 3.0  # seconds of running that are extrapolated
SHORT = 60.0  # seconds that the smaller setting offered is to take
RATES = {"cpu": 1e10, "gpu": 1e13}  # operations a second, roughly; of a CPU for each core
FEWEST = {"rounds": 10}  # what a smaller setting has at least
DEAREST = 10.0  # how much more than the first a method of a comparison may cost
OUTER = 10_000  # more operations a parameter than any outer optimizer takes
MEMORY = "LACONIC_MEMORY"  # how many GB a run may take, if not what is free


class TooLarge(CannotBegin):
    """A program needs more memory than there is."""


Trial = Callable[[], tuple[float, float]]  # tries a round → its seconds, and those of a look


class Program(NamedTuple):
    """A compiled program: the seconds that compiling took, the bytes that a process takes when it
    runs, and how many of these are new."""

    compiling: float
    memory: int
    fresh: int = 0


NOT_YET = Program(0.0, 0)


def compiled(function: Any, *arguments: Any, **static: Any) -> Program:
    """Compile a jitted function, which is not compiled again when it is called like this.

    Raises `TooLarge` if it does not fit in the memory of this machine; of a GPU, XLA says so.
    """
    began = time.monotonic()
    sizes = function.lower(*arguments, **static).compile().memory_analysis()
    return _program(time.monotonic() - began, sizes)


def compiled_all(calls: Sequence[Call]) -> Program:
    """The same for several jitted functions, compiled at the same time and run one after the
    other."""
    began = time.monotonic()
    sizes = [program.memory_analysis() for program in compile_all(calls)]
    seconds = time.monotonic() - began
    each = [_program(seconds, x) for x in sizes]
    return Program(seconds, max(x.memory for x in each), max(x.fresh for x in each))


def _program(seconds: float, sizes: Any) -> Program:
    """A program of these sizes, as XLA gives them; on a CPU, `TooLarge` if memory is too small."""
    if sizes is None:
        return Program(seconds, 0)
    fresh = sizes.output_size_in_bytes + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes
    if jax.default_backend() != "cpu":
        return Program(seconds, sizes.argument_size_in_bytes + fresh, fresh)
    free = free_memory()
    if free is not None and fresh > free:
        raise TooLarge(
            f"{sized(fresh)} of memory are needed and {sized(free)} are free; "
            f"{MEMORY}=N lets a run take N GB"
        )
    return Program(seconds, _resident() + fresh, fresh)


def seconds_of(function: Any, *arguments: Any, **static: Any) -> float:
    """How long a compiled function takes; what it gives is not kept."""
    began = time.monotonic()
    jax.block_until_ready(function(*arguments, **static))
    return time.monotonic() - began


# --- this machine ---------------------------------------------------------------------------------


def machine() -> str:
    """What computes, in words."""
    if jax.default_backend() == "cpu":
        return plural(_cores(), "CPU core")
    return plural(jax.local_device_count(), jax.devices()[0].device_kind)


def free_memory() -> int | None:
    """The bytes that this process may still take; None if nobody knows."""
    given = os.environ.get(MEMORY)
    if given:
        try:
            limit = float(given) * 1e9
        except ValueError:
            limit = -1.0
        if not limit > 0:
            raise LaconicError(f"{MEMORY} must be a positive number of GB, got {given!r}.")
        return int(limit) - _resident()
    fields = _fields("/proc/meminfo")
    if "MemAvailable" not in fields:
        return None
    free = 1024 * (fields["MemAvailable"] + fields.get("SwapFree", 0))
    group = Path("/sys/fs/cgroup")  # of a container, which /proc/meminfo ignores
    try:
        limit, used = (int((group / f"memory.{what}").read_text()) for what in ("max", "current"))
    except (OSError, ValueError):  # no such limit
        return free
    return min(free, limit - used + _fields(group / "memory.stat").get("inactive_file", 0))


def _resident() -> int:
    return 1024 * _fields("/proc/self/status").get("VmRSS", 0)


def _fields(path: str | Path) -> dict[str, int]:
    """The lines `name: number` of a file of the kernel; none if there is no such file."""
    try:
        lines = [line.replace(":", " ").split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sized(size: float) -> str:
    """Bytes as MB or GB."""
    if size < 0.995e9:
        return f"{max(size, 0) / 1e6:.0f} MB"
    return f"{size / 1e9:.1f} GB" if size < 99.5e9 else f"{size / 1e9:,.0f} GB"


# --- counted work ---------------------------------------------------------------------------------


def operations(lowered: Any) -> float:
    """The floating-point operations of a program as XLA counts them: a loop's body once."""
    found = lowered.cost_analysis() or {}
    return max(1.0, float(found.get("flops", 0.0)))


def step_operations(task: Task, batch: int) -> float:
    """The floating-point operations of one local step."""

    def gradient(task: Task, item: Any, params: Any, model_state: Any) -> Any:
        batch = task.feed.take(item)
        return jax.grad(task.loss, has_aux=True)(params, model_state, batch, jax.random.key(0))

    shared = jax.eval_shape(task.init, jax.random.key(0))
    item = jax.eval_shape(lambda task: one_item(task, batch), task)
    return operations(jax.jit(gradient).lower(task, item, *shared))


def is_slow(work: float) -> bool:
    """Whether so many operations take so long that one round is tried first."""
    cores = _cores() if jax.default_backend() == "cpu" else 1
    return work > WAIT * RATES.get(jax.default_backend(), RATES["gpu"]) * cores


# --- what is told ---------------------------------------------------------------------------------


@dataclass
class Forecast:
    """Tells an observer once how long a run takes, if that is over two minutes.

    Args:
        observer: who is told.
        command: what the run was started with.
        sizes: settings that its time grows with, in the order in which to lower them; none if
            --minutes ends it.
    """

    observer: Observer
    command: str
    sizes: Mapping[str, int]
    told: bool = False

    def tell(self, seconds: float, memory: int, once: float = 0.0) -> None:
        """It takes so many seconds, and `once` more for compiling."""
        if self.told:
            return
        self.told = True
        if seconds + once > LONG:
            flags, fewer = smaller(seconds, once, self.sizes)
            self._say(seconds + once, memory, flags, fewer)

    def _say(self, seconds: float, memory: int, flags: Mapping[str, Any], fewer: float) -> None:
        """The note itself, with flags that make it take about `fewer` seconds."""
        needs = f", {sized(memory)} of memory" if memory else ""
        self.observer.note(
            f"this takes about {duration(seconds)} on this machine ({machine()}){needs}. "
            f"About {duration(fewer)}: {changed(self.command, flags)}"
        )


@dataclass
class Timing:
    """Times something until that has taken long enough to be extrapolated."""

    count: int = 0
    seconds: float = 0.0

    def enough(self, count: int, seconds: float) -> bool:
        """So many more took so long → whether `each` can be relied on."""
        self.count += count
        self.seconds += seconds
        return self.seconds >= ENOUGH

    @property
    def each(self) -> float:
        """Seconds of one."""
        return self.seconds / self.count


@dataclass
class Outlook:
    """Makes a forecast once, from the first rounds of a run.

    Args:
        forecast: what tells it.
        work: gives the operations before the first look at the run.
        whole: (rounds done, seconds of a round, seconds of a look) → seconds that are left.
        programs: how many are compiled, one after the other.
    """

    forecast: Forecast
    work: Callable[[], float]
    whole: Callable[[int, float, float], float]
    programs: int = 1
    done: int = 0
    program: Program = NOT_YET
    timing: Timing | None = None

    def ready(self, done: int, program: Program, trial: Trial) -> None:
        """A program is compiled, to go on after `done` rounds; one is tried if the first look is
        long in coming."""
        if not self.forecast.told:
            self.done, self.program = done, program
            if is_slow(self.work()):
                self._tell(*trial())

    def took(self, rounds: int, seconds: float, last: bool = False) -> None:
        """Some rounds took so long; compiling is included in the first.

        The first are slower than others, so they count only if they are long, or the last.
        """
        if self.forecast.told:
            return
        if self.timing is None:
            seconds = max(0.0, seconds - self.program.compiling)
            self.timing = Timing()
            if not last and seconds < ENOUGH:
                return
        if self.timing.enough(rounds, seconds) or last:
            self._tell(self.timing.each, 0.0)

    def _tell(self, per_round: float, per_look: float) -> None:
        seconds = self.whole(self.done, per_round, per_look)
        self.forecast.tell(seconds, self.program.memory, self.program.compiling * self.programs)


def of_methods(forecast: Forecast, remaining: "Sequence[Simulation]") -> Outlook:
    """The outlook of a comparison: methods are as fast as the first by their counted operations."""
    first, *others = remaining
    setting = first.setting
    T = setting.rounds

    def work() -> float:
        steps = len(setting.seeds) * first.K * first.H * min(setting.evaluate_every, T)
        return steps * step_operations(first.task, setting.batch)

    def whole(done: int, per_round: float, per_look: float) -> float:
        each = T * per_round + len(setting.chunks) * per_look
        left = each * (T - done) / T
        if not others or left + DEAREST * each * len(others) < LONG / 2:
            return left + each * len(others)
        if alike(remaining):  # counting would trace every program
            return left + each * len(others)
        own = first.operations()
        return left + sum(each * other.operations() / own for other in others)

    return Outlook(forecast, work, whole, len(remaining))


def alike(simulations: "Sequence[Simulation]") -> bool:
    """Whether methods are about equally fast: nearly all they compute is as many local steps."""
    first = simulations[0]
    if any((other.K, other.H) != (first.K, first.H) for other in simulations):
        return False
    if len({other.method.client is gradient_client for other in simulations}) > 1:
        return False
    local = first.K * first.H * step_operations(first.task, first.setting.batch)
    params = jax.eval_shape(first.task.init, jax.random.key(0))[0]
    return local > DEAREST * OUTER * sum(leaf.size for leaf in jax.tree.leaves(params))


def smaller(seconds: float, once: float, sizes: Mapping[str, int]) -> tuple[dict[str, int], float]:
    """Lower sizes, one after the other, until a run takes about a minute → (flags, seconds); what
    is spent `once` stays."""
    if not sizes:
        minutes = 5 if seconds > 10 * SHORT else 1
        return {"minutes": minutes}, 60.0 * minutes
    found = {}
    for name, value in sizes.items():
        share = SHORT / max(seconds, SHORT)
        least = min(value, FEWEST.get(name, 1))
        fewer = max(least, int(float(f"{share * value:.0e}")))
        if fewer < value:
            found[name] = fewer
            seconds *= fewer / value
    return found, seconds + once


def changed(command: str, flags: Mapping[str, Any]) -> str:
    """A command with other values for some flags, and without the folder that it wrote to."""
    if command.startswith("laconic."):  # a call from Python
        return ", ".join(f"{name}={value!r}" for name, value in flags.items())
    dropped = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    words = without_flags(shlex.split(command), [*dropped, "--out"])
    return shlex.join([*words, *(str(word) for pair in dropped.items() for word in pair)])


def without_flags(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Words without some flags, `--flag value` or `--flag=value`."""
    kept = []
    skip = False
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if skip:
            skip = False
        elif name in flags:
            skip = "=" not in word
        else:
            kept.append(word)
    return kept
