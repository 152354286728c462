"""`laconic meta-train`: train a learned optimizer by a recipe."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from laconic.cli.console import StopFlag, err, go_on, recipes_text, say, wants_resume
from laconic.cli.hosts import Hosts
from laconic.cli.meta_display import MetaDisplay
from laconic.errors import LaconicError, unknown
from laconic.federated.options import Federated, read_federated
from laconic.recipes.comparisons import flags_of
from laconic.recipes.meta_trainings import META_RECIPES
from laconic.runs.compare import Interrupted
from laconic.runs.meta_config import MetaConfig, parse_inner
from laconic.runs.meta_train import meta_train, resume_meta_train

EXAMPLE = "laconic meta-train lopt-a-digits --minutes 5"
_RESUME = "Take up meta-training where it stopped; its settings come from the folder."


@dataclass(frozen=True)
class MetaResumeConfig:
    """Take up meta-training where it stopped."""

    resume: Path
    """The folder of the run."""
    minutes: float | None = None
    """Stop cleanly after about this long; by default go on to the end."""
    hosts: tyro.conf.OmitArgPrefixes[Hosts] = field(default_factory=Hosts)


@dataclass(frozen=True)
class _Begin:
    """Settings and, apart from them, who takes part."""

    config: Annotated[MetaConfig, tyro.conf.arg(name="")]
    hosts: tyro.conf.OmitArgPrefixes[Hosts]


def run_meta_train(argv: Sequence[str]) -> int:
    """`laconic meta-train RECIPE [--flags]` or `laconic meta-train --resume DIR [--minutes M]`."""
    if wants_resume(argv):
        arguments = tyro.cli(
            MetaResumeConfig, args=list(argv), prog="laconic meta-train", description=_RESUME
        )
        name, hosts = arguments.resume.name, arguments.hosts
    else:
        name, arguments, hosts = _config(argv)
    speaks = hosts.join()
    console = err if speaks else Console(stderr=True, quiet=True)
    with StopFlag("these outer steps") as stop, MetaDisplay(name, console) as display:
        try:
            if isinstance(arguments, MetaResumeConfig):
                folder, records = resume_meta_train(
                    arguments.resume, observer=display, stop=stop, minutes=arguments.minutes
                )
            else:
                command = shlex.join(["laconic", "meta-train", *argv])
                folder, records = meta_train(
                    arguments, observer=display, stop=stop, command=command, name=name
                )
        except Interrupted as stopped:
            display.close()
            say(f"{stopped} Go on with: {go_on('meta-train', stopped.folder)}", console)
            return stop.status if stop() else 0  # a budget of minutes that is used up is no failure
    if speaks:
        _print_summary(folder, records)
    return 0


def _config(argv: Sequence[str]) -> tuple[str, MetaConfig, Hosts]:
    rest = list(argv)
    name = rest.pop(0) if rest and not rest[0].startswith("-") else None
    if name is None and not {"-h", "--help"} & set(rest):
        say(f"{recipes_text(META_RECIPES)}\n\nExample: {EXAMPLE}\n", err)
        raise LaconicError(
            "meta-train needs the name of a recipe first; choose one of those above."
        )
    if name is not None and name not in META_RECIPES:
        raise unknown("recipe", name, META_RECIPES)
    base = MetaConfig() if name is None else META_RECIPES[name][1]
    description = (
        f"Meta-train a learned optimizer on one task or several.\n\n{recipes_text(META_RECIPES)}"
    )
    prog = f"laconic meta-train {name or 'RECIPE'}"
    begin = tyro.cli(
        _Begin, args=rest, default=_Begin(base, Hosts()), prog=prog, description=description
    )
    return name or "own", begin.config, begin.hosts


def _print_summary(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    header, summary, folder = records[0]["config"], records[-1], folder.resolve()
    best = folder / "best.safetensors"
    config = MetaConfig(**{**read_federated(header, str(folder)), "tasks": tuple(header["tasks"])})
    inner = parse_inner(config.tasks[0], config)
    sizes = {
        "task": inner.task,
        "workers": inner.workers,
        "local-steps": inner.local_steps,
        "batch": inner.batch,
    }
    if inner.federated.active:
        del sizes["local-steps"]  # a population's data decides
    flags = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    flags += flags_of(inner.federated, Federated(), "federated.")
    score = "infinite" if summary["best_score"] is None else f"{summary['best_score']:.4f}"
    lines = {
        "folder": folder,
        "best": f"score {score} on held-out seeds (lower is better), outer step "
        f"{summary['best_step']:,} "
        f"of {summary['steps']:,}",
        "took": f"{summary['seconds']:,.1f} s, {summary['rounds_per_second']:,.0f} rounds/s",
        "weights": best,
        "picture": folder / "learning-curve.png",
        "in Python": f'laconic.load("{best}")',
        "measure it": shlex.join(
            ["laconic", "compare", *flags, "--optimizers", "local-sgd", str(best)]
        ),
    }
    for name, value in lines.items():
        say(f"{name + ':':<11} {value}")
