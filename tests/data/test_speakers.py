"""Speakers of a play as clients: who says what, by another reading, and how it is split."""

import re

import numpy as np
import pytest

from laconic.data import speakers

PLAY = "ANNA:\n{a}\n\nBEN:\n{b}\n\nANNA:\n{c}\n\nLAST:\nshort\n"


def independently(text):
    """Speaker → characters of all speeches, the lines with the name included."""
    found = {}
    for speech in re.finditer(r"(?:\A|(?<=\n\n))([^\n]+):\n(?:[^\n]+(?:\n|\Z))+", text):
        found[speech[1]] = found.get(speech[1], 0) + len(speech[0].rstrip("\n")) + 1
    return found


@pytest.fixture
def play(tmp_path):
    rng = np.random.default_rng(0)
    words = lambda n: "".join(rng.choice(list("abc de"), n)).replace("  ", " .")
    text = PLAY.format(a=words(700), b=words(900), c=words(400))
    (tmp_path / "play.txt").write_text(text)
    return tmp_path / "play.txt", text


def test_the_windows_of_each_speaker_are_its_own_text_in_order(play):
    path, text = play
    feed = speakers.load(str(path), context=9, least=500).feed
    train = {name: np.asarray(x) for name, x in feed.splits["train"].items()}
    assert (train["x"].dtype, train["x"].shape[1]) == (np.uint8, 10)
    blocks = text.rstrip("\n").split("\n\n")
    whole = {0: f"{blocks[0]}\n{blocks[2]}\n", 1: f"{blocks[1]}\n"}
    assert set(train["client"].tolist()) == {0, 1}  # the last one says too little
    held_out = {s: np.asarray(feed.splits[s]["x"]) for s in ("valid", "outer_valid", "test")}
    for client, spoken in whole.items():
        said = train["x"][train["client"] == client].tobytes().decode()
        windows, tenth = len(spoken) // 10, len(spoken) // 100
        assert said == spoken[: 10 * (windows - 3 * tenth)]
        at = 10 * (windows - 3 * tenth)
        for split, rows in held_out.items():
            own = rows[: len(whole[0]) // 100] if client == 0 else rows[len(whole[0]) // 100 :]
            assert own.tobytes().decode() == spoken[at : at + 10 * tenth], split
            at += 10 * tenth
    assert "client" not in feed.splits["test"]


def test_shakespeare_has_105_speakers_of_2000_characters(real_data):
    real_data("text")
    text, _ = speakers.read(speakers.PLAYS)
    counted = {name: n for name, n in independently(text.decode()).items() if n >= 2000}
    found = speakers.speakers(text, 2000)
    assert {name: len(words) for name, words in found.items()} == counted
    assert len(counted) == 105
    dataset = speakers.load(context=80)
    sizes = np.bincount(np.asarray(dataset.feed.splits["train"]["client"]))
    windows = [counted[name] // 81 for name in sorted(counted)]
    assert sizes.tolist() == [n - 3 * (n // 10) for n in windows]
    assert dataset.source.startswith("105 speakers of tinyshakespeare.txt")


def test_a_text_without_speakers_is_refused(tmp_path, raises_clearly):
    (tmp_path / "x.txt").write_text("no speakers here\n\n" * 500)
    with raises_clearly("has 0 speakers of at least 2000 characters", "a name and a colon"):
        speakers.load(str(tmp_path / "x.txt"))
    (tmp_path / "y.txt").write_text("A:\n" + "word " * 500 + "\n")
    with raises_clearly("has 1 speakers", "windows of 2001 bytes"):
        speakers.load(str(tmp_path / "y.txt"), context=2000)
