"""Made-up cards and weights for tests of the zoo."""

from dataclasses import asdict
from typing import Any

from laconic.client import LocalOptimizer
from laconic.outer.learned import LearnedOptimizer
from laconic.outer.relative import RelativeOptimizer
from laconic.store import checkpoint
from laconic.zoo.card import Card, to_json
from laconic.zoo.file import fields_of
from tests.outer.trees import random_relative, random_theta

LOPT_A, LAGG_A = LearnedOptimizer("lopt-a", output_scale=0.01), LearnedOptimizer("lagg-a", 8)
LOPT_R = RelativeOptimizer(rate=0.75, momentum=0.5, gates=4)
LEARNED = [
    LOPT_A,
    LAGG_A,
    LearnedOptimizer("lopt", time="paper"),
    LearnedOptimizer("lagg", 3),
    LOPT_R,
]


def fields(learned: Any = LOPT_A, **changes: Any) -> dict[str, Any]:
    """Every field of a complete card."""
    trained = {
        "task": "fmnist-mlp2",
        "workers": 8,
        "local_steps": 4,
        "batch": 128,
        "compress": "dense",
        "dropout": 0.0,
    }
    setting = "K = 8, H = 4, B = 128"
    result = {"task": "fmnist-mlp2", "setting": setting, "record": "fmnist-baselines/records.jsonl"}
    return {
        "name": "made-up",
        "summary": "A learned server step for Fashion-MNIST | the paper's small task.",
        "architecture": learned.architecture,
        "workers": learned.workers,
        "local": asdict(LocalOptimizer("sgd", 0.07, clip=1.25)),
        "trained_on": [
            trained,
            {**trained, "task": "fmnist-mlp3", "compress": "topk:0.01+ef", "dropout": 0.125},
        ],
        "estimator": "pes",
        "outer_steps": 4500,
        "pairs": 9,
        "truncation": 50,
        "horizon": [100, 1000],
        "meta_seed": 17,
        "seconds": 361.5,
        "device": "NVIDIA H200",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "versions": {"laconic": "0.1.0", "jax": "0.10.2", "equinox": None},
        "results": [
            {**result, "metric": "rounds to train loss 0.2", "value": 151},
            {**result, "metric": "train loss after 1000 rounds", "value": 0.0525},
            {**result, "metric": "rounds to train loss 0.001", "value": None},
        ],
        "limits": ["Made for K = 8 and H = 4.", "Diverges after 2000 rounds <sometimes>."],
        "license": "Apache-2.0",
        "created": "2025-01-31",
        **changes,
    }


def a_card(learned: Any = LOPT_A, **changes: Any) -> Card:
    return Card(**fields(learned, **changes))


def weights(learned: Any = LOPT_A, seed: int = 5) -> dict[str, Any]:
    if isinstance(learned, RelativeOptimizer):
        return random_relative(learned.shapes, seed)
    return random_theta(learned.inputs, seed, learned.accumulates)


def a_meta(spec: Any = LOPT_A, changes: Any = None) -> dict[str, Any]:
    """What the file format says a file's meta holds, spelled out by hand."""
    version, learned = (4, fields_of(spec)) if spec is LOPT_R else (3, asdict(spec))
    learned.pop("blind", None)  # how it is meta-trained; its weights say the rest
    meta = {"format": "laconic-optimizer", "version": version, "learned": learned}
    return meta | {"card": to_json(a_card(spec))} | (changes or {})


def forge(path: Any, meta: Any, theta: Any = None) -> Any:
    """A file with a right hash, whatever it says."""
    checkpoint.save(path, weights() if theta is None else theta, meta)
    return path
