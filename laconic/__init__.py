"""laconic: learned aggregation for communication-efficient training.

A name is imported from its home when it is first asked for, so that `import laconic.torch` never
imports JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from laconic.version import __version__

if TYPE_CHECKING:
    from laconic.client import Client, Message, gradient_client, local_client
    from laconic.compress import Compressor, parse_compressor
    from laconic.data.feed import Resident, Streamed
    from laconic.errors import LaconicError
    from laconic.federated.options import Federated
    from laconic.federated.population import Population, population_of
    from laconic.local import LocalOptimizer
    from laconic.means import RobustMean, parse_aggregate
    from laconic.meta.estimator import Horizon
    from laconic.meta.problem import Inner
    from laconic.meta.train import MetaTrainer, Outer
    from laconic.method import Method, Setting, local_method
    from laconic.methods import METHODS, parse_method
    from laconic.outer import (
        OUTER,
        LearnedOptimizer,
        OuterOptimizer,
        RelativeOptimizer,
        from_optax,
    )
    from laconic.round import Items, RoundState, Server, communication_round, draw_items, init_round
    from laconic.runs.compare import compare
    from laconic.runs.configs import CompareConfig, SweepConfig, TrainConfig
    from laconic.runs.folder import Interrupted, Observer
    from laconic.runs.meta_config import MetaConfig
    from laconic.runs.meta_train import meta_train
    from laconic.runs.resume import resume
    from laconic.runs.simulate import Simulation
    from laconic.runs.sweep import sweep
    from laconic.runs.trackers import track
    from laconic.runs.train import train
    from laconic.tasks.base import Aux, Task, plain_task
    from laconic.tasks.catalog import TASKS, make_task
    from laconic.workers import Meshed, Simulated, worker_mesh
    from laconic.zoo import load, published

__all__ = [
    "METHODS",
    "OUTER",
    "TASKS",
    "Aux",
    "Client",
    "CompareConfig",
    "Compressor",
    "Federated",
    "Horizon",
    "Inner",
    "Interrupted",
    "Items",
    "LaconicError",
    "LearnedOptimizer",
    "LocalOptimizer",
    "Meshed",
    "Message",
    "MetaConfig",
    "MetaTrainer",
    "Method",
    "Observer",
    "Outer",
    "OuterOptimizer",
    "Population",
    "RelativeOptimizer",
    "Resident",
    "RobustMean",
    "RoundState",
    "Server",
    "Setting",
    "Simulated",
    "Simulation",
    "Streamed",
    "SweepConfig",
    "Task",
    "TrainConfig",
    "__version__",
    "communication_round",
    "compare",
    "draw_items",
    "from_optax",
    "gradient_client",
    "init_round",
    "load",
    "local_client",
    "local_method",
    "make_task",
    "meta_train",
    "parse_aggregate",
    "parse_compressor",
    "parse_method",
    "plain_task",
    "population_of",
    "published",
    "resume",
    "sweep",
    "track",
    "train",
    "worker_mesh",
]

_HOMES = {
    "laconic.client": "Client Message gradient_client local_client",
    "laconic.compress": "Compressor parse_compressor",
    "laconic.data.feed": "Resident Streamed",
    "laconic.errors": "LaconicError",
    "laconic.means": "RobustMean parse_aggregate",
    "laconic.method": "Method Setting local_method",
    "laconic.runs.simulate": "Simulation",
    "laconic.federated.options": "Federated",
    "laconic.federated.population": "Population population_of",
    "laconic.local": "LocalOptimizer",
    "laconic.meta.estimator": "Horizon",
    "laconic.meta.problem": "Inner",
    "laconic.meta.train": "MetaTrainer Outer",
    "laconic.outer": "LearnedOptimizer OUTER OuterOptimizer RelativeOptimizer from_optax",
    "laconic.runs.compare": "compare",
    "laconic.runs.configs": "CompareConfig SweepConfig TrainConfig",
    "laconic.runs.folder": "Interrupted Observer",
    "laconic.runs.resume": "resume",
    "laconic.runs.meta_config": "MetaConfig",
    "laconic.runs.meta_train": "meta_train",
    "laconic.methods": "METHODS parse_method",
    "laconic.runs.sweep": "sweep",
    "laconic.runs.trackers": "track",
    "laconic.runs.train": "train",
    "laconic.round": "Items RoundState Server communication_round draw_items init_round",
    "laconic.tasks.base": "Aux Task plain_task",
    "laconic.tasks.catalog": "TASKS make_task",
    "laconic.workers": "Meshed Simulated worker_mesh",
    "laconic.zoo": "load published",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
