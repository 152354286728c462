"""A sealed file: named arrays and a JSON dictionary in one safetensors file, under one hash, read
and written whole.

The header's metadata holds `format`, `version`, `meta` (the caller's JSON), `keys` (which arrays
are typed PRNG keys, and of which implementation) and `sha256` over all of that and every array.
Nothing here needs JAX: what a name means, and what a key is, `checkpoint` and the zoo know.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from laconic.errors import LaconicError
from laconic.store import atomic

FORMAT = "laconic-checkpoint"
VERSION = 1

DTYPES = {  # safetensors' codes for what an array may be
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
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


class Contents(NamedTuple):
    """A verified file: its arrays by name, the implementation of each that is a PRNG key, and the
    caller's meta."""

    arrays: dict[str, np.ndarray]
    keys: dict[str, str]
    meta: dict[str, Any]


def write(path: str | Path, contents: Contents) -> None:
    """Replace `path` by these contents in one step; a crash leaves the old file."""
    meta_json, keys_json = _to_json(contents.meta), json.dumps(contents.keys)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "sha256": digest(meta_json, keys_json, contents.arrays),
        "keys": keys_json,
        "meta": meta_json,
    }
    atomic.write_bytes(path, safetensors.numpy.save(contents.arrays, metadata=header))


def read(path: Path) -> Contents:
    """What the file holds, once the whole of it is known to be sound."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LaconicError(
            f"cannot read checkpoint {path}: {error.strerror or error}. Check the path."
        ) from error
    try:
        tensors = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise LaconicError(
            f"{path} is not a whole safetensors file ({error}): it is damaged or something else; "
            "use another copy."
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
    # a dtype that `write` never writes cannot be hashed, and is damage all the same
    if len(arrays) < len(tensors) or digest(meta_json, keys_json, arrays) != header.get("sha256"):
        raise LaconicError(
            f"{path} is damaged: its contents do not match their sha256. Use another copy."
        )
    return Contents(arrays, json.loads(keys_json), json.loads(meta_json))


def digest(meta_json: str, keys_json: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The hash that seals a file."""
    total = hashlib.sha256(json.dumps([meta_json, keys_json, len(arrays)]).encode())
    for name, array in sorted(arrays.items()):
        # a JSON line states how many bytes follow (dtype and shape), so no two contents share a
        # byte stream
        total.update(json.dumps([name, str(array.dtype), array.shape]).encode() + b"\n")
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _to_json(meta: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(meta), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LaconicError(
            f"checkpoint meta is not JSON: {error}. Keep it to strings, numbers and lists."
        ) from error


def _require_ours(path: Path, header: Mapping[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise LaconicError(
            f"{path} is a safetensors file but not a {FORMAT} (its format is "
            f"{header.get('format')!r}): "
            "give a file that laconic saved."
        )
    version = header.get("version", "")
    if version != str(VERSION):
        raise LaconicError(
            f"{path} is a {FORMAT} of version {version!r}, and this laconic reads version "
            f"{VERSION}: "
            "install the laconic that wrote it or a later one."
        )
