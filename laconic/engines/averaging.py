"""What is compiled for messages in pieces: the guard's judgement by cards, and the outer step on a
mean."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laconic.engines import guard
from laconic.engines.gather import weights_of
from laconic.engines.guard import CODE, Admitted
from laconic.engines.pieces import BROKEN, Facts
from laconic.engines.replica import Judged, Programs, Replica
from laconic.engines.wire import unpack
from laconic.means import weighted_mean
from laconic.workers import Combined


class Judgement(NamedTuple):
    """The guard's verdicts on the messages behind K cards, and what each of them weighs."""

    judged: Judged
    weights_K: np.ndarray


class Averaging:
    """The compiled programs that judge by cards and take the outer step on a mean."""

    def __init__(self, programs: Programs):
        self._programs = programs
        self._judged = jax.jit(self._judge)
        self._taken = jax.jit(self._take)

    def judge(self, replica: Replica, admitted: list[Admitted], facts: list[Facts]) -> Judgement:
        """What of K messages counts, and how much."""
        part = self._programs.part(replica)
        norms_K = np.array([one.norm for one in facts], np.float32)
        flags = [0 if a.header is None else a.header.flags for a in admitted]
        finite_K = np.array([not flag & BROKEN for flag in flags])
        codes_K = np.array([a.code for a in admitted], np.int32)
        seen = norms_K, finite_K, _stacked(facts), weights_of(admitted), codes_K
        judged, weights_K = self._judged(part.guard, part.shared.params, *seen)
        return Judgement(judged, np.asarray(weights_K))

    def take(
        self, replica: Replica, means: np.ndarray, facts: list[Facts], judgement: Judgement
    ) -> Replica:
        """The outer step on mean pieces in a row."""
        tensors_KT = np.stack([one.tensors for one in facts])
        programs = self._programs
        given = words_of(means.reshape(-1)), _stacked(facts), tensors_KT
        part = self._taken(programs.part(replica), *given, judgement.weights_K, judgement.judged)
        return programs.put(replica, part)

    def _judge(
        self,
        past: guard.GuardState,
        params: Any,
        norms_K: jax.Array,
        finite_K: jax.Array,
        extra_KE: jax.Array,
        weights_K: jax.Array,
        codes_K: jax.Array,
    ) -> tuple[Judged, jax.Array]:
        limit = self._programs.limit
        layout = self._programs.extra_layout
        read = lambda words: guard.measure_extra(unpack(layout, words))
        extra_finite_K, sizes_KA = jax.vmap(read)(extra_KE)
        scale = jnp.maximum(guard.norm_of(params), 1.0)
        seen = norms_K, finite_K & extra_finite_K, weights_K, codes_K
        judged = Judged(*guard.judge(past, *seen, limit, sizes_KA, scale))
        good_K = judged.codes_K == CODE["ok"]
        weights_K = guard.bounded(norms_K, weights_K, good_K, limit)
        return judged, jnp.where(good_K, weights_K, 0.0)

    def _extra(self, extra_KE: jax.Array) -> Any:
        return jax.vmap(partial(unpack, self._programs.extra_layout))(extra_KE)

    def _take(
        self,
        part: Replica,
        words: jax.Array,
        extra_KE: jax.Array,
        tensors_KT: jax.Array,
        weights_K: jax.Array,
        judged: Judged,
    ) -> Replica:
        programs = self._programs
        delta = programs.delta(words)
        extra = weighted_mean(self._extra(extra_KE), weights_K)
        squares = None
        if programs.card.tensors:
            squares = jax.tree.unflatten(jax.tree.structure(delta), list(tensors_KT.T))
        combined = Combined(delta, extra, weights_K, worker_squares=squares)
        return programs.advance(part, combined, judged)


def words_of(numbers: np.ndarray) -> jax.Array:
    """Numbers on the device, as words."""
    return jax.device_put(numbers.view(np.uint32))


def _stacked(facts: list[Facts]) -> np.ndarray:
    """The statistics of K cards, as words."""
    return np.stack([one.extra for one in facts]).view(np.uint32)
