"""A smooth regression in NumPy whose minibatches follow from (round, client, step) alone, and ways
to answer badly."""

import numpy as np

H, B, RATE = 3, 8, 0.1
SHAPES = {"w": (4, 4), "b": (4,), "out": (4, 3)}  # a square matrix, whose layout shows
FAULTS = {
    1: "nan",
    2: "shape",
    3: "keys",
    4: "raise",
    5: "exit",
    6: "nan",
}  # what the bad client does in each round


def new_weights(dtype=np.float32):
    draw = np.random.default_rng(7)
    return {
        name: (0.5 * draw.standard_normal(shape)).astype(dtype) for name, shape in SHAPES.items()
    }


def batch(round_, client, step):
    draw = np.random.default_rng([round_, client, step])
    x = draw.standard_normal((B, 4)).astype(np.float32)
    return x, np.sin(x[:, :3] + client).astype(np.float32)


def gradient(weights, x, y):
    hidden = np.tanh(x @ weights["w"] + weights["b"])
    error = 2 * (hidden @ weights["out"] - y) / y.size
    back = (error @ weights["out"].T) * (1 - hidden**2)
    return {"w": x.T @ back, "b": back.sum(0), "out": hidden.T @ error}


def train(weights, round_, client):
    """H steps of SGD; the weights given stay as they are."""
    weights = dict(weights)
    for step in range(H):
        found = gradient(weights, *batch(round_, client, step))
        weights = {name: (w - RATE * found[name]).astype(w.dtype) for name, w in weights.items()}
    return weights


def spoiled(weights, fault):
    """The same answer with a fault that can be sent."""
    if fault == "nan":
        return weights | {"b": np.full_like(weights["b"], np.nan)}
    if fault == "shape":
        return weights | {"w": weights["w"][:2]}
    return {("v" if name == "w" else name): w for name, w in weights.items()}
