"""An exchange in which every worker gets every message: checked one by one on the host and on the
device, and combined by each worker for itself."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from laconic.engines import guard
from laconic.engines.base import Digest, Engine, Frame, Quorum
from laconic.engines.fragments import FragmentPrograms
from laconic.engines.local_workers import Seconds, Signed, sign_whole
from laconic.engines.replica import Judged, Measured, Programs, Replica
from laconic.engines.wire import HEADER, Seal


class Call(NamedTuple):
    """An exchange that is due: who takes part, this process's messages, and the state that they
    follow; None while this process is behind."""

    quorum: Quorum
    own: dict[int, Signed]
    replica: Replica | None
    seconds: Seconds


class Messages(NamedTuple):
    """What everyone sent, by worker."""

    call: Call
    frames: dict[int, Frame]


Finished = tuple[Replica, dict[str, Any]]


@dataclass(frozen=True)
class AllGather:
    """Exchanges over an engine, of messages under a seal."""

    programs: Programs | FragmentPrograms
    engine: Engine
    seal: Seal

    def collect(self, call: Call) -> Messages:
        """Everyone's message; raises `Interrupted`."""
        size = self.programs.at(call.quorum.round).layout.frame
        own = {worker: self._whole(call, one) for worker, one in call.own.items()}
        with call.seconds.spent("gather"):
            frames = self.engine.gather({w: one.room[:size] for w, one in own.items()}, size)
        return Messages(call._replace(own=own), frames)

    def _whole(self, call: Call, one: Signed) -> Signed:
        """A message that was to travel in pieces, signed as a whole."""
        if one.measured is not None:
            return one
        return sign_whole(self.seal, self.programs.at(call.quorum.round), one.room)

    def finish(self, replica: Replica, origin: Digest, came: Messages) -> Finished:
        """The state after the outer step on the messages that count, and the verdicts on all."""
        now, slots = int(replica.round), range(self.engine.slots)
        programs, seconds, own = self.programs.at(now), came.call.seconds, came.call.own
        with seconds.spent("check"):
            # rooms are as large as the largest message
            read = lambda frame: np.frombuffer(frame, np.uint8)[: programs.layout.frame]
            arrays = {worker: read(frame) for worker, frame in came.frames.items()}
            found = {
                worker: self._measure(programs, x, own.get(worker)) for worker, x in arrays.items()
            }
            folds = {w: np.asarray(one.folded) for w, one in found.items() if one is not None}
            admitted = [
                guard.admit(self.seal, programs.layout, arrays.get(k), folds.get(k), k, now, origin)
                for k in slots
            ]
            measured = [found.get(k) or programs.absent for k in slots]
            weights_K = weights_of(admitted)
            codes_K = np.array([a.code for a in admitted], np.int32)
            judged = jax.block_until_ready(programs.judge(replica, measured, weights_K, codes_K))
        with seconds.spent("outer"):
            replica = jax.block_until_ready(programs.outer(replica, measured, weights_K, judged))
        norms = {k: float(one.norm) for k, one in enumerate(measured)}
        return replica, verdicts_of(judged, norms, admitted)

    def _measure(
        self, programs: Programs, array: np.ndarray, own: Signed | None
    ) -> Measured | None:
        """A frame's body on the device; None if it has another size. Our own is there already."""
        if array.size != programs.layout.frame:
            return None
        if own is not None and array.ctypes.data == own.room.ctypes.data:
            return own.measured
        return programs.measure(self.seal.fold_key, array[HEADER:])


def weights_of(admitted: list[guard.Admitted]) -> np.ndarray:
    """What the messages [K] say they weigh; 0 for none."""
    return np.array([0.0 if a.header is None else a.header.weight for a in admitted], np.float32)


def verdicts_of(
    judged: Judged, norms: dict[int, float], admitted: list[guard.Admitted]
) -> dict[str, Any]:
    """The fields of a report about its messages; without any that counted, the loss is NaN."""
    codes = np.asarray(judged.codes_K).tolist()
    good = {k: a.header for k, a in enumerate(admitted) if codes[k] == guard.CODE["ok"]}
    losses = {k: header.loss for k, header in good.items() if header is not None}
    return {
        "loss": float(np.mean(list(losses.values()))) if losses else float("nan"),
        "losses": losses,
        "norms": {k: norms[k] for k in good},
        "excluded": {k: guard.REASONS[c] for k, c in enumerate(codes) if c not in guard.SILENT},
    }
