"""Byte pairs: round trips of any bytes, a naive twin that counts everything anew, and what is
remembered."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.data import bpe

ENGLISH = b"the cat sat on the mat, the other cat sat on that mat; what a cat!\n" * 3
LETTERS = st.text("ab \n.", max_size=60).map(str.encode)


def naive(text, size):
    """All words, all pairs, counted again for every merge; of equals the smallest pair."""
    words = [list(word) for word in bpe.WORD.findall(text)]
    merges = []
    while len(merges) < size - 256:
        counts = Counter(pair for word in words for pair in itertools.pairwise(word))
        if not counts or max(counts.values()) < 2:
            return None
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [255 + len(merges)]
                i += 1
    return merges, [token for word in words for token in word]


@settings(max_examples=60, deadline=None)
@given(LETTERS, st.integers(257, 262))
def test_merges_and_tokens_are_the_naive_ones(text, size):
    expected = naive(text, size)
    if expected is None:
        with pytest.raises(bpe.LaconicError, match="smaller vocabulary"):
            bpe.learn(text, size)
        return
    pairs = bpe.learn(text, size)
    assert list(pairs.merges) == expected[0]
    assert pairs.encode(text).tolist() == expected[1]


def test_a_longer_text_against_the_naive_twin():
    pairs = bpe.learn(ENGLISH, 274)
    merges, tokens = naive(ENGLISH, 274)
    assert list(pairs.merges) == merges
    assert pairs.encode(ENGLISH).tolist() == tokens
    assert len(tokens) < len(ENGLISH) / 2
    assert pairs.decode([pairs.size - 1]).strip() in ENGLISH


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_come_back(text):
    pairs = bpe.learn(ENGLISH, 275)
    tokens = pairs.encode(text)
    assert tokens.dtype == np.uint16
    assert pairs.decode(tokens.tolist()) == text
    assert len(tokens) <= len(text)
    assert tokens.max(initial=0) < pairs.size == 275


@given(st.binary(max_size=100))
def test_words_make_up_the_text(text):
    assert b"".join(bpe.WORD.findall(text)) == text


def test_words_carry_the_space_before_them():
    words = [b"a", b" ", b" cat", b"'", b"s_tail", b"\n\n", b" x", b"(", b"1", b")"]
    assert bpe.WORD.findall(b"a  cat's_tail\n\n x(1)") == words


def test_a_vocabulary_has_bounds(raises_clearly):
    with raises_clearly("257 to 65536 tokens", "got 256"):
        bpe.learn(ENGLISH, 256)
    with raises_clearly("257 to 65536 tokens", "got 65537"):
        bpe.learn(ENGLISH, 65_537)
    with raises_clearly("tokens only, not 4096", "smaller vocabulary"):
        bpe.learn(ENGLISH, 4096)


@pytest.fixture
def counted(monkeypatch):
    """How often anything was learned."""
    calls, learn = [], bpe.learn
    monkeypatch.setattr(bpe, "learn", lambda *args: calls.append(1) or learn(*args))
    return calls


def test_what_was_learned_is_remembered_as_json(tmp_path, counted):
    first = bpe.learned_once(ENGLISH, 270, tmp_path / "new")
    (path,) = (tmp_path / "new").iterdir()
    assert json.loads(path.read_text())["merges"] == [list(pair) for pair in first.merges]
    assert bpe.learned_once(ENGLISH, 270, tmp_path / "new") == first == bpe.learn(ENGLISH, 270)
    assert len(counted) == 2  # once by itself, once just now
    assert bpe.learned_once(ENGLISH, 271, tmp_path / "new").size == 271
    assert bpe.learned_once(ENGLISH + b"more", 270, tmp_path / "new").size == 270
    assert len(list((tmp_path / "new").iterdir())) == 3


@pytest.mark.parametrize(
    "spoiled",
    [
        "",
        "[]",
        "{}",
        '{"merges": [[1]]}',
        '{"merges": 3}',
        "sha",  # the right digest and number of merges, one of which joins what is not there yet
        "short",
    ],
)
def test_a_damaged_file_is_replaced(tmp_path, counted, spoiled):
    good = bpe.learned_once(ENGLISH, 258, tmp_path)
    (path,) = tmp_path.iterdir()
    right = path.read_text()
    content = json.loads(right)
    later = {**content, "merges": [[97, 300], [1, 2]]}
    texts = {
        "sha": json.dumps(later),
        "short": json.dumps({**content, "merges": content["merges"][:1]}),
    }
    path.write_text(texts.get(spoiled, spoiled))
    assert bpe.learned_once(ENGLISH, 258, tmp_path) == good
    assert len(counted) == 2
    assert path.read_text() == right


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path, counted):
    (tmp_path / "file").write_text("")
    assert bpe.learned_once(ENGLISH, 258, tmp_path / "file" / "below").size == 258
    assert bpe.learned_once(ENGLISH, 258, tmp_path / "file" / "below").size == 258
    assert len(counted) == 2
