"""A play as a data set with natural clients, as in LEAF: every speaker is one.

A speech is a block of lines, the first of which is a name and a colon. What a speaker says are all
of these blocks, names included, in order, without the empty lines between them. Speakers with few
characters are left out. Each one's text is cut into windows of context + 1 bytes: the last
tenth for "test", those before it for "valid" and "outer_valid", all in the order of the play.
"client" numbers the rows of the train split by speaker, in alphabetical order.
"""

import hashlib

import jax.numpy as jnp
import numpy as np

from laconic.data.bpe import BYTES
from laconic.data.feed import Resident
from laconic.data.splits import Dataset
from laconic.data.text import HELD_OUT_ROWS, read, spread
from laconic.errors import LaconicError, require_positive

PLAYS = "text/tinyshakespeare.txt"
LEAST = 2000  # characters of a speaker, as in LEAF


def load(file: str | None = None, context: int = 80, least: int = LEAST) -> Dataset:
    """The bytes of all speakers with at least so many characters.

    Batches are {"x": [B, context + 1], "client": [B]}; held-out splits have no "client".
    """
    require_positive(context=context, least=least)
    text, name = read(file or PLAYS)
    spoken = speakers(text, least)
    width = context + 1
    parts: dict[str, list[np.ndarray]] = {"train": [], "valid": [], "outer_valid": [], "test": []}
    for words in spoken.values():
        tokens = np.frombuffer(words, np.uint8)
        windows = tokens[: len(tokens) // width * width].reshape(-1, width)
        tenth = len(windows) // 10
        ends = np.cumsum([len(windows) - 3 * tenth, tenth, tenth])
        for split, rows in zip(parts, np.split(windows, ends), strict=True):
            parts[split].append(rows)
    sizes = [len(rows) for rows in parts["train"]]
    tables = {split: np.concatenate(rows) for split, rows in parts.items() if rows}
    if not spoken or min(sizes) == 0 or not all(len(table) for table in tables.values()):
        raise LaconicError(
            f"{name} has {len(spoken)} speakers of at least {least} characters, too few or too "
            f"short for windows of {width} bytes: a speech is a name and a colon on a line, then "
            "what is said, then an empty line. Give another text, a smaller context or another "
            "least."
        )
    client = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    train = {"x": jnp.asarray(tables.pop("train")), "client": jnp.asarray(client)}
    held_out = {s: {"x": jnp.asarray(spread(x, HELD_OUT_ROWS))} for s, x in tables.items()}
    digest = hashlib.sha256(text).hexdigest()
    source = (
        f"{len(sizes)} speakers of {name.rpartition('/')[2]}, {len(text)} bytes, sha256:{digest}"
    )
    return Dataset(Resident({"train": train, **held_out}), BYTES, source)


def speakers(text: bytes, least: int) -> dict[str, bytes]:
    """What each speaker says, by name."""
    found: dict[str, list[bytes]] = {}
    for block in text.replace(b"\r\n", b"\n").split(b"\n\n"):
        speech = block.strip(b"\n")
        head, _, said = speech.partition(b"\n")
        if head.endswith(b":") and said:
            found.setdefault(head[:-1].decode("utf-8", "replace"), []).append(speech)
    whole = {name: b"\n".join(found[name]) + b"\n" for name in sorted(found)}
    return {name: words for name, words in whole.items() if len(words) >= least}
