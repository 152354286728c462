"""`laconic train`: one model, all its workers in this process."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from laconic.cli.console import say_facts, with_bars
from laconic.cli.words import ResumeTrainConfig, train_words
from laconic.errors import LaconicError
from laconic.runs.configs import TrainConfig
from laconic.runs.settings import program, resume_command
from laconic.runs.train import (
    BEST,
    WEIGHTS,
    on_devices,
    read_train_config,
    resume_train,
    train,
)
from laconic.runs.train_log import CURVE
from laconic.show import training


def run_train(argv: Sequence[str]) -> int:
    """`laconic train [RECIPE] [--flags]` or `laconic train --resume DIR`."""
    given, trackers = train_words(argv)
    command = shlex.join([*program("train"), *argv])
    if isinstance(given, ResumeTrainConfig):
        run = lambda bars, stop: resume_train(
            given.resume, devices=given.devices, observer=bars, stop=stop
        )
    else:
        run = lambda bars, stop: train(given, observer=bars, stop=stop, command=command)
    return with_bars("train", trackers, run, print_outcome, "this round and one more")


def shared_config(words: Sequence[str], workers: int | None) -> tuple[TrainConfig, bool]:
    """The config that several processes train by, and whether it is resumed from a folder."""
    if not words or words[0] != "train":
        raise LaconicError(
            "say what to train after --, for example: laconic launch --workers 4 -- train digits"
        )
    change = lambda base: base if workers is None else replace(base, workers=workers)
    config, trackers = train_words(words[1:], change)
    if trackers:
        raise LaconicError(
            "--track is for the process that sees all workers: give it to laconic launch, before "
            "the --."
        )
    resumed = isinstance(config, ResumeTrainConfig)
    if isinstance(config, ResumeTrainConfig):
        folder, devices = config.resume, config.devices
        config, alone = read_train_config(folder)
        config = on_devices(config, devices)
        if alone:
            raise LaconicError(
                f"{folder} was trained in one process: go on with {resume_command('train', folder)}"
            )
    if config.patience is not None:
        raise LaconicError(
            "patience is for a training in one process (laconic train): several have no one who "
            "decides for all when to stop. Leave it out after --."
        )
    if workers is not None and config.workers != workers:
        raise LaconicError(
            f"there are {workers} workers, but the training is for {config.workers}: give "
            "--workers once, or alike."
        )
    return config, resumed


def print_outcome(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """What came out of a training, and where it is."""
    paths = {"weights": WEIGHTS, "best weights": BEST, "picture": CURVE}
    paths = {what: name for what, name in paths.items() if name != BEST or (folder / name).exists()}
    files = {what: (folder / name).resolve() for what, name in paths.items()}
    say_facts({**dict(training.facts(records)), **files})


def check_same_end(records: Sequence[dict[str, Any]]) -> None:
    """Refuse the outcome of workers that ended with different states."""
    if len(records[-1]["final_digests"]) != 1:
        raise LaconicError(
            "the workers did not end with the same state; their records say after which round."
        )
