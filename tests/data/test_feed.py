"""Resident and streamed feeds; every wait is on an event, never on a clock."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laconic.data.feed import Resident, Streamed, prefetched


def batch(i, B=2):
    """Batch number i: B rows that say so."""
    return {"x": np.full((B, 3), i, np.uint8), "y": np.full(B, i, np.int32)}


def stream(n):
    return Streamed({}, lambda: (batch(i) for i in range(n)))


def threads():
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def test_resident_takes_rows_of_every_array():
    x = np.arange(24).reshape(6, 4).astype(np.uint8)
    feed = Resident(
        {"train": {"x": jnp.asarray(x), "y": jnp.arange(6)}, "test": {"x": jnp.asarray(x[:2])}}
    )
    assert (feed.size(), feed.size("test")) == (6, 2)
    got = feed.take(jnp.array([[5, 0], [1, 1]]))
    np.testing.assert_array_equal(got["x"], x[[[5, 0], [1, 1]]])
    np.testing.assert_array_equal(got["y"], [[5, 0], [1, 1]])
    np.testing.assert_array_equal(feed.take(jnp.array([1]), "test")["x"], x[[1]])


def test_resident_samples_uniformly_with_replacement():
    feed = Resident({"train": jnp.zeros((5, 1)), "valid": jnp.zeros((2, 1))})
    items = np.asarray(feed.sample(jax.random.key(0), (100, 100)))
    assert items.dtype == np.int32
    counts = np.bincount(items.reshape(-1), minlength=5)
    assert np.all(np.abs(counts - 2000) < 4 * np.sqrt(10000 * 0.2 * 0.8))
    assert set(np.unique(feed.sample(jax.random.key(0), (100,), "valid"))) == {0, 1}


def test_rounds_have_the_promised_shapes_and_order():
    K, H = 3, 2
    rounds = list(stream(2 * K * H).rounds(K, H))
    assert len(rounds) == 2
    for number, got in enumerate(rounds):
        assert got["x"].shape == (K, H, 2, 3)
        assert got["y"].shape == (K, H, 2)
        assert got["x"].dtype == jnp.uint8
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(got))
        expected = number * K * H + np.arange(K * H).reshape(K, H, 1)
        np.testing.assert_array_equal(got["y"], np.broadcast_to(expected, (K, H, 2)))
        np.testing.assert_array_equal(got["x"][..., 0], got["y"])


def test_an_incomplete_round_is_dropped():
    assert len(list(stream(11).rounds(2, 3))) == 1
    assert list(stream(5).rounds(2, 3)) == []


@pytest.mark.parametrize("skip", [0, 1, 3, 4, 9])
def test_resume_by_skipping_rounds(skip):
    whole = [np.asarray(got["y"]) for got in stream(25).rounds(2, 3)]
    rest = [np.asarray(got["y"]) for got in stream(25).rounds(2, 3, skip=skip)]
    assert len(whole) == 4
    np.testing.assert_array_equal(np.array(rest), np.array(whole[skip:]))


def test_prefetch_runs_ahead_but_not_further_than_its_depth():
    asked = [threading.Event() for _ in range(10)]

    def source():
        for i, event in enumerate(asked):
            event.set()
            yield i

    ahead = prefetched(source(), depth=2)
    assert not asked[0].is_set()
    assert next(ahead) == 0
    assert asked[3].wait(20)  # 0 taken, 1 and 2 wait in the queue, 3 in the thread's hand
    assert not asked[4].is_set()
    assert list(ahead) == list(range(1, 10))


def test_an_exception_in_the_stream_reaches_the_consumer_after_what_came_before():
    def batches():
        yield from (batch(i) for i in range(6))
        raise OSError("the disk is gone")

    before = threads()
    rounds = Streamed({}, batches).rounds(2, 2)
    np.testing.assert_array_equal(next(rounds)["y"][..., 0], [[0, 1], [2, 3]])
    with pytest.raises(OSError, match="the disk is gone"):
        next(rounds)
    assert threads() <= before
    with pytest.raises(StopIteration):
        next(rounds)


def test_closing_stops_the_thread_and_closes_the_stream():
    closed = threading.Event()

    def forever():
        try:
            i = 0
            while True:
                yield batch(i % 200)
                i += 1
        finally:
            closed.set()

    before = threads()
    rounds = Streamed({}, forever).rounds(2, 2, prefetch=1)
    next(rounds)
    assert len(threads() - before) == 1
    rounds.close()
    assert threads() <= before
    assert closed.wait(20)


def test_the_thread_ends_with_the_stream():
    before = threads()
    assert len(list(stream(8).rounds(2, 2))) == 2
    assert threads() <= before


def test_every_call_starts_the_stream_anew():
    feed = stream(4)
    for _ in range(2):
        np.testing.assert_array_equal(next(feed.rounds(2, 2))["y"][..., 0], [[0, 1], [2, 3]])


def test_bad_requests_are_refused_at_once(raises_clearly):
    with raises_clearly("prefetch depth", "got 0"):
        stream(4).rounds(2, 2, prefetch=0)
    with raises_clearly("K must be positive, got 0"):
        stream(4).rounds(0, 2)
    with raises_clearly("H must be positive, got -1"):
        stream(4).rounds(2, -1)


def test_a_short_batch_is_explained(raises_clearly):
    rounds = Streamed({}, lambda: [batch(0), batch(1, B=1)]).rounds(2, 1)
    with raises_clearly("one shape", "(1, 3)", "(2, 3)", "drop"):
        next(rounds)


def test_held_out_splits_of_a_stream_are_gathered_by_index():
    feed = Streamed({"test": {"y": jnp.arange(10, 15)}}, list)
    assert feed.size("test") == 5
    np.testing.assert_array_equal(feed.take(jnp.array([4, 0]), "test")["y"], [14, 10])
    assert feed.take("items themselves") == "items themselves"


def test_feeds_are_pytrees_of_their_arrays():
    feed = Resident({"train": jnp.zeros((5, 1))})
    assert len(jax.tree.leaves(feed)) == 1
    assert jax.jit(lambda f, i: f.take(i))(feed, jnp.array([1, 2])).shape == (2, 1)
    streamed = Streamed({"test": jnp.zeros((5, 1))}, list)
    assert jax.jit(lambda f: f.take(jnp.array([1]), "test"))(streamed).shape == (1, 1)
