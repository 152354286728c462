"""Checkpoints: any pytree of arrays and a JSON dictionary in one safetensors file, hashed and atomically replaced.

The header's metadata holds `format`, `version`, `meta` (the caller's JSON), `keys` (which tensors are typed PRNG keys,
and of which implementation) and `sha256` over all of that and every tensor. A leaf's name is its pytree path as
`jax.tree_util.keystr` spells it. The tree's structure is not stored: `load` takes it from `like`, and checks it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from laconic.errors import LaconicError
from laconic.store import atomic

Tree = Any

FORMAT = "laconic-checkpoint"
VERSION = 1
SHOWN = 3  # how many differing leaves an error names

DTYPES = {  # safetensors' codes for what a leaf may be
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


class _Contents(NamedTuple):
    """A verified file: its arrays by name, the implementation of each that is a PRNG key, and the caller's meta."""

    arrays: dict[str, np.ndarray]
    keys: dict[str, str]
    meta: dict[str, Any]


def save(path: str | Path, tree: Tree, meta: Mapping[str, Any]) -> None:
    """Write `tree` and `meta` to `path` in one step; a crash leaves the old file.

    Leaves are NumPy arrays, JAX arrays or typed PRNG keys, never Python numbers (their dtype would be a guess).
    `meta` must be JSON: it comes back as JSON reads it, tuples as lists and keys as strings.
    """
    arrays: dict[str, np.ndarray] = {}
    keys: dict[str, str] = {}
    for name, leaf in _named_leaves(tree, (np.ndarray, np.generic, jax.Array)).items():
        if _is_key(leaf):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = _to_numpy(name, leaf)
    meta_json, keys_json = _to_json(meta), json.dumps(keys)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "sha256": _digest(meta_json, keys_json, arrays),
        "keys": keys_json,
        "meta": meta_json,
    }
    atomic.write_bytes(path, safetensors.numpy.save(arrays, metadata=header))


def load(path: str | Path, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """The tree at `path` in the structure of `like`, as JAX arrays, and its meta.

    `like` is a pytree of arrays or `jax.ShapeDtypeStruct`s whose names, shapes and dtypes the file must match.
    """
    contents = _read(Path(path))
    wanted = _named_leaves(like, (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct))
    found = {}
    for name, array in sorted(contents.arrays.items()):
        _require_native(f"leaf {name} of checkpoint {path}", array.dtype)
        found[name] = _to_jax(array, contents.keys.get(name))
    _require_match(path, wanted, found)
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in wanted]), contents.meta


def peek(path: str | Path) -> dict[str, Any]:
    """The meta of the checkpoint at `path`, once the whole file is known to be sound."""
    return _read(Path(path)).meta


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Tree, allowed: tuple[type, ...]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(keys) or "[]"  # "[]": the tree is a single leaf
        if not isinstance(leaf, allowed):
            raise LaconicError(
                f"checkpoint leaf {name} is a {type(leaf).__name__}, not an array: "
                "make it a NumPy or JAX array of a definite dtype, or put it in meta."
            )
        if name in named:
            raise LaconicError(f"two checkpoint leaves are both called {name}: give the nodes distinct key paths.")
        named[name] = leaf
    return named


def _to_numpy(name: str, leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise LaconicError(f"checkpoint leaf {name} lies partly in other processes: gather it to this one first.")
    if leaf.dtype not in DTYPES.values():
        raise LaconicError(f"checkpoint leaf {name} is {leaf.dtype}, which a checkpoint cannot hold: cast it first.")
    _require_native(f"checkpoint leaf {name}", leaf.dtype)
    return np.asarray(leaf, order="C")  # the writer takes raw memory, so strides must be plain


def _require_native(what: str, dtype: np.dtype) -> None:
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise LaconicError(
            f"{what} is {dtype}, which JAX would silently restore as "
            f"{jax.dtypes.canonicalize_dtype(dtype)}: set jax_enable_x64, or cast before saving."
        )


def _to_jax(array: np.ndarray, impl: str | None) -> jax.Array:
    return jnp.asarray(array) if impl is None else jax.random.wrap_key_data(jnp.asarray(array), impl=impl)


def _to_json(meta: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(meta), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LaconicError(f"checkpoint meta is not JSON: {error}. Keep it to strings, numbers and lists.") from error


def _digest(meta_json: str, keys_json: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(json.dumps([meta_json, keys_json, len(arrays)]).encode())
    for name, array in sorted(arrays.items()):
        # a JSON line states how many bytes follow (dtype and shape), so no two contents share a byte stream
        total.update(json.dumps([name, str(array.dtype), array.shape]).encode() + b"\n")
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _read(path: Path) -> _Contents:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LaconicError(f"cannot read checkpoint {path}: {error.strerror or error}. Check the path.") from error
    try:
        tensors = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise LaconicError(
            f"{path} is not a whole safetensors file ({error}): it is damaged or something else; use another copy."
        ) from error
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    _require_ours(path, header)
    meta_json, keys_json = header.get("meta", ""), header.get("keys", "")
    arrays = {
        name: np.frombuffer(tensor["data"], DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
        for name, tensor in tensors
        if tensor["dtype"] in DTYPES
    }
    # a dtype that save never writes cannot be hashed, and is damage all the same
    if len(arrays) < len(tensors) or _digest(meta_json, keys_json, arrays) != header.get("sha256"):
        raise LaconicError(f"{path} is damaged: its contents do not match their sha256. Use another copy.")
    return _Contents(arrays, json.loads(keys_json), json.loads(meta_json))


def _require_ours(path: Path, header: Mapping[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise LaconicError(
            f"{path} is a safetensors file but not a {FORMAT} (its format is {header.get('format')!r}): "
            "give a file that laconic saved."
        )
    version = header.get("version", "")
    if version != str(VERSION):
        raise LaconicError(
            f"{path} is a {FORMAT} of version {version!r}, and this laconic reads version {VERSION}: "
            "install the laconic that wrote it or a later one."
        )


def _require_match(path: str | Path, wanted: Mapping[str, Any], found: Mapping[str, jax.Array]) -> None:
    def spec(leaf: Any) -> str:
        return f"{leaf.dtype}{list(leaf.shape)}"

    faults = [f"{name} is missing" for name in wanted if name not in found]
    faults += [f"{name} is not wanted" for name in found if name not in wanted]
    faults += [
        f"{name} is {spec(found[name])} but {spec(leaf)} is wanted"
        for name, leaf in wanted.items()
        if name in found and spec(found[name]) != spec(leaf)
    ]
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise LaconicError(
            f"checkpoint {path} does not fit: {'; '.join(faults[:SHOWN])}{more}. "
            "Load it with the settings it was saved with, or start afresh elsewhere."
        )
