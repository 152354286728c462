"""What a broken or hostile worker might send instead of its message."""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from laconic.engines.wire import BLOCK, FIELDS, HEADER, LANES, MAGIC, SIGNED, VERSION, Header, Seal

KINDS = (
    "nan",
    "inf",
    "huge",
    "shape",
    "structure",
    "old",
    "garbage",
    "token",
    "worker",
    "version",
    "origin",
    "weight",
)


def spoil(frame: np.ndarray, kind: str, seal: Seal) -> np.ndarray:
    """A copy of a worker's frame gone bad; where the worker itself is at fault it is properly
    signed."""
    bad = np.array(frame)
    _, _, *fields = FIELDS.unpack_from(bad, 0)
    header, version, signer = Header(*fields), VERSION, seal
    numbers = bad[HEADER:].view(np.float32)
    if kind in ("nan", "inf", "huge"):
        numbers[7] = {"nan": np.nan, "inf": np.inf, "huge": 1e30}[kind]
    elif kind == "shape":
        bad[-1024:] = 0  # what an engine fills up
        return sign(bad, header._replace(body=header.body - 1024), version, signer)[:-1024].copy()
    elif kind == "structure":
        header = header._replace(structure=bytes(16))
    elif kind == "old":
        header = header._replace(round=header.round - 1)
    elif kind == "garbage":
        return np.random.default_rng(0).integers(0, 256, bad.size, np.uint8)
    elif kind == "token":
        signer = Seal(b"guessed", seal.identity)
    elif kind == "worker":
        header = header._replace(worker=(header.worker + 1) % 4)
    elif kind == "version":
        version = VERSION + 1
    elif kind == "origin":
        header = header._replace(origin=bytes(32))
    elif kind == "weight":
        header = header._replace(weight=1e9)
    else:
        raise ValueError(kind)
    return sign(bad, header, version, signer)


def sign(frame: np.ndarray, header: Header, version: int, seal: Seal) -> np.ndarray:
    FIELDS.pack_into(frame, 0, MAGIC, version, *header)
    frame[SIGNED:HEADER] = np.frombuffer(
        seal.sign(frame[:SIGNED], fold_by_hand(seal, frame)), np.uint8
    )
    return frame


def fold_by_hand(seal: Seal, frame: np.ndarray) -> np.ndarray:
    """The fold of a frame's body once more, [LANES, blocks]: a matrix of keys in NumPy."""
    words = frame[HEADER:].view("<u4").astype(np.uint64)
    blocks = np.pad(words, (0, -words.size % BLOCK)).reshape(-1, BLOCK)
    halves = np.concatenate([blocks % 2**16, blocks // 2**16], axis=1)
    keys = np.stack([seal.fold_key[t : t + 2 * BLOCK] for t in range(LANES)]).astype(np.uint64)
    return np.stack([(halves * row).sum(axis=1) % 2**32 for row in keys]).astype(np.uint32)


def poisoned(
    gather: Callable[..., Any], worker: int, kinds: Mapping[int, str], seal: Seal
) -> Callable[..., Any]:
    """An engine's gather that sends something bad in the given rounds."""

    def spoiled(frames: Mapping[int, Any], size: int) -> Any:
        frame = np.frombuffer(frames[worker], np.uint8)
        kind = kinds.get(struct.unpack_from("<Q", frame, FIELDS.size - 28)[0])
        return gather({worker: frame if kind is None else spoil(frame, kind, seal)}, size)

    return spoiled
