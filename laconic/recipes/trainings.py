"""Trainings by name."""

from laconic.runs.configs import TrainConfig

TRAIN_RECIPES: dict[str, tuple[str, TrainConfig]] = {
    "digits": (
        "a small tanh MLP on the bundled digits, by an optimizer that was trained on digits",
        # Real processes round otherwise than the simulator. At a ReLU's corner, or at full step
        # near loss 0, a last bit would grow to digits.
        TrainConfig("digits-mlp:activation=tanh", "lopt-a-digits:scale=0.15", rounds=80),
    ),
    "digits-general": (
        "the same by lopt-r, which never saw digits, for longer",
        TrainConfig(optimizer="lopt-r", rounds=300),
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
