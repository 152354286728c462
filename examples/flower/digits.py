"""A small network on scikit-learn's bundled digits, in NumPy: what every client trains. No JAX, no
laconic.

Weights are [in, out], which a `LearnedStrategy` calls the layout "as-is".
"""

import numpy as np
from sklearn.datasets import load_digits

HIDDEN, CLASSES = 32, 10

Weights = dict[str, np.ndarray]


def new_weights(seed: int = 0) -> Weights:
    """Two dense layers."""
    draw = np.random.default_rng(seed)
    layer = lambda fan_in, fan_out: (draw.standard_normal((fan_in, fan_out)) / fan_in**0.5).astype(
        np.float32
    )
    return {
        "hidden.weight": layer(64, HIDDEN),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": layer(HIDDEN, CLASSES),
        "output.bias": np.zeros(CLASSES, np.float32),
    }


def load_data(partition: int, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's images and labels; sorted by class before they are dealt out, so that clients
    differ."""
    images, labels = load_digits(return_X_y=True)
    order = np.argsort(labels, kind="stable")
    blocks = np.array_split(order, 2 * partitions)
    rows = np.concatenate([blocks[partition], blocks[partitions + partition]])
    return (images[rows] / 16).astype(np.float32), labels[rows]


def sgd(
    weights: Weights, x: np.ndarray, y: np.ndarray, rate: float, steps: int, batch: int, seed: int
) -> float:
    """Take local steps in place → the mean loss on the way."""
    draw, losses = np.random.default_rng(seed), []
    for _ in range(steps):
        rows = draw.integers(len(x), size=batch)
        loss, gradient = loss_and_gradient(weights, x[rows], y[rows])
        losses.append(loss)
        for name, g in gradient.items():
            weights[name] -= np.float32(rate) * g
    return float(np.mean(losses))


def loss_and_gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> tuple[float, Weights]:
    """The cross-entropy of some examples, and its gradient."""
    hidden = np.tanh(x @ weights["hidden.weight"] + weights["hidden.bias"])
    logits = hidden @ weights["output.weight"] + weights["output.bias"]
    log_p = logits - logits.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    rows = np.arange(len(y))
    error = np.exp(log_p)
    error[rows, y] -= 1
    error /= len(y)
    back = (error @ weights["output.weight"].T) * (1 - hidden**2)
    gradient = {
        "hidden.weight": x.T @ back,
        "hidden.bias": back.sum(0),
        "output.weight": hidden.T @ error,
        "output.bias": error.sum(0),
    }
    return float(-log_p[rows, y].mean()), gradient


def evaluate(weights: Weights, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Loss and accuracy."""
    hidden = np.tanh(x @ weights["hidden.weight"] + weights["hidden.bias"])
    guess = np.argmax(hidden @ weights["output.weight"] + weights["output.bias"], 1)
    return loss_and_gradient(weights, x, y)[0], float(np.mean(guess == y))
