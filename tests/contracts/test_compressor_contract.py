"""What every compressor promises: bytes that are counted and can be read by hand, nothing lost but
what it says."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.compress import Compressor, parse_compressor, payload_bytes
from tests import reference_compress as twin
from tests.outer.trees import QUICK, assert_close, float64, random_tree

LOSSLESS, ROUNDING = ["dense"], ["int8", "int4", "topk:0.25+int8", "tensor-topk:0.5+int4"]
BINNED = ["topk:0.2+int2", "chunk-topk:0.1+int2"]
BASES = [*LOSSLESS, "topk:0.1", "tensor-topk:0.3", "chunk-topk:0.2", *ROUNDING, *BINNED]
SPECS = [*BASES, *[f"{base}+ef" for base in BASES], "int2+ef:0.5", "sparseloco", "sparseloco:0.3"]
SHAPES = {
    "a": (13, 11),
    "b": (7,),
    "c": (),
    "d": (2, 150),
}  # 451 entries: two buckets, and an odd number
ODD = [{"w": (n,)} for n in (1, 255, 257)]
ONE_VECTOR = [
    "topk:0.1",
    "int8",
    "int4",
    "topk:0.25+int8",
    "chunk-topk:0.1",
    "chunk-topk:0.1+int2",
]  # with one tensor, by tensor is no other way


class Subject:
    """A compressor with its compiled functions."""

    def __init__(self, compressor: Compressor):
        self.compressor = compressor
        self.send = jax.jit(self._send, compiler_options=QUICK)
        self.many = jax.jit(jax.vmap(self._send), compiler_options=QUICK)
        self.rounds = jax.jit(self._rounds, compiler_options=QUICK)

    def _send(self, delta: Any, state: Any, key: Any) -> tuple[Any, Any, Any]:
        payload, state = self.compressor.encode(delta, state, key)
        return payload, state, self.compressor.decode(payload, delta)

    def _rounds(self, deltas_T: Any, keys_T: Any) -> tuple[Any, Any]:
        def body(state: Any, now: Any) -> Any:
            _, state, sent = self._send(*(now[0], state, now[1]))
            return state, sent

        return jax.lax.scan(
            body, self.compressor.init(jax.tree.map(lambda d: d[0], deltas_T)), (deltas_T, keys_T)
        )


@cache
def subject(spec: str) -> Subject:
    return Subject(parse_compressor(spec))


def fresh(spec: str, delta: Any, seed: int = 0) -> tuple[Any, Any, Any]:
    """(payload, state, what the receiver decodes) of a first message."""
    delta = jax.tree.map(jnp.asarray, delta)
    return jax.device_get(
        subject(spec).send(delta, subject(spec).compressor.init(delta), jax.random.key(seed))
    )


def parts_of(spec: str) -> tuple[bool, float, int]:
    """(tensor by tensor, fraction kept, bits of a value) by another parser than the package's; 0
    bits: float32."""
    if spec.startswith("sparseloco"):
        return True, float((spec + ":0.015625").split(":")[1]), 2
    words = spec.split("+ef")[0].split("+")
    fraction = next((float(w.split(":")[1]) for w in words if "topk" in w), 1.0)
    return (
        words[0].startswith(("tensor", "chunk")),
        fraction,
        int(words[-1].partition("int")[2] or 0),
    )


def in_chunks(spec: str) -> bool:
    """Whether entries compete within chunks."""
    return spec.startswith(("chunk", "sparseloco"))


def bits_of(spec: str, shapes: Any) -> int:
    """The twin's count."""
    by_tensor, fraction, width = parts_of(spec)
    sizes = [int(np.prod(s)) for s in shapes.values()]
    total = 0
    for n in sizes if by_tensor else [sum(sizes)]:
        k = twin.count_kept(n, fraction) if "topk" in spec else n
        if in_chunks(spec):
            total += twin.chunk_topk_bits(n, fraction, binned=width == 2)
        elif width == 2:
            total += twin.binned_bits(k) + (twin.index_bits(n, k) if "topk" in spec else 0)
        elif "topk" not in spec:
            total += twin.quantised_bits(n, width) if width else twin.dense_bits(n)
        else:
            total += (
                twin.topk_quantised_bits(n, fraction, width)
                if width
                else twin.topk_bits(n, fraction)
            )
    return total


def read_indices(packed: np.ndarray, k: int, n: int) -> list[int]:
    """The wire's indices, read as one long little-endian number."""
    width = max(1, (n - 1).bit_length())
    number = int.from_bytes(packed.tobytes(), "little")
    return [(number >> (i * width)) & (2**width - 1) for i in range(k)]


def read_codes(levels: np.ndarray, k: int, width: int) -> list[int]:
    """Signed bytes, or nibbles with 8 added, the lower one first."""
    if width == 8:
        return [int(x) for x in levels.view(np.int8)]
    if width == 2:
        return [(int(levels[i // 4]) >> (2 * (i % 4))) & 3 for i in range(k)]
    return [((int(levels[i // 2]) >> (4 * (i % 2))) & 15) - 8 for i in range(k)]


def messages_in(spec: str, delta: Any, payload: Any, key: Any) -> list[tuple[np.ndarray, Any, Any]]:
    """(vector, its payload, its key) for each vector that is encoded on its own."""
    if not parts_of(spec)[0]:
        return [(twin.flatten(delta), payload, key)]
    keys = jax.random.split(key, len(delta))
    return [(twin.flatten({n: delta[n]}), payload[i], keys[i]) for i, n in enumerate(sorted(delta))]


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        *((spec, SHAPES) for spec in BASES),
        *((spec, shapes) for spec in ONE_VECTOR for shapes in ODD),
        ("chunk-topk:0.02+int2", {"a": (91, 97), "b": (4096,)}),  # three chunks of 2943, and one
    ],
    ids=lambda x: (
        x if isinstance(x, str) else f"{sum(int(np.prod(s)) for s in x.values())} entries"
    ),
)
def test_the_wire_holds_what_the_twin_would_send(spec, shapes):
    delta, (_, fraction, width) = random_tree(shapes, 3, 1e-2), parts_of(spec)
    payload, _, decoded = fresh(spec, delta, seed=9)
    if spec == "dense":
        for name in delta:
            np.testing.assert_array_equal(payload[name], delta[name])
            np.testing.assert_array_equal(decoded[name], delta[name])
        return
    found = []
    for x, part, key in messages_in(spec, delta, payload, jax.random.key(9)):
        n, k = len(x), twin.count_kept(len(x), fraction)
        indices, values = list(range(n)), part
        if in_chunks(spec):
            pieces = twin.chunks_of(n)
            size, k = pieces[0][1], twin.count_kept(pieces[0][1], fraction)
            inside = read_indices(part.indices, k * len(pieces), size)
            indices, values = [i + size * (j // k) for j, i in enumerate(inside)], part.values
            assert indices == twin.chunk_topk_indices(x, fraction)
        elif "topk" in spec:
            indices, values = read_indices(part.indices, k, n), part.values
            assert indices == twin.topk_indices(x, k)
        expected = np.zeros(n)
        expected[indices] = x[indices] if not width else rounded(x[indices], values, width, key)
        found.append(expected)
    assert_close(twin.flatten(decoded), np.concatenate(found), 1e-6 if width else 0.0, spec)


def rounded(x: np.ndarray, values: Any, width: int, key: Any) -> np.ndarray:
    """What the codes on the wire say, once they are shown to be the twin's codes for the same
    noise."""
    if width == 2:
        sent = read_codes(values.codes, len(x), 2)
        assert sent == twin.bin_codes(x)
        means = twin.bin_means(x, sent)
        np.testing.assert_allclose(values.means, means, rtol=1e-5, atol=1e-9)
        return np.asarray(values.means, np.float64)[sent]
    L, noise = twin.levels(width), np.asarray(jax.random.uniform(key, (len(x),)), np.float64)
    codes, scales = twin.quantise_codes(x, width, noise)
    sent = read_codes(values.levels, len(x), width)
    np.testing.assert_array_equal(
        np.asarray(values.scales, np.float64), scales
    )  # a maximum is not rounded
    scale = np.array([scales[i // 256] for i in range(len(x))])
    before_floor = x / np.where(scale > 0, scale, 1.0) * L + noise
    for i in np.flatnonzero(np.array(sent) != np.array(codes)):
        # float32 may floor differently only where float64 is at an integer's edge.
        assert abs(sent[i] - codes[i]) == 1
        assert abs(before_floor[i] - round(before_floor[i])) < 1e-4
    return np.array(sent) * scale / L


@pytest.mark.parametrize("spec", SPECS)
def test_bits_are_the_bytes_sent(spec):
    for shapes in (SHAPES, *ODD):
        delta = random_tree(shapes, 1)
        compressor = parse_compressor(spec)
        assert compressor.bits(delta) == bits_of(spec, shapes)
        if shapes is SHAPES:
            assert 8 * len(payload_bytes(fresh(spec, delta)[0])) == bits_of(spec, shapes)
    assert parse_compressor(spec).name == spec


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "dtypes", [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
)
def test_structure_shape_and_dtype_come_back(spec, dtypes):
    delta = {
        "a": jax.ShapeDtypeStruct((13, 11), dtypes[0]),
        "b": [jax.ShapeDtypeStruct((), dtypes[1])],
    }
    compressor = parse_compressor(spec)
    state = jax.eval_shape(compressor.init, delta)
    _, after, decoded = jax.eval_shape(subject(spec)._send, delta, state, jax.random.key(0))
    see = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert see(decoded) == see(delta)
    assert see(after) == see(state)
    assert jax.tree.structure(after) == jax.tree.structure(state)


@pytest.mark.parametrize("spec", SPECS)
def test_zeros_stay_zeros(spec):
    payload, state, decoded = fresh(
        spec, {name: np.zeros(s, np.float32) for name, s in SHAPES.items()}
    )
    for leaf in jax.tree.leaves((state, decoded)):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
    assert len(payload_bytes(payload)) > 0


@pytest.mark.parametrize("spec", [*BASES, "topk:0.25+int8+ef", "sparseloco"])
def test_the_same_key_gives_the_same_bytes_alone_or_in_a_vmap(spec):
    deltas = [random_tree(SHAPES, seed) for seed in (1, 2, 3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(list(map(jnp.asarray, x))), *deltas)
    init = subject(spec).compressor.init
    keys = jnp.stack([jax.random.key(seed) for seed in (4, 5, 6)])
    together = jax.device_get(subject(spec).many(stacked, jax.vmap(init)(stacked), keys))
    for i, delta in enumerate(deltas):
        alone = fresh(spec, delta, seed=4 + i)
        assert payload_bytes(alone[0]) == payload_bytes(
            jax.tree.map(lambda x, i=i: x[i], together[0])
        )
        assert payload_bytes(alone[0]) == payload_bytes(fresh(spec, delta, seed=4 + i)[0])
    other = payload_bytes(fresh(spec, deltas[0], seed=77)[0])
    assert (other != payload_bytes(fresh(spec, deltas[0], seed=4)[0])) == (
        parts_of(spec)[2] in (4, 8)
    )


@pytest.mark.parametrize("base", BASES)
def test_error_feedback_telescopes(base):
    """Σ sent + residual = Σ Δ: everything arrives in the end."""
    deltas_T = random_tree({name: (12, *s) for name, s in SHAPES.items()}, 5, 1e-2)
    keys = jax.random.split(jax.random.key(0), 12)
    (residual, _), sent_T = jax.device_get(subject(f"{base}+ef").rounds(deltas_T, keys))
    for name, deltas in float64(deltas_T).items():
        arrived = float64(sent_T)[name].sum(axis=0) + np.asarray(residual[name], np.float64)
        assert_close(arrived, deltas.sum(axis=0), 1e-6, name)
    lost = any(np.any(x != 0) for x in residual.values())
    assert lost == (base not in LOSSLESS)


@pytest.mark.parametrize(
    ("base", "compress"),
    [("topk:0.1", twin.topk_global), ("tensor-topk:0.3", twin.topk_per_tensor)],
)
def test_error_feedback_follows_the_twin(base, compress):
    fraction = float(base.split(":")[1])
    deltas_T = random_tree({name: (12, *s) for name, s in SHAPES.items()}, 6, 1e-2)
    state, sent_T = jax.device_get(
        subject(f"{base}+ef").rounds(deltas_T, jax.random.split(jax.random.key(0), 12))
    )
    worker = twin.ErrorFeedback(lambda tree: compress(tree, fraction))
    for t in range(12):
        sent = worker({name: x[t] for name, x in float64(deltas_T).items()})
        assert_close({name: x[t] for name, x in sent_T.items()}, sent, 1e-6, f"round {t}")
    assert_close(state[0], worker.e, 1e-6, "residual")


@pytest.mark.parametrize(("spec", "fraction"), [("sparseloco", 64 / 4096), ("sparseloco:0.1", 0.1)])
def test_sparseloco_follows_the_twin(spec, fraction):
    """e ← 0.95·e + Δ, of which the largest of each chunk are sent in 2 bits."""
    shapes = {"a": (91, 97), "b": (7,), "c": ()}
    deltas_T = random_tree({name: (8, *s) for name, s in shapes.items()}, 6, 1e-2)
    state, sent_T = jax.device_get(
        subject(spec).rounds(deltas_T, jax.random.split(jax.random.key(0), 8))
    )
    worker = twin.ErrorFeedback(lambda tree: twin.sparseloco(tree, fraction), decay=0.95)
    for t in range(8):
        sent = worker({name: x[t] for name, x in float64(deltas_T).items()})
        assert_close({name: x[t] for name, x in sent_T.items()}, sent, 1e-5, f"round {t}")
    assert_close(state[0], worker.e, 1e-5, "residual")


def test_sparselocos_bits_are_those_of_the_paper():
    """64 of 4,096 at 12 + 2 bits; four means a tensor."""
    one = {"w": np.zeros((64, 64), np.float32)}
    assert parse_compressor("sparseloco").bits(one) == 64 * (12 + 2) + 4 * 32
    many = {"w": np.zeros((1024, 1024), np.float32), "b": np.zeros(1024, np.float32)}
    bits = 256 * 64 * (12 + 2) + 4 * 32 + 16 * (10 + 2) + 4 * 32
    assert parse_compressor("sparseloco").bits(many) == bits
    assert twin.sparseloco_bits([1024 * 1024, 1024]) == bits


@pytest.mark.parametrize("spec", ROUNDING)
def test_rounding_is_unbiased(spec):
    rng, draws, (_, fraction, width) = np.random.default_rng(8), 4000, parts_of(spec)
    # Between the grid's points, so that each draw goes up or down with a fair chance; the scale is
    # 1.
    x = rng.choice([-1, 1], 160) * (
        rng.integers(0, twin.levels(width), 160) + rng.uniform(0.2, 0.8, 160)
    )
    x = np.asarray(x / twin.levels(width), np.float32)
    x[5] = 1.0
    compressor, kept = (
        subject(spec).compressor,
        twin.topk_global({"w": x.astype(np.float64)}, fraction)["w"],
    )

    def mean_and_variance(key: Any) -> Any:
        tree = {"w": jnp.asarray(x)}
        send = lambda k: compressor.decode(
            compressor.encode(tree, compressor.init(tree), k)[0], tree
        )["w"]
        found = jax.vmap(send)(jax.random.split(key, draws))
        return jnp.mean(found, axis=0), jnp.var(found, axis=0)

    found = jax.jit(mean_and_variance, compiler_options=QUICK)(jax.random.key(1))
    mean, variance = (np.asarray(part, np.float64) for part in found)
    error = np.abs(mean - kept)
    assert np.all(error <= 5 * np.sqrt(variance / draws) + 1e-6)
    rounded_up_or_down = (kept != 0) & (np.arange(160) != 5)
    step = 1 / twin.levels(width)
    assert np.all((variance > 0.1 * step**2) == rounded_up_or_down)  # p(1 − p) is at least 0.16


def test_what_cannot_be_parsed_says_so(raises_clearly):
    for spec, parts in {
        "": ["unknown compressor ''"],
        "zip": ["unknown compressor 'zip'", "Known:", "topk:F"],
        "Topk:0.1": ["Did you mean 'topk:F'?"],
        "topk": ["'topk' needs the fraction", "topk:0.01"],
        "topk:zero": ["'topk:zero' needs the fraction"],
        "topk:0": ["above 0"],
        "tensor-topk:1.5": ["at most 1"],
        "topk:nan": ["needs the fraction"],
        "int8:3": ["out of place", "int8:3"],
        "int8+topk:0.1": ["'int8' is out of place in 'int8+topk:0.1'", "[topk:F]"],
        "dense+int8": ["'dense' is out of place"],
        "topk:0.1+topk:0.1": ["out of place"],
        "ef+int8": ["'ef' is out of place"],
        "int8+ef+ef": ["is out of place in 'int8+ef+ef'"],
        "sparseloco:2": ["'sparseloco:2' needs the fraction"],
        "sparseloco+ef": ["'sparseloco' is out of place", "sparseloco alone"],
        "int8+ef:0": ["'ef:0' needs the share of the residual", "ef:0.95"],
        "ef": ["'ef' remembers", "name one before it", "topk:0.01+ef"],
        "topk:0.1+": ["unknown compressor ''"],
    }.items():
        with raises_clearly(*parts):
            parse_compressor(spec)
