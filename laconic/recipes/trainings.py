"""Trainings by name."""

from laconic.runs.train import TrainConfig

TRAIN_RECIPES: dict[str, tuple[str, TrainConfig]] = {
    "digits": (
        "a small MLP on the bundled digits, by an optimizer that was trained on them",
        # at full step and for longer the loss nears 0, and there rounding grows from bits to digits
        TrainConfig(optimizer="lopt-a-digits:scale=0.3", rounds=60),
    ),
    "digits-general": (
        "the same by lopt-a-general, which never saw digits, for longer",
        TrainConfig(optimizer="lopt-a-general", rounds=300),
    ),
    "fmnist": (
        "Fashion-MNIST, 2-layer MLP, K = 8, H = 4, B = 128, by LOpt-A",
        TrainConfig("fmnist-mlp2", "lopt-a-fmnist", workers=8, batch=128, rounds=200),
    ),
    "fmnist-sparse": (
        "the same by SlowMo, sending a hundredth of each update",
        TrainConfig(
            "fmnist-mlp2",
            "slowmo:gamma=0.1,alpha=5,beta=0.3",
            workers=8,
            batch=128,
            rounds=500,
            compress="topk:0.01+ef",
        ),
    ),
    "lm-bytes": (
        "a byte-level language model on Python's own source, AdamW workers and Nesterov momentum",
        TrainConfig("lm-bytes", "diloco:gamma=0.003", rounds=300),
    ),
}
