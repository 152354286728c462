"""Checkpoints: any pytree of arrays and a JSON dictionary in one sealed file, hashed and atomically
replaced.

A leaf's name is its pytree path as `jax.tree_util.keystr` spells it. The tree's structure is not
stored: `load` takes it from `like`, and checks it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laconic.errors import LaconicError
from laconic.store import sealed

Tree = Any

SHOWN = 3  # how many differing leaves an error names


def save(path: str | Path, tree: Tree, meta: Mapping[str, Any]) -> None:
    """Write `tree` and `meta` to `path` in one step; a crash leaves the old file.

    Leaves are NumPy arrays, JAX arrays or typed PRNG keys, never Python numbers (their dtype would
    be a guess). `meta` must be JSON: it comes back as JSON reads it, tuples as lists and keys as
    strings.
    """
    arrays: dict[str, np.ndarray] = {}
    keys: dict[str, str] = {}
    for name, leaf in _named_leaves(tree, (np.ndarray, np.generic, jax.Array)).items():
        if _is_key(leaf):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = _to_numpy(name, leaf)
    sealed.write(path, sealed.Contents(arrays, keys, dict(meta)))


def load(path: str | Path, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """The tree at `path` in the structure of `like`, as JAX arrays, and its meta.

    `like` is a pytree of arrays or `jax.ShapeDtypeStruct`s whose names, shapes and dtypes the file
    must match.
    """
    contents = sealed.read(Path(path))
    wanted = _named_leaves(like, (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct))
    found = {}
    for name, array in sorted(contents.arrays.items()):
        _require_native(f"leaf {name} of checkpoint {path}", array.dtype)
        found[name] = _to_jax(array, contents.keys.get(name))
    _require_match(path, wanted, found)
    return jax.tree.unflatten(
        jax.tree.structure(like), [found[name] for name in wanted]
    ), contents.meta


def peek(path: str | Path) -> dict[str, Any]:
    """The meta of the checkpoint at `path`, once the whole file is known to be sound."""
    return sealed.read(Path(path)).meta


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
            raise LaconicError(
                f"two checkpoint leaves are both called {name}: give the nodes distinct key paths."
            )
        named[name] = leaf
    return named


def _to_numpy(name: str, leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise LaconicError(
            f"checkpoint leaf {name} lies partly in other processes: gather it to this one first."
        )
    if leaf.dtype not in sealed.CODES:
        raise LaconicError(
            f"checkpoint leaf {name} is {leaf.dtype}, which a checkpoint cannot hold: cast it "
            "first."
        )
    _require_native(f"checkpoint leaf {name}", leaf.dtype)
    return np.asarray(leaf, order="C")  # the writer takes raw memory, so strides must be plain


def _require_native(what: str, dtype: np.dtype) -> None:
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise LaconicError(
            f"{what} is {dtype}, which JAX would silently restore as "
            f"{jax.dtypes.canonicalize_dtype(dtype)}: set jax_enable_x64, or cast before saving."
        )


def _to_jax(array: np.ndarray, impl: str | None) -> jax.Array:
    return (
        jnp.asarray(array)
        if impl is None
        else jax.random.wrap_key_data(jnp.asarray(array), impl=impl)
    )


def _require_match(
    path: str | Path, wanted: Mapping[str, Any], found: Mapping[str, jax.Array]
) -> None:
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
