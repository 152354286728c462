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


def chunks_of(n: int, most: int = 4096) -> list[tuple[int, int]]:
    """(start, end) of the chunks of n entries: as few as can be, all of one size; the last ends
    where that size does, even if this is past n."""
    count = math.ceil(n / most)
    size = math.ceil(n / count)
    return [(i * size, (i + 1) * size) for i in range(count)]


def chunk_topk_indices(vector: Array, fraction: float) -> list[int]:
    """Where the largest of each chunk lie, chunk after chunk; beyond the end there are zeros."""
    found = []
    for start, end in chunks_of(len(vector)):
        part = np.zeros(end - start)
        part[: len(vector[start:end])] = vector[start:end]
        found += [start + i for i in topk_indices(part, count_kept(end - start, fraction))]
    return found


def bin_codes(vector: Array) -> list[int]:
    """Which of four bins, 3σ wide, each entry is in: -6σ … -3σ … mean … 3σ … 6σ; what lies outside
    is in the nearest, and all of it in the third if σ is 0."""
    mean, sigma = float(np.mean(vector)), float(np.std(vector))
    if sigma == 0:
        return [2] * len(vector)
    edges = [mean - 3 * sigma, mean, mean + 3 * sigma]
    return [sum(x >= edge for edge in edges) for x in vector]


def bin_means(vector: Array, codes: Sequence[int]) -> list[float]:
    """The mean of what is in each bin, 0 of an empty one."""
    inside = [[x for x, code in zip(vector, codes, strict=True) if code == b] for b in range(4)]
    return [math.fsum(part) / len(part) if part else 0.0 for part in inside]


def sparseloco(tree: Tree, fraction: float = 64 / 4096) -> Tree:
    """What a receiver decodes: of each tensor's chunks the largest, each as the mean of its bin."""
    sent = {}
    for name, tensor in tree.items():
        x = flatten({name: tensor})
        indices = chunk_topk_indices(x, fraction)
        padded = np.zeros(chunks_of(len(x))[-1][1])
        padded[: len(x)] = x
        codes = bin_codes(padded[indices])
        decoded = np.zeros_like(padded)
        decoded[indices] = np.array(bin_means(padded[indices], codes))[codes]
        sent[name] = decoded[: len(x)].reshape(np.shape(tensor))
    return sent


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
    """corrected = Δ + decay·e; sent = decode(encode(corrected)); e = corrected − sent; e starts at
    0. One object a worker."""

    compress: Callable[[Tree], Tree]
    decay: float = 1.0
    e: Tree = field(default_factory=dict)

    def __call__(self, delta: Tree) -> Tree:
        e = self.e or {name: np.zeros_like(d) for name, d in delta.items()}
        corrected = {name: d + self.decay * e[name] for name, d in delta.items()}
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


def binned_bits(n: int) -> int:
    """Four codes to a byte, and four float32 means."""
    return 8 * math.ceil(n / 4) + 4 * 32


def chunk_topk_bits(n: int, fraction: float, binned: bool) -> int:
    """Of one tensor: packed indices below a chunk's size, and values as float32 or in bins."""
    pieces = chunks_of(n)
    size = pieces[0][1]
    k = len(pieces) * count_kept(size, fraction)
    return index_bits(size, k) + (binned_bits(k) if binned else 32 * k)


def sparseloco_bits(sizes: Sequence[int], fraction: float = 64 / 4096) -> int:
    """12 bits of index and 2 of value for each entry kept where chunks are of 4,096, and 128 bits
    a tensor."""
    return sum(chunk_topk_bits(n, fraction, binned=True) for n in sizes)


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
