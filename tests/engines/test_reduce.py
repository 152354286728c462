"""Messages that travel in pieces: the same weights as in float64 on the host and as when they
travel whole, whatever one of the workers sends."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.light import TOKEN, LightCrew, LightWorker
from laconic.engines.base import Interrupted
from laconic.engines.pieces import BROKEN, CARD, DIGEST, CardLayout, Cut, Facts, Verdict, digest_of
from laconic.engines.pieces import measure as pieces_of
from laconic.engines.reduce import ReduceScatter
from laconic.engines.wire import FIELDS, HEADER, MAGIC, VERSION, Header, Seal
from tests.engines.poison import fold_by_hand

K, SIZE, BAD = 4, 2500, 2
SEAL = Seal.of(TOKEN, "light")
IN_CARD = {
    "nan": "not finite",
    "inf": "not finite",
    "huge": "norm",
    "overflow": "norm",
    "norm": "piece",
    "checksum": "piece",
    "tensors": "piece",
    "negative": "piece",
    "token": "token",
    "old": "round",
    "weight": "weight",
}
IN_PIECE = {"flipped": "piece", "truncated": "piece", "swapped": "piece"}
IN_MEAN = ("nan mean", "longer mean", "mean with one wrong weight", "unsigned mean", "short mean")


def deltas(worker: LightWorker, now: int) -> list[np.ndarray]:
    """What a light worker sends in a round."""
    rng = np.random.default_rng((worker.worker, now))
    shapes = [leaf.shape for leaf in worker.programs.layout.leaves]
    return [0.01 * rng.standard_normal(shape, np.float32) for shape in shapes]


def averaged(crew: LightCrew) -> list[np.ndarray]:
    """The weights that averaging leads to, in float64, given who counted in each round."""
    rounds: dict[int, tuple[int, ...]] = {}
    for worker in crew.workers:
        for done in worker.done:
            assert rounds.setdefault(done.round - 1, done.counted) == done.counted
    weights = [np.asarray(x, np.float64) for x in jax.tree.leaves(crew.replica.shared.params)]
    for now, counted in sorted(rounds.items()):
        sent = [deltas(crew.workers[k], now) for k in counted]
        weights = [w - np.mean([one[i] for one in sent], 0) for i, w in enumerate(weights)]
    return weights


def check_equal(crew: LightCrew, workers: Any = None) -> None:
    """All end with one state, and it is the one that the counted messages lead to."""
    ended = [crew.workers[k] for k in (range(K) if workers is None else workers)]
    assert len({crew.programs.digest(one.replica) for one in ended}) == 1
    found = jax.tree.leaves(ended[0].replica.shared.params)
    for have, want in zip(found, averaged(crew), strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-6 * np.max(np.abs(want)))


def is_card(worker: LightWorker, parts: Any) -> bool:
    return bool(parts) and parts[0].nbytes == worker.programs.card.size


def is_mean(worker: LightWorker, parts: Any) -> bool:
    return bool(parts) and parts[0].nbytes == worker.programs.cut.bytes


def spoil_card(worker: LightWorker, kind: str, card: np.ndarray) -> np.ndarray:
    """The card of a broken worker, signed as its own."""
    layout = worker.programs.card
    header, facts = Header(*FIELDS.unpack_from(card.data, 0)[2:]), layout.read(card)
    seal = SEAL
    if kind == "norm":  # of a huge message
        facts = facts._replace(squares=facts.squares / np.float32(1e8))
    elif kind == "checksum":
        facts = facts._replace(checks=facts.checks + np.float32(1))
    elif kind == "tensors":
        facts = facts._replace(tensors=facts.tensors * np.float32(3))
    elif kind == "negative":
        facts = facts._replace(squares=-facts.squares)
    elif kind == "token":
        seal = Seal.of("guessed", "light")
    elif kind == "old":
        header = header._replace(round=header.round - 1)
    return layout.write(seal, header, facts)


def spoil(worker: LightWorker, kinds: dict[int, str]) -> None:
    """Have a worker go wrong in some rounds."""
    message, exchange, at = worker.message, worker.engine.exchange, [0]

    def broken(now: int, origin: bytes, empty: bool = False) -> Any:
        at[0], kind, made = now, kinds.get(now, ""), message(now, origin, empty)
        values = {"nan": np.nan, "inf": np.inf, "huge": 1e6, "overflow": 1e30, "norm": 1e4}
        if kind in values and not empty:
            worker.programs.pieces(made.room).view(np.float32)[1, 7] = values[kind]
            made = made._replace(facts=worker.programs.facts(SEAL, made.room))
        if kind == "weight":
            said = Header(*FIELDS.unpack_from(made.room.data, 0)[2:])._replace(weight=1e9)
            FIELDS.pack_into(made.room.data, 0, MAGIC, VERSION, *said)
        return made

    def send(sends: Any, into: Any) -> None:
        kind = kinds.get(at[0], "")
        sends = {w: list(parts) for w, parts in sends.items()}
        first = next(iter(sends.values()), [])
        if kind == "dies" and first and not is_card(worker, first):
            raise SystemExit("gone")
        if is_card(worker, first):
            card = spoil_card(worker, kind, first[0]) if kind in IN_CARD else first[0]
            sends = {w: [card, *parts[1:]] for w, parts in sends.items()}
        if kind in IN_PIECE and is_card(worker, first):
            target = 0 if kind != "swapped" else 1  # one owner alone gets something wrong
            piece = np.array(sends[target][1])
            half = piece.size // 2
            if kind == "flipped":
                piece[3] ^= 1
            elif kind == "truncated":
                piece[half:] = 0
            else:
                piece = np.concatenate([piece[half:], piece[:half]])
            sends[target][1] = piece
        if kind in IN_MEAN and is_mean(worker, first):
            sends = {w: wrong_mean(worker, kind, parts) for w, parts in sends.items()}
        exchange(sends, into)

    worker.message, worker.engine.exchange = broken, send


def wrong_mean(worker: LightWorker, kind: str, parts: list[np.ndarray]) -> list[np.ndarray]:
    """Signed by its owner, but for one."""
    mean = np.array(parts[0])
    if kind == "unsigned mean":
        mean[5] += 1e-5
        return [mean, *parts[1:]]
    if kind == "nan mean":
        mean[5] = np.nan
    elif kind == "longer mean":
        mean *= 3
    elif kind == "short mean":
        mean[mean.size // 2 :] = 0
    else:
        mean[5] += 0.1
    seen = worker.programs.seen(SEAL.fold_key, mean[None].view(np.uint32))
    folded = np.asarray(seen.folds[0])
    said = SEAL.sign(b"mean", worker.about, worker.worker.to_bytes(8, "little"), folded)
    return [mean, np.frombuffer(said, np.uint8), *parts[2:]]


@pytest.fixture
def crew():
    made = []

    def make(rounds: int, exchange: str = "reduce", **more: Any) -> LightCrew:
        made.append(LightCrew(K, SIZE, rounds, exchange=exchange, **more))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()


def run(made: LightCrew) -> LightCrew:
    made.begin()
    made.join(120.0)
    return made


def test_what_is_wrong_with_a_message_leaves_it_out_of_all_pieces(crew):
    kinds = {i + 2: kind for i, kind in enumerate(["nan", *IN_CARD, *IN_PIECE]) if i}
    made = crew(len(kinds) + 3, outer="fedexp")
    spoil(made.workers[BAD], kinds)
    run(made)
    for worker in made.workers:
        assert not worker.notes
        for done in worker.done:
            kind = kinds.get(done.round - 1)
            want = {BAD: (IN_CARD | IN_PIECE)[kind]} if kind else {}
            if worker.worker != BAD:  # which does not see its own card as others do
                assert done.excluded == want, kind
            assert done.counted == tuple(k for k in range(K) if k not in want)
    assert len({made.programs.digest(one.replica) for one in made.workers}) == 1


def test_a_wrong_mean_is_not_taken(crew):
    """Its owner, which has the right one, goes on; the others take over its state."""
    made = crew(2 * len(IN_MEAN) + 2)
    spoil(made.workers[BAD], {2 * i + 1: kind for i, kind in enumerate(IN_MEAN)})
    watch(made.workers[BAD])
    run(made)
    check_equal(made)
    others = [worker for worker in made.workers if worker.worker != BAD]
    for worker in others:
        wrong = [note for note in worker.notes if "piece" in note]
        assert len(wrong) <= len(IN_MEAN)
        assert sum(done.healed for done in worker.done) <= len(IN_MEAN)
    said = " ".join(note for worker in others for note in worker.notes)
    assert f"worker {BAD} sent a wrong mean of piece {BAD}" in said
    assert f"the mean of piece {BAD} is not signed by worker {BAD}" in said


def watch(worker: LightWorker) -> None:
    """Remember what names the exchange that a worker is in."""
    topology: Any = worker.topology
    hand_round = topology._hand_round

    def remembering(call: Any, plan: Any, *rest: Any) -> Any:
        worker.about = plan.about
        return hand_round(call, plan, *rest)

    topology._hand_round = remembering


def test_an_owner_that_computes_wrong_does_not_get_its_way(crew):
    """All see it, the owner too, and gather whole messages for that round."""
    made = crew(4)
    topology: Any = made.workers[BAD].topology
    average, calls = topology._average, []

    def wrong(plan: Any, *rest: Any) -> Any:
        calls.append(plan.now)
        return average(plan, *rest) + (0.5 if plan.now == 2 else 0.0)

    topology._average = wrong
    run(made)
    check_equal(made)
    assert calls == [0, 1, 2, 3]
    for worker in made.workers:
        assert [done.attempts for done in worker.done] == [1, 1, 2, 1]
        assert all(not done.excluded for done in worker.done)


def test_an_owner_that_finds_fault_with_all_is_not_believed(crew):
    made = crew(3)
    topology: Any = made.workers[BAD].topology
    faults = topology._faults
    blind = lambda plan, *rest: frozenset({0, 1, 3}) if plan.now == 1 else faults(plan, *rest)
    topology._faults = blind
    run(made)
    check_equal(made)
    assert all(done.counted == tuple(range(K)) for w in made.workers for done in w.done)
    notes = " ".join(note for worker in made.workers for note in worker.notes)
    assert "finds fault with most pieces" in notes


@pytest.mark.parametrize("outer", ["average", "fedexp"])
def test_it_is_what_whole_messages_give(crew, outer):
    found = {}
    for exchange in ("gather", "reduce"):
        made = run(crew(5, exchange, outer=outer))
        found[exchange] = [np.asarray(x) for x in jax.tree.leaves(made.workers[0].replica.shared)]
        if outer == "average":
            check_equal(made)
    for one, other in zip(*found.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.max(np.abs(other)))


def test_a_death_between_the_pieces_and_their_mean_loses_no_steps(crew):
    """The others make the round again, of the messages that they have."""
    made = crew(6)
    spoil(made.workers[BAD], {2: "dies"})
    made.begin()
    with pytest.raises(SystemExit, match="gone"):
        made.join(120.0)
    left = [k for k in range(K) if k != BAD]
    check_equal(made, left)
    for k in left:
        counted = [done.counted for done in made.workers[k].done]
        assert counted == [tuple(range(K))] * 2 + [tuple(left)] * 4
        assert [done.attempts for done in made.workers[k].done][2] > 1
        assert all(not done.excluded for done in made.workers[k].done)


def test_bytes_do_not_grow_with_the_workers():
    """Counted where they leave; twelve workers, as many light ones as a test can bear."""
    with LightCrew(12, 100_000, 5) as made:
        run(made)
        assert len({tuple(done.digest for done in one.done) for one in made.workers}) == 1
        assert made.programs.topology.kind == "reduce"
        size = 4 * sum(math.prod(leaf.shape) for leaf in made.programs.delta_layout.leaves)
        for one in made.workers:
            sent = np.diff(one.sent)
            assert np.all(sent <= 2.2 * size), sent / size
            assert np.all(sent > 1.8 * size)


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "pieces"), [(2000, 3), (260_000, 2)])
def test_pieces_are_measured_as_by_hand(words, pieces):
    cut = Cut(words, pieces)
    assert cut.whole >= 4 * words
    assert cut.bytes % 64 == 0
    assert cut.whole <= 1.01 * 4 * words + 64 * pieces
    numbers = np.zeros((pieces, cut.size), np.float32)
    numbers.reshape(-1)[:words] = np.random.default_rng(words).standard_normal(words, np.float32)
    measure = jax.jit(pieces_of)
    seen = measure(SEAL.fold_key, numbers.view(np.uint32))
    np.testing.assert_allclose(seen.squares, (numbers.astype(np.float64) ** 2).sum(1), rtol=1e-5)
    for piece, folded in zip(numbers, seen.folds, strict=True):
        frame = np.concatenate([np.zeros(HEADER, np.uint8), piece.view(np.uint8)])
        np.testing.assert_array_equal(folded, fold_by_hand(SEAL, frame))
    signs = [float(measure(SEAL.fold_key, ones.view(np.uint32)).checks[1]) for ones in units(cut)]
    assert {0.5 <= abs(sign) < 1 for sign in signs} == {True}
    assert len(set(signs)) == len(signs)
    # linear: the checksum of a sum is the sum of the checksums
    mixed = np.broadcast_to(numbers[0] + 2 * numbers[1], numbers.shape).copy()
    both = measure(SEAL.fold_key, mixed.view(np.uint32))
    want, slack = seen.checks[0] + 2 * seen.checks[1], 1e-4 * math.sqrt(3 * float(seen.squares[0]))
    assert abs(float(both.checks[1]) - float(want)) <= slack


def units(cut: Cut) -> list[np.ndarray]:
    """A few times as many vectors, each with a single 1 at one place."""
    one = lambda place: np.arange(cut.size) == place
    places = (0, 1, cut.size // 2, cut.size - 1)
    return [np.tile(one(place), (cut.pieces, 1)).astype(np.float32) for place in places]


def test_a_card_says_what_was_written_and_no_byte_of_it_can_change():
    layout, rng = CardLayout(3, 2, 64), np.random.default_rng(0)
    numbers = lambda n: rng.standard_normal(n).astype(np.float32)
    some = lambda *shape: rng.integers(0, 256, shape, np.uint8)
    facts = Facts(some(3, DIGEST), numbers(3), numbers(3), numbers(2), some(64))
    header = Header(CARD | BROKEN, SEAL.run, bytes(16), bytes(32), 7, 1, 1.0, 0.5, 0)
    card = layout.write(SEAL, header, facts)
    assert card.size == layout.size
    for have, want in zip(layout.read(card), facts, strict=True):
        np.testing.assert_array_equal(have, want)
    said = Verdict(frozenset({0, 9})).write(SEAL, b"here", 1, 10)
    assert Verdict.read(SEAL, b"here", 1, 10, said) == Verdict(frozenset({0, 9}))
    assert Verdict.read(SEAL, b"there", 1, 10, said) is None
    assert Verdict.read(SEAL, b"here", 2, 10, said) is None
    changed = said.copy()
    changed[0] ^= 2
    assert Verdict.read(SEAL, b"here", 1, 10, changed) is None
    fold = rng.integers(0, 2**32, (4, 5), np.uint32)
    assert digest_of(SEAL, fold).tobytes() == SEAL.sign(b"piece", fold)[:DIGEST]


def test_nothing_is_begun_again_in_vain(crew):
    """An exchange that nobody doubts is one call of each kind."""
    made = crew(2)
    calls: list[int] = []
    exchange = made.workers[1].engine.exchange
    made.workers[1].engine.exchange = lambda *given: (calls.append(1), exchange(*given))[1]
    run(made)
    assert isinstance(made.workers[1].topology, ReduceScatter)
    assert len(calls) == 3 * 2
    assert not any(isinstance(note, Interrupted) for note in made.workers[1].notes)
