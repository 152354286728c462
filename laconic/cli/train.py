"""`laconic train`: one model, all its workers in this process."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from laconic.cli.console import (
    LiveBars,
    StopFlag,
    bars,
    err,
    go_on,
    recipes_text,
    say,
    wants_resume,
)
from laconic.errors import LaconicError, unknown
from laconic.recipes.trainings import TRAIN_RECIPES, TrainConfig, from_json
from laconic.runs.compare import Interrupted
from laconic.runs.train import SIMULATED, resume_train, train
from laconic.runs.train_folder import CURVE, WEIGHTS, read_header
from laconic.show.training import training_facts

_RESUME = "Take up a training where it stopped; its settings come from the folder."
_BEGIN = """\
Train one model with K workers and one outer optimizer, all in this process. With real processes instead:
laconic launch --workers 4 -- train RECIPE"""


@dataclass(frozen=True)
class TrainResumeConfig:
    """Take up a training where it stopped."""

    resume: Path
    """The folder of the run."""


def run_train(argv: Sequence[str]) -> int:
    """`laconic train [RECIPE] [--flags]` or `laconic train --resume DIR`."""
    given = train_words(argv)
    with StopFlag("this round and one more") as stop, bars() as shown:
        tell = Bar(LiveBars(shown))
        try:
            if isinstance(given, TrainResumeConfig):
                folder, records = resume_train(given.resume, tell=tell, stop=stop)
            else:
                folder, records = train(
                    given, tell=tell, stop=stop, command=shlex.join(["laconic", "train", *argv])
                )
        except Interrupted as stopped:
            shown.stop()
            say(f"{stopped} Go on with: {go_on('train', stopped.folder)}", err)
            return stop.status
    print_outcome(folder, records)
    return 0


def train_words(argv: Sequence[str], workers: int | None = None) -> TrainConfig | TrainResumeConfig:
    """What the words after `train` ask for; `workers` is how many a launcher has, if it says so."""
    if wants_resume(argv):
        return tyro.cli(
            TrainResumeConfig, args=list(argv), prog="laconic train", description=_RESUME
        )
    base, rest = TrainConfig(), list(argv)
    if rest and not rest[0].startswith("-"):
        if rest[0] not in TRAIN_RECIPES:
            raise unknown("recipe", rest[0], TRAIN_RECIPES)
        base = TRAIN_RECIPES[rest.pop(0)][1]
    if workers is not None:
        base = replace(base, workers=workers)
    description = f"{_BEGIN}\n\n{recipes_text(TRAIN_RECIPES)}"
    return tyro.cli(
        TrainConfig, args=rest, default=base, prog="laconic train [RECIPE]", description=description
    )


def shared_config(words: Sequence[str], workers: int | None) -> tuple[TrainConfig, bool]:
    """The config that several processes train by, and whether it is that of a folder to go on in."""
    if not words or words[0] != "train":
        raise LaconicError(
            "say what to train after --, for example: laconic launch --workers 4 -- train digits"
        )
    given = train_words(words[1:], workers)
    if isinstance(given, TrainResumeConfig):
        header = read_header(given.resume)
        if header["engine"] == SIMULATED:
            raise LaconicError(
                f"{given.resume} was trained in one process: go on with "
                f"{go_on('train', given.resume)}"
            )
        config = from_json(header["config"], given.resume)
    else:
        config = given
    if workers is not None and config.workers != workers:
        raise LaconicError(
            f"there are {workers} workers, but the training is for {config.workers}: give "
            "--workers once, or alike."
        )
    return config, isinstance(given, TrainResumeConfig)


class Bar:
    """One bar for the rounds of a training."""

    def __init__(self, bars: LiveBars):
        self.bars = bars

    def __call__(self, message: dict[str, Any]) -> None:
        """Show what a training tells."""
        if message["kind"] == "start":
            self.bars.begin("training", message["rounds"], message["round"])
        elif message["kind"] == "round":
            self.bars.progress("training", message["round"], message["loss"])
        for text in notes_of(message):
            self.bars.note(text)


def notes_of(message: Mapping[str, Any]) -> Sequence[str]:
    """The notes in what a training tells: a message that is one, or those of a round."""
    return [message["text"]] if message["kind"] == "note" else message.get("notes", [])


def print_outcome(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """What came out of a training, and where it lies."""
    facts = dict(training_facts(records))
    facts |= {
        what: str((folder / name).resolve())
        for what, name in (("weights", WEIGHTS), ("picture", CURVE))
    }
    width = max(map(len, facts)) + 1
    for name, text in facts.items():
        say(f"{name + ':':<{width}} {text}")
