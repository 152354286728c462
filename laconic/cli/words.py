"""The words of the commands that have recipes, read without JAX: --help and an error in a flag come
at once. A command reads its words again when it runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from laconic.cli.hosts import Hosts
from laconic.cli.terminal import err, say
from laconic.engines.devices import Devices
from laconic.errors import LaconicError, unknown
from laconic.recipes.comparisons import RECIPES
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.recipes.sweeps import SWEEPS, sweeps
from laconic.recipes.trainings import TRAIN_RECIPES
from laconic.runs.configs import CompareConfig, PlanConfig, SweepConfig, Tracker, TrainConfig
from laconic.runs.meta_config import MetaConfig

Config = TypeVar("Config")
Track = Annotated[tuple[Tracker, ...], tyro.conf.UseAppendAction]
Watched = tuple[Config, Sequence[Tracker]]  # what is asked for, and who else watches

COMPARE = "Compare outer optimizers on one task."
SWEEP = "Try a grid of one method's hyper-parameters on one task."
TRAIN = """\
Train one model with K workers and one outer optimizer, all in this process. To train with real
processes instead: laconic launch --workers 4 -- train RECIPE"""
META_TRAIN = "Meta-train a learned optimizer on one task or several."
PLAN = """\
Say what a round costs over a link for each H, compressor and outer optimizer, from exact bits and
from times measured on this machine, and which H to choose. Nothing is trained."""
META_EXAMPLE = "laconic meta-train lopt-a-digits --minutes 5"


@dataclass(frozen=True)
class Tracked(Generic[Config]):
    """What a command is asked for, and apart from that who else watches."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    track: Track = ()
    """Where numbers are written as they come: csv (track.csv in the run's folder), tensorboard,
    trackio, wandb; may be given several times."""


@dataclass(frozen=True)
class ResumeConfig:
    """Resume a run."""

    resume: Path
    """The folder of the run."""


@dataclass(frozen=True)
class CompareResumeConfig:
    """Resume a comparison."""

    resume: Path
    """The folder of the run."""
    on_nan: Literal["stop", "continue"] | None = None
    """What to do when a loss is NaN or infinite; by default as the run was begun."""


@dataclass(frozen=True)
class ResumeTrainConfig(ResumeConfig):
    """Resume a training."""

    devices: Devices | None = None
    """Split minibatches over this many devices, or all; by default as many as it was begun with."""


@dataclass(frozen=True)
class MetaResumeConfig:
    """Resume meta-training."""

    resume: Path
    """The folder of the run."""
    minutes: float | None = None
    """Stop cleanly after about this long; by default go on to the end."""
    hosts: tyro.conf.OmitArgPrefixes[Hosts] = field(default_factory=Hosts)


@dataclass(frozen=True)
class MetaBegin:
    """Settings and, apart from them, which processes take part."""

    config: Annotated[MetaConfig, tyro.conf.arg(name="")]
    hosts: tyro.conf.OmitArgPrefixes[Hosts]
    track: Track = ()
    """Where numbers are written as they come: csv (track.csv in the run's folder), tensorboard,
    trackio, wandb; may be given several times."""


def compare_words(argv: Sequence[str]) -> Watched[CompareConfig | CompareResumeConfig]:
    """What the words after `compare` ask for."""
    if wants_resume(argv):
        return resume_words("compare", argv, CompareResumeConfig)
    return recipe_words("compare", argv, CompareConfig(), RECIPES, COMPARE)


def sweep_words(argv: Sequence[str]) -> Watched[SweepConfig | ResumeConfig]:
    """What the words after `sweep` ask for. Outer optimizers of one's own bring recipes along, but
    to find them imports JAX: only --help and a word that is no other recipe ask for them."""
    if wants_resume(argv):
        return resume_words("sweep", argv, ResumeConfig)
    known = SWEEPS if "-h" not in argv and "--help" not in argv else sweeps()
    if argv and not argv[0].startswith("-") and argv[0] not in known:
        known = sweeps()
    return recipe_words("sweep", argv, SweepConfig(), known, SWEEP)


def train_words(
    argv: Sequence[str], change: Callable[[TrainConfig], TrainConfig] = lambda base: base
) -> Watched[TrainConfig | ResumeTrainConfig]:
    """What the words after `train` ask for; `change` goes before the flags."""
    if wants_resume(argv):
        return resume_words("train", argv, ResumeTrainConfig)
    return recipe_words("train", argv, TrainConfig(), TRAIN_RECIPES, TRAIN, change)


def meta_words(
    argv: Sequence[str],
) -> tuple[str, MetaConfig | MetaResumeConfig, Hosts, Sequence[Tracker]]:
    """What the words after `meta-train` ask for, its recipe's name first, its trackers last."""
    if wants_resume(argv):
        old, trackers = resume_words("meta-train", argv, MetaResumeConfig)
        return old.resume.name, old, old.hosts, trackers
    rest = list(argv)
    recipes = recipes_text(META_RECIPES)
    name = rest.pop(0) if rest and not rest[0].startswith("-") else None
    if name is None and not {"-h", "--help"} & set(rest):
        say(f"{recipes}\n\nExample: {META_EXAMPLE}\n", err)
        raise LaconicError(
            "meta-train needs the name of a recipe first; choose one of those above."
        )
    if name is not None and name not in META_RECIPES:
        raise unknown("recipe", name, META_RECIPES)
    base = MetaConfig() if name is None else META_RECIPES[name][1]
    begin = tyro.cli(
        MetaBegin,
        args=rest,
        default=MetaBegin(base, Hosts()),
        prog=f"laconic meta-train {name or 'RECIPE'}",
        description=f"{META_TRAIN}\n\n{recipes}",
    )
    return name or "own", begin.config, begin.hosts, begin.track


def plan_words(argv: Sequence[str]) -> PlanConfig:
    """What the words after `plan` ask for."""
    return tyro.cli(PlanConfig, args=list(argv), prog="laconic plan", description=PLAN)


# What is read before JAX is imported, by command.
WORDS: dict[str, Callable[[Sequence[str]], Any]] = {
    "compare": compare_words,
    "sweep": sweep_words,
    "train": train_words,
    "meta-train": meta_words,
    "plan": plan_words,
}


# --- recipes, flags and --resume ------------------------------------------------------------------


def wants_resume(argv: Iterable[str]) -> bool:
    """Whether --resume is among the words."""
    return any(word == "--resume" or word.startswith("--resume=") for word in argv)


def resume_words(command: str, argv: Sequence[str], config: type[Config]) -> Watched[Config]:
    """What `--resume DIR` and further flags ask for."""
    about = "Resume a run where it stopped, with the settings it was begun with."
    kind = Tracked[config]
    found = tyro.cli(kind, args=list(argv), prog=f"laconic {command}", description=about)
    return found.config, found.track


def recipe_words(
    command: str,
    argv: Sequence[str],
    base: Config,
    recipes: Mapping[str, tuple[str, Config]],
    about: str,
    change: Callable[[Config], Config] = lambda config: config,
) -> Watched[Config]:
    """What `[RECIPE] [--flags]` ask for, else `base`; `change` goes before the flags."""
    rest = list(argv)
    if rest and not rest[0].startswith("-"):
        if rest[0] not in recipes:
            raise unknown("recipe", rest[0], recipes)
        base = recipes[rest.pop(0)][1]
    found = tyro.cli(
        Tracked[type(base)],
        args=rest,
        default=Tracked(change(base)),
        prog=f"laconic {command} [RECIPE]",
        description=f"{about}\n\n{recipes_text(recipes)}",
    )
    return found.config, found.track


def recipes_text(recipes: Mapping[str, tuple[str, Any]]) -> str:
    """The recipes of a command, one line each, for its --help."""
    lines = "\n".join(f"  {name}: {summary}" for name, (summary, _) in recipes.items())
    return f"Recipes (first word, then flags to change it):\n{lines}"
