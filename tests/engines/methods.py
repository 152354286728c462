"""What worker processes of all engines train in tests, and what they write down of it."""

from typing import Any

import jax

from laconic.client import LocalOptimizer
from laconic.compress import parse_compressor
from laconic.engines.loop import Report, row_of
from laconic.engines.replica import Programs
from laconic.method import Method, local_method
from laconic.outer import OUTER

TASK, K, H, B, GAMMA = "digits-mlp", 4, 2, 16, 0.3
# Where chance decides who takes part: a last digit on the other side of a ReLU's corner would show
# in the weights.
SMOOTH = "digits-mlp:activation=tanh"
METHODS = [
    ("local-sgd", "average", {}, "dense"),
    ("slowmo", "slowmo", {"gamma": 0.3, "beta": 0.8}, "dense"),
    ("lopt-a", "lopt-a", {"seed": 1}, "dense"),
    ("lagg-a", "lagg-a", {"seed": 2, "workers": 4}, "dense"),
    ("top-k", "average", {}, "topk:0.05+ef"),
    ("fedexp", "fedexp", {"eps": 0.0}, "dense"),
]


def method_of(
    name: str, outer: str, options: dict[str, Any], compress: str, local: Any = ("sgd", GAMMA)
) -> Method:
    return local_method(
        name, LocalOptimizer(*local), OUTER[outer].make(**options), parse_compressor(compress)
    )


def line_of(report: Report, worker: int) -> dict[str, Any]:
    return row_of(report) | {"worker": worker}


def astray(programs: Programs, rounds: list[int]) -> Any:
    """The outer step of a machine that gets one weight wrong in some rounds, unnoticed."""
    right = programs.outer

    def outer(replica: Any, *rest: Any) -> Any:
        after = right(replica, *rest)
        if int(replica.round) not in rounds:
            return after
        leaves, treedef = jax.tree.flatten(after.shared)
        return after._replace(
            shared=jax.tree.unflatten(treedef, [leaves[0].at[0].add(1e-3), *leaves[1:]])
        )

    return outer
