"""Byte-pair tokens (Sennrich et al., 2016) learned from a text itself.

Every byte is a token, and so is every merge. A text is first cut into words: letters and digits, or
signs, each with the space before it, or other white space. A merge joins the most frequent pair of
neighbouring tokens within words; of equally frequent pairs, the one with the smaller numbers. Any
bytes can be encoded, decoding restores them, and the same text always gives the same tokens.
"""

import contextlib
import hashlib
import heapq
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from laconic.data.files import arriving
from laconic.errors import LaconicError

BYTES = 256
CACHE = Path("~/.cache/laconic/tokenizers")
LARGEST = 65_536  # tokens are kept as 16-bit numbers
WORD = re.compile(rb" ?[A-Za-z0-9_\x80-\xff]+| ?[^\sA-Za-z0-9_\x80-\xff]+|\s+(?!\S)|\s")

Pair = tuple[int, int]


@dataclass(frozen=True)
class BytePairs:
    """A vocabulary: token 256 + i joins the two tokens of merge i."""

    merges: tuple[Pair, ...]

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return BYTES + len(self.merges)

    def encode(self, text: bytes) -> np.ndarray:
        """The tokens of a text, uint16."""
        ranks = {pair: i for i, pair in enumerate(self.merges)}
        known: dict[bytes, list[int]] = {}
        tokens: list[int] = []
        for word in WORD.findall(text):
            if word not in known:
                known[word] = _encode_word(word, ranks)
            tokens += known[word]
        return np.array(tokens, np.uint16)

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The text of some tokens."""
        spelled = [bytes([i]) for i in range(BYTES)]
        for a, b in self.merges:
            spelled.append(spelled[a] + spelled[b])
        return b"".join(spelled[token] for token in tokens)


def _encode_word(word: bytes, ranks: dict[Pair, int]) -> list[int]:
    tokens = list(word)
    while len(tokens) > 1:
        pair = min(itertools.pairwise(tokens), key=lambda pair: ranks.get(pair, LARGEST))
        if pair not in ranks:
            break
        tokens = _merged(tokens, pair, BYTES + ranks[pair])
    return tokens


def _merged(tokens: Sequence[int], pair: Pair, new: int) -> list[int]:
    """The tokens with each occurrence of the pair, from the left, replaced."""
    out, i = [], 0
    while i < len(tokens):
        if i + 1 < len(tokens) and (tokens[i], tokens[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(tokens[i])
            i += 1
    return out


def learn(text: bytes, size: int, tell: Callable[[int], None] = lambda done: None) -> BytePairs:
    """The vocabulary of `size` tokens for a text; `tell(merges so far)` is called after each."""
    if not BYTES < size <= LARGEST:
        raise LaconicError(
            f"a vocabulary of byte pairs has {BYTES + 1} to {LARGEST} tokens, got {size}."
        )
    counted = Counter(WORD.findall(text))
    words, times = [list(word) for word in counted], list(counted.values())
    counts: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for w, word in enumerate(words):
        for pair in itertools.pairwise(word):
            counts[pair] += times[w]
            where[pair].add(w)
    heap = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(heap)
    merges: list[Pair] = []
    while len(merges) < size - BYTES:
        pair = _most_frequent(heap, counts)
        if pair is None:
            raise LaconicError(
                f"the text has pairs for {BYTES + len(merges)} tokens only, not {size}; ask for a "
                "smaller vocabulary."
            )
        changed = _apply(pair, BYTES + len(merges), words, times, counts, where)
        for other in changed:
            heapq.heappush(heap, (-counts[other], other))
        merges.append(pair)
        tell(len(merges))
    return BytePairs(tuple(merges))


def _most_frequent(heap: list[tuple[int, Pair]], counts: Counter[Pair]) -> Pair | None:
    """The best pair that occurs at least twice; heap items with an outdated count are skipped."""
    while heap:
        n, pair = heapq.heappop(heap)
        if -n == counts[pair]:
            return pair if -n > 1 else None
    return None


def _apply(
    pair: Pair,
    new: int,
    words: list[list[int]],
    times: list[int],
    counts: Counter[Pair],
    where: defaultdict[Pair, set[int]],
) -> set[Pair]:
    """Merge a pair in every word that has it → the pairs whose count has changed."""
    changed: set[Pair] = set()
    for w in where.pop(pair):
        before, after = words[w], _merged(words[w], pair, new)
        for sign, tokens in ((-1, before), (1, after)):
            for each in itertools.pairwise(tokens):
                counts[each] += sign * times[w]
                changed.add(each)
                if sign > 0:
                    where[each].add(w)
        words[w] = after
    del counts[pair]
    return changed - {pair}


def learned_once(text: bytes, size: int, folder: Path = CACHE) -> BytePairs:
    """`learn`, cached as JSON under the text's digest; progress is shown on a terminal's stderr.

    A damaged or foreign cache file is replaced; a folder that cannot be written to is ignored.
    """
    about = {"sha256": hashlib.sha256(text).hexdigest(), "size": size}
    path = folder.expanduser() / f"{about['sha256'][:16]}-{size}.json"
    found = _saved(path, about)
    if found is not None:
        return found
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("learning byte pairs", total=size - BYTES)
        found = learn(text, size, lambda done: progress.update(bar, completed=done))
    with contextlib.suppress(OSError), arriving(path) as part:
        part.write_text(json.dumps({**about, "merges": found.merges}))
    return found


def _saved(path: Path, about: dict[str, Any]) -> BytePairs | None:
    """The vocabulary in a file, if it is sound and was learned from this text at this size."""
    try:
        found = json.loads(path.read_text())
        merges = tuple((a, b) for a, b in found.pop("merges"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    flat = [(i, token) for i, pair in enumerate(merges) for token in pair]
    sound = all(type(token) is int and 0 <= token < BYTES + i for i, token in flat)
    whole = found == about and BYTES + len(merges) == about["size"]
    return BytePairs(merges) if sound and whole else None
