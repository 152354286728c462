"""laconic: learned aggregation for communication-efficient training."""

from laconic.client import Client, LocalOptimizer, Message, gradient_client, local_client
from laconic.compress import Compressor, parse_compressor
from laconic.data.feed import Resident, Streamed
from laconic.errors import LaconicError
from laconic.evaluate.run import Method, Setting, Simulation, local_method
from laconic.meta.horizon import Horizon
from laconic.meta.problem import Inner
from laconic.meta.train import MetaTrainer, Outer
from laconic.outer import OUTER, LearnedOptimizer, OuterOptimizer, from_optax
from laconic.recipes.compare import compare, resume
from laconic.recipes.config import CompareConfig
from laconic.recipes.meta_config import MetaConfig
from laconic.recipes.meta_train import meta_train
from laconic.recipes.methods import METHODS, parse_method
from laconic.recipes.sweep import SweepConfig, sweep
from laconic.round import Items, RoundState, Server, communication_round, draw_items, init_round
from laconic.tasks.base import Aux, Task, plain_task
from laconic.tasks.catalog import TASKS, make_task
from laconic.version import __version__
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
    "Horizon",
    "Inner",
    "Items",
    "LaconicError",
    "LearnedOptimizer",
    "LocalOptimizer",
    "Meshed",
    "Message",
    "MetaConfig",
    "MetaTrainer",
    "Method",
    "Outer",
    "OuterOptimizer",
    "Resident",
    "RoundState",
    "Server",
    "Setting",
    "Simulated",
    "Simulation",
    "Streamed",
    "SweepConfig",
    "Task",
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
    "parse_compressor",
    "parse_method",
    "plain_task",
    "published",
    "resume",
    "sweep",
    "worker_mesh",
]
