"""A transformer's block in plain NumPy loops and float64: the independent twin of
`laconic/tasks/transformer.py`."""

import math

import numpy as np


def linear(layer, x):
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)


def norm(layer, x):
    centred = x - x.mean()
    scaled = centred / math.sqrt((centred**2).mean() + 1e-5)
    return scaled * np.asarray(layer.scale, np.float64) + np.asarray(layer.shift, np.float64)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turn(x, t):
    """Pairs (i, i + E/2) as complex numbers, turned by t·10000^(−2i/E)."""
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * np.exp(
        1j * t * 10000.0 ** (-2 * np.arange(half) / len(x))
    )
    return np.concatenate([turned.real, turned.imag])


def slow_block(block, xs, heads, rotary=False, causal=True):
    """One position, one head, one position that it sees at a time."""
    hidden, size = len(xs[0]), len(xs[0]) // heads
    projected = [linear(block.qkv, norm(block.norm_attention, x)) for x in xs]
    after = []
    for t, x in enumerate(xs):
        gathered = np.zeros(hidden)
        for head in range(heads):
            mine = slice(head * size, (head + 1) * size)
            seen = range(t + 1 if causal else len(xs))
            q, ks = (
                projected[t][:hidden][mine],
                [projected[s][hidden : 2 * hidden][mine] for s in seen],
            )
            if rotary:
                q, ks = turn(q, t), [turn(k, s) for s, k in enumerate(ks)]
            scores = [q @ k / math.sqrt(size) for k in ks]
            weights = np.exp(scores) / np.exp(scores).sum()
            gathered[mine] = sum(
                w * projected[s][2 * hidden :][mine] for s, w in enumerate(weights)
            )
        x = x + linear(block.out, gathered)
        after.append(x + linear(block.down, gelu(linear(block.up, norm(block.norm_mlp, x)))))
    return after
