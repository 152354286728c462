"""How rounding grows in a training: the same rounds, computed in two orders.

    python benchmarks/rounding.py [--rounds 100] [--trainings NAME …] [--out FILE]

For each training on the bundled digits (K = 4, H = 4, B = 16) it compares the simulator, which
runs all workers in one program, with workers that each run a program of their own, as real
processes do, and with the simulator after a change of the last bit of one weight. The numbers are
the largest difference of a weight over the largest weight, after some rounds. `step` is the largest
such difference that one round makes when both begin it with the simulator's state. The last line is
one JSON object.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a file too

from laconic.engines.replica import Programs, Replica
from laconic.engines.wire import Seal, new_frame
from laconic.recipes.trainings import TRAIN_RECIPES
from laconic.runs.train import TrainConfig, parts_of
from laconic.store.records import provenance, write_json
from laconic.tasks.catalog import make_task

AFTER = (1, 10, 20, 30, 40, 50, 60, 80, 100)
DIGITS = TRAIN_RECIPES["digits"][1]
TRAININGS = {
    "recipe `digits`": DIGITS,
    **{f"seed {seed}": replace(DIGITS, seed=seed) for seed in (1, 2)},
    "ReLU": replace(DIGITS, task="digits-mlp"),
    "ReLU, full step": replace(DIGITS, task="digits-mlp", optimizer="lopt-a-digits"),
}
WEIGHT = (0, 36, 5)  # leaf, input, output: a pixel in the middle of the picture


class Group:
    """The rounds of one training, its K workers in as many programs as there are `parts`."""

    def __init__(self, config: TrainConfig, parts: Sequence[tuple[int, ...]]):
        method, setting = parts_of(config)
        task, (seed,) = make_task(config.task), setting.seeds
        sizes = (config.workers, config.local_steps, config.batch, seed)
        self._programs = [Programs(task, method, *sizes, p, config.norm_limit) for p in parts]
        self._parts = parts
        self._key = Seal.of("token", "run").fold_key
        self._clients = [p.start()[1] for p in self._programs]

    def start(self) -> Replica:
        """The state before the first round."""
        return self._programs[0].start()[0]

    def round(self, replica: Replica) -> tuple[Replica, float]:
        """The next state, and the mean loss."""
        messages: dict[int, Any] = {}
        losses: list[np.ndarray] = []
        for i, (programs, part) in enumerate(zip(self._programs, self._parts, strict=True)):
            message, self._clients[i], found = programs.local(replica, self._clients[i], None)
            losses.append(np.asarray(found))
            trees = jax.device_get((message.extra, message.delta))
            for j, worker in enumerate(part):
                body = new_frame(programs.layout.size)
                programs.layout.write(body, jax.tree.map(lambda x, j=j: x[j], trees))
                messages[worker] = self._programs[0].measure(self._key, body)
        first, weights_K = self._programs[0], np.ones(len(messages), np.float32)
        inorder = [messages[k] for k in sorted(messages)]
        judged = first.judge(replica, inorder, weights_K, np.zeros(len(messages), np.int32))
        return first.outer(replica, inorder, weights_K, judged), float(np.mean(losses))


def together(config: TrainConfig) -> Group:
    """All workers in one program, as `laconic train` has them."""
    return Group(config, [tuple(range(config.workers))])


def apart(config: TrainConfig) -> Group:
    """Each worker in a program of its own, as processes have them."""
    return Group(config, [(k,) for k in range(config.workers)])


def nudged(replica: Replica) -> Replica:
    """One weight to the next float32."""
    leaves, structure = jax.tree.flatten(replica.shared.params)
    leaf, *at = WEIGHT
    values = np.array(leaves[leaf])
    values[tuple(at)] = np.nextafter(values[tuple(at)], np.float32(np.inf))
    leaves[leaf] = jnp.asarray(values)
    params = jax.tree.unflatten(structure, leaves)
    return replica._replace(shared=replica.shared._replace(params=params))


def difference(one: Replica, other: Replica) -> float:
    """The largest difference of a weight, over the largest weight."""
    pair = [
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(r.shared.params)])
        for r in (one, other)
    ]
    return float(np.max(np.abs(pair[1] - pair[0])) / np.max(np.abs(pair[0])))


def growth(config: TrainConfig, rounds: int) -> Iterator[dict[str, Any]]:
    """After each round: the loss, what the others are off by, and what that round alone adds."""
    groups = together(config), apart(config), together(config)
    states = [group.start() for group in groups]
    states[2] = nudged(states[2])
    fresh = apart(config)
    for done in range(1, rounds + 1):
        alone, _ = fresh.round(states[0])
        new = [group.round(state) for group, state in zip(groups, states, strict=True)]
        states = [state for state, _ in new]
        yield {
            "round": done,
            "loss": new[0][1],
            "apart_loss": new[1][1],
            "apart": difference(states[0], states[1]),
            "nudged": difference(states[0], states[2]),
            "step": difference(states[0], alone),
        }


def table(figures: dict[str, Any]) -> str:
    """The figures in Markdown, two columns a training: apart and nudged."""
    found = figures["trainings"]
    heads = [cell for name in found for cell in (f"{name}: apart", "one last bit")]
    lines = [["after round", *heads], ["---"] * (1 + len(heads))]
    for rows in zip(*(one["rows"] for one in found.values()), strict=True):
        cells = [f"{row[key]:.0e}" for row in rows for key in ("apart", "nudged")]
        lines.append([str(rows[0]["round"]), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Read the words, measure, print."""
    parser = argparse.ArgumentParser(description="how rounding grows in a training")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each training")
    parser.add_argument("--trainings", nargs="+", choices=TRAININGS, default=[*TRAININGS])
    parser.add_argument("--out", type=Path, help="a file for the JSON object")
    options = parser.parse_args()
    found = {}
    for name in options.trainings:
        rows = list(growth(TRAININGS[name], options.rounds))
        step = max(row["step"] for row in rows)
        found[name] = {"step": step, "rows": [r for r in rows if r["round"] in AFTER]}
        for row in found[name]["rows"]:
            print(name, json.dumps(row), flush=True)
    figures = {"benchmark": "rounding", "trainings": found, **provenance()}
    if options.out is not None:
        write_json(options.out, figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
