"""The server: Flower's loop with an outer optimizer of laconic in the place of FedAvg."""
# pyright: reportMissingImports=false

import digits
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

import laconic
from laconic.flower import LearnedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    optimizer, rate = str(config["optimizer"]), float(config["local-rate"])
    if not rate:
        rate = (
            laconic.load(optimizer).card.local["learning_rate"]
            if optimizer in laconic.published()
            else 0.1
        )
    strategy = LearnedStrategy(  # was: FedAvg(
        optimizer,
        layout="as-is",
        checkpoint=str(config["checkpoint"]) or None,
        fraction_train=float(config["fraction-train"]) or None,
        patience=3,  # go on without clients that take three times as long as the median one
    )
    strategy.start(
        grid,
        ArrayRecord({name: Array(w) for name, w in digits.new_weights().items()}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=120,  # … and without those that have not answered by then
        train_config=ConfigRecord({"rate": rate}),
    )
