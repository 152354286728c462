"""A strategy of laconic on the test's regression; what came out is left in a file."""

import json
import os
from pathlib import Path

import waves
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from laconic.flower import LearnedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    Path(config["result"] + ".pid").write_text(str(os.getpid()))
    strategy = LearnedStrategy(
        config["optimizer"],
        layout="as-is",
        checkpoint=config["checkpoint"],
        fraction_evaluate=0.0,
        min_train_nodes=3,
        min_available_nodes=3,
    )
    initial = ArrayRecord({name: Array(w) for name, w in waves.new_weights().items()})
    result = strategy.start(grid, initial, num_rounds=config["rounds"], timeout=120)
    found = {
        "arrays": {name: array.numpy().tolist() for name, array in result.arrays.items()},
        "metrics": {r: dict(metrics) for r, metrics in result.train_metrics_clientapp.items()},
    }
    part = Path(config["result"] + ".part")
    part.write_text(json.dumps(found))
    os.replace(part, config["result"])
