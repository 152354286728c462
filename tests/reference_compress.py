"""The twin's second half: AdamW workers, what they send and how many bits that is, and the metrics
of a run.

Compressors return what the receiver decodes. A model is flattened by sorted names, each tensor in C
order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

Array = np.ndarray
Tree = dict[str, Array]


def clip_by_global_norm(grads: Tree, max_norm: float) -> Tree:
    """Scale the whole tree down to `max_norm` if it is longer."""
    norm = math.sqrt(sum(float(np.sum(g**2)) for g in grads.values()))
    return {name: g * (max_norm / norm) if norm > max_norm else g for name, g in grads.items()}


@dataclass
class AdamW:
    """m̂, v̂ with bias correction; W −= lr·(m̂/(√v̂+ε) + λW). One object a worker, alive across
    rounds."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-4
    steps: int = 0
    m: Tree = field(default_factory=dict)
    v: Tree = field(default_factory=dict)

    def step(self, params: Tree, grads: Tree) -> Tree:
        self.steps += 1
        stepped = {}
        for name, p in params.items():
            self.m[name] = (
                self.beta1 * self.m.get(name, np.zeros_like(p)) + (1 - self.beta1) * grads[name]
            )
            self.v[name] = (
                self.beta2 * self.v.get(name, np.zeros_like(p))
                + (1 - self.beta2) * grads[name] ** 2
            )
            m_hat = self.m[name] / (1 - self.beta1**self.steps)
            v_hat = self.v[name] / (1 - self.beta2**self.steps)
            stepped[name] = p - self.lr * (
                m_hat / (np.sqrt(v_hat) + self.eps) + self.weight_decay * p
            )
        return stepped


def flatten(tree: Tree) -> Array:
    """The whole model as one float64 vector."""
    return np.concatenate(
        [np.asarray(tree[name], dtype=np.float64).reshape(-1) for name in sorted(tree)]
    )


def unflatten(vector: Array, like: Tree) -> Tree:
    """The inverse of `flatten`."""
    tree, start = {}, 0
    for name in sorted(like):
        size = np.size(like[name])
        tree[name] = vector[start : start + size].reshape(np.shape(like[name]))
        start += size
    return tree


def count_kept(n: int, fraction: float) -> int:
    """k of top-k, in exact decimal arithmetic: 7 % of 100 is 7, though 0.07 * 100 is more."""
    return max(1, math.ceil(Fraction(str(fraction)) * n))


def topk_indices(vector: Array, k: int) -> list[int]:
    """Where the k largest magnitudes lie, largest first; of equal ones the lower index first."""
    return sorted(range(len(vector)), key=lambda i: (-abs(vector[i]), i))[:k]


def keep_only(vector: Array, indices: Sequence[int]) -> Array:
    """Zero wherever `indices` does not point."""
    kept = np.zeros_like(vector)
    for i in indices:
        kept[i] = vector[i]
    return kept


def topk_global(tree: Tree, fraction: float) -> Tree:
    """The largest entries of the whole flattened model."""
    x = flatten(tree)
    return unflatten(keep_only(x, topk_indices(x, count_kept(len(x), fraction))), tree)


def topk_per_tensor(tree: Tree, fraction: float) -> Tree:
    """The largest entries of each tensor, k by its own size."""
    return {name: topk_global({name: x}, fraction)[name] for name, x in tree.items()}


def levels(bits: int) -> int:
    """The largest code: 127 or 7."""
    return {8: 127, 4: 7}[bits]


def quantise_codes(
    vector: Array, bits: int, u: Array, bucket: int = 256
) -> tuple[list[int], list[float]]:
    """Signed codes floor(x/scale·L + u), u uniform in [0, 1), and a scale max|x| for each bucket;
    zeros code as 0."""
    L, codes, scales = levels(bits), [], []
    for start in range(0, len(vector), bucket):
        part = vector[start : start + bucket]
        scale = float(max(abs(x) for x in part))
        scales.append(scale)
        for x, noise in zip(part, u[start : start + bucket], strict=True):
            code = math.floor(x / scale * L + noise) if scale > 0 else 0
            codes.append(max(-L, min(L, code)))
    return codes, scales


def quantise(vector: Array, bits: int, u: Array, bucket: int = 256) -> Array:
    """What the receiver decodes: code·scale/L."""
    codes, scales = quantise_codes(vector, bits, u, bucket)
    return np.array([code * scales[i // bucket] / levels(bits) for i, code in enumerate(codes)])


def topk_quantised(
    tree: Tree,
    fraction: float,
    bits: int,
    u: Array,
    order: Literal["magnitude", "index"],
    bucket: int = 256,
) -> Tree:
    """Global top-k, its k values quantised; `order`: how they lie in buckets and in `u` [k]."""
    x = flatten(tree)
    indices = topk_indices(x, count_kept(len(x), fraction))
    indices = sorted(indices) if order == "index" else indices
    decoded = np.zeros_like(x)
    decoded[indices] = quantise(x[indices], bits, u, bucket)
    return unflatten(decoded, tree)


@dataclass
class ErrorFeedback:
    """corrected = Δ + e; sent = decode(encode(corrected)); e = corrected − sent; e starts at 0. One
    object a worker."""

    compress: Callable[[Tree], Tree]
    e: Tree = field(default_factory=dict)

    def __call__(self, delta: Tree) -> Tree:
        corrected = {name: d + self.e.get(name, np.zeros_like(d)) for name, d in delta.items()}
        sent = self.compress(corrected)
        self.e = {name: corrected[name] - sent[name] for name in delta}
        return sent


def dense_bits(n: int) -> int:
    """float32."""
    return 32 * n


def index_bits(n: int, k: int) -> int:
    """k packed indices below n, ceil(log2 n) bits each and at least 1, the stream rounded up to
    whole bytes."""
    width = max(1, (n - 1).bit_length())
    return 8 * math.ceil(k * width / 8)


def topk_bits(n: int, fraction: float) -> int:
    """Global top-k over n entries: float32 values and packed indices."""
    k = count_kept(n, fraction)
    return 32 * k + index_bits(n, k)


def topk_per_tensor_bits(sizes: Sequence[int], fraction: float) -> int:
    """The same for each tensor, summed."""
    return sum(topk_bits(n, fraction) for n in sizes)


def quantised_bits(n: int, bits: int, bucket: int = 256) -> int:
    """n bytes or ceil(n/2) bytes of codes, and a float32 scale for each bucket."""
    return {8: 8 * n, 4: 8 * math.ceil(n / 2)}[bits] + 32 * math.ceil(n / bucket)


def topk_quantised_bits(n: int, fraction: float, bits: int, bucket: int = 256) -> int:
    """Packed indices and k quantised values."""
    k = count_kept(n, fraction)
    return index_bits(n, k) + quantised_bits(k, bits, bucket)


def trailing_mean(curve: Sequence[float], window: int = 10) -> list[float]:
    """Means of the full windows only: entry i is the mean of rounds i+1 … i+window (1-based)."""
    return [math.fsum(curve[i : i + window]) / window for i in range(len(curve) - window + 1)]


def rounds_to_loss(mean_curve: Sequence[float], target: float, window: int = 10) -> int | None:
    """The 1-based round that ends the first full window whose mean is at most `target`; None if
    there is none."""
    for i, mean in enumerate(trailing_mean(mean_curve, window)):
        if mean <= target:
            return i + window
    return None


def speedup(local_curve: Sequence[float], curve: Sequence[float], window: int = 10) -> float | None:
    """Rounds local SGD needs to its smoothed minimum ÷ rounds `curve` needs to that loss; None if
    it never does."""
    finite = [mean for mean in trailing_mean(local_curve, window) if math.isfinite(mean)]
    if not finite:
        return None
    local_rounds, rounds = (rounds_to_loss(c, min(finite), window) for c in (local_curve, curve))
    return None if local_rounds is None or rounds is None else local_rounds / rounds
