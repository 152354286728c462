"""Real processes, real signals: whoever dies, stops or comes back, the rest go on and all hold the
same state."""

import signal
import time
from typing import Any

import pytest

from laconic.tasks.catalog import make_task
from tests.engines.cluster import knock
from tests.engines.methods import SMOOTH, method_of
from tests.engines.oracle import assert_same_weights, present_of, simulate
from tests.engines.processes import listening, wait_until

NAME = "faults"
METHOD = (NAME, "slowmo", {"gamma": 0.3, "beta": 0.5}, "dense")
LOCAL = ("adamw", 0.003)  # whose moments stay with a worker
LENGTH = 6  # rounds of a phase; at its end survivors wait for the test
KEEPING = (0, 2)  # workers with a checkpoint of every round; the others begin afresh
KILL, STOP = int(signal.SIGKILL), int(signal.SIGSTOP)
# What happens in the third round of each phase: worker → (point, signal).
PHASES: list[dict[int, tuple[str, int]]] = [
    {1: ("before quorum", KILL)},
    {2: ("between quorum and gather", KILL)},
    {0: ("between gather and commit", KILL)},
    {3: ("after commit", KILL)},
    {1: ("between quorum and gather", STOP)},
    {3: ("before quorum", STOP)},
    {0: ("between quorum and gather", KILL), 2: ("between quorum and gather", KILL)},
    {
        1: ("before quorum", KILL),
        2: ("between quorum and gather", KILL),
        3: ("between gather and commit", KILL),
    },
    {},  # everyone is back
    {},  # the Lighthouse died before the first round
]
ROUNDS = LENGTH * len(PHASES)
GAP = 2.0


class Story:
    """The run, phase after phase; afterwards, what to check it against."""

    def __init__(self, run: Any):
        self.run = run
        for worker in range(4):
            self.start(worker, 0)

    def start(self, worker: int, phase: int) -> None:
        """With its deaths still to come."""
        deaths = {
            f"{LENGTH * p + 2}:{PHASES[p][worker][0]}": PHASES[p][worker][1]
            for p in self.mine(worker, phase)
        }
        gates = [LENGTH * p for p in range(1, len(PHASES) + 1)]
        self.run.start(worker, deaths=deaths, gates=gates, checkpoint_every=int(worker in KEEPING))

    @staticmethod
    def mine(worker: int, phase: int) -> list[int]:
        return [p for p in range(phase, len(PHASES)) if worker in PHASES[p]]

    def play(self, phase: int) -> None:
        """To the end of a phase, then bring back who is missing."""
        end = LENGTH * (phase + 1)
        victims = PHASES[phase]
        survivors = [w for w in range(4) if w not in victims]
        self.run.wait_round(NAME, survivors, end)
        for worker, (_, number) in victims.items():
            mark = self.run.folder / f"ready-{worker}-{self.run.births[worker]}"
            if number == signal.SIGSTOP:
                mark.unlink()
                self.run.signal(worker, signal.SIGCONT)
            else:
                wait_until(lambda w=worker: not self.run.alive(w), f"the death of worker {worker}")
                self.start(worker, phase + 1)
                mark = self.run.folder / f"ready-{worker}-{self.run.births[worker]}"
            wait_until(mark.exists, f"worker {worker} to come back")
        if phase == 0:
            self.knock_everywhere()
        if phase == len(PHASES) - 2:
            self.run.end_lighthouse()
        self.run.open_gate(end)
        if phase == len(PHASES) - 2:
            self.run.begin_lighthouse()
            self.lighthouse_back = time.time()

    def knock_everywhere(self) -> None:
        """Nothing is to be reached from elsewhere, and who knocks from here without the token
        spoils nothing."""
        for pid in self.run.pids.values():
            doors = listening(pid)
            assert len(doors) == 2  # that of the links and that of the state
            assert {host for host, _ in doors} == {"0100007F"}, doors
            for _, port in doors:
                knock(port)


@pytest.fixture
def story(cluster):
    run = cluster(rounds=ROUNDS, methods=[METHOD], local=LOCAL, task=SMOOTH)
    told = Story(run)
    for phase in range(len(PHASES)):
        told.play(phase)
    run.wait_done([0, 1, 2, 3])
    return told


@pytest.mark.slow
def test_whatever_dies_the_rest_go_on(story, standard_promotion):
    run = story.run
    rows = {w: run.rows(NAME, w) for w in range(4)}
    states_agree(rows)
    no_local_steps_are_lost(rows)
    everyone_comes_back(rows)
    checkpoints_are_taken_up(rows)
    strangers_are_counted(rows)
    gaps_are_short(rows, story.lighthouse_back)
    the_model_is_that_of_the_messages_that_counted(run, rows)


def states_agree(rows: dict[int, list[dict[str, Any]]]) -> None:
    """One digest a round, whoever reports it; of a round that a lone process committed just before
    it died, none."""
    by_round: dict[int, set[str]] = {}
    for row in (row for log in rows.values() for row in log):
        by_round.setdefault(row["round"], set()).add(row["digest"])
    assert sorted(by_round) == list(range(1, ROUNDS + 1))
    assert {r: d for r, d in by_round.items() if len(d) > 1} == {}


def no_local_steps_are_lost(rows: dict[int, list[dict[str, Any]]]) -> None:
    """In every round of a phase, every survivor's message counted, however often it was sent."""
    for phase, victims in enumerate(PHASES):
        for worker in set(range(4)) - set(victims):
            told = {row["round"]: row for row in rows[worker]}
            back = worker in PHASES[phase - 1] if phase else False
            for now in range(LENGTH * phase + (3 if back else 1), LENGTH * (phase + 1) + 1):
                assert str(worker) in told[now]["losses"], (
                    f"worker {worker} did not count in round {now}"
                )
                assert not told[now]["healed"]


def everyone_comes_back(rows: dict[int, list[dict[str, Any]]]) -> None:
    for phase in range(1, len(PHASES)):
        for worker in PHASES[phase - 1]:
            assert any(
                row["healed"] and LENGTH * phase < row["round"] <= LENGTH * phase + 2
                for row in rows[worker]
            )
    last = rows[0][-1]
    assert last["quorum"] == [0, 1, 2, 3]
    assert sorted(last["losses"]) == ["0", "1", "2", "3"]


def checkpoints_are_taken_up(rows: dict[int, list[dict[str, Any]]]) -> None:
    """A restarted worker's first words say whether it kept anything of its own."""
    for worker in range(4):
        lives = {row["born"]: row for row in reversed(rows[worker])}  # the first row of each
        for born, row in lives.items():
            last = max((r["round"] for r in rows[worker] if r["born"] < born), default=0)
            kept = f"resumed after round {last} from" if worker in KEEPING else "no checkpoint"
            assert born == 0 or any(note.startswith(kept) for note in row["notes"])


def strangers_are_counted(rows: dict[int, list[dict[str, Any]]]) -> None:
    """By those who lived when they knocked; the first to be killed had just been started again."""
    for worker in range(4):
        told = [row["refused"].get("a stranger at the state port", 0) for row in rows[worker]]
        assert max(told) == 4  # whatever they said


def gaps_are_short(rows: dict[int, list[dict[str, Any]]], lighthouse_back: float) -> None:
    """Between two commits of a survivor inside a phase; after the Lighthouse's death, from its
    return on."""
    gaps = {}
    for phase, victims in enumerate(PHASES):
        for worker in set(range(4)) - set(victims):
            at = {row["round"]: row["committed_at"] for row in rows[worker]}
            came = min(
                now for now in at if now > LENGTH * phase
            )  # one that was away may miss the first round
            for now in range(came + 1, LENGTH * (phase + 1) + 1):
                gaps[phase, worker, now] = at[now] - at[now - 1]
    first = LENGTH * (len(PHASES) - 1) + 1
    gaps["lighthouse"] = (
        next(row["committed_at"] for row in rows[0] if row["round"] == first) - lighthouse_back
    )
    worst = max(gaps, key=lambda key: gaps[key])
    assert gaps[worst] < GAP, f"{gaps[worst]:.2f} s at {worst}"


def the_model_is_that_of_the_messages_that_counted(
    run: Any, rows: dict[int, list[dict[str, Any]]]
) -> None:
    """The simulator, told who was there and who began afresh, arrives at the same weights.

    Who keeps a checkpoint of every round loses nothing of its own. If it died after its message had
    counted, it finds out: it takes the same local steps again, and the state that it takes over
    says that they were accepted.
    """
    every = [row for log in rows.values() for row in log]
    present_RK = present_of(every, ROUNDS)
    restarts: dict[int, list[int]] = {}
    for phase, victims in enumerate(PHASES):
        for worker, (_, number) in victims.items():
            if number == KILL and worker not in KEEPING:
                restarts.setdefault(LENGTH * (phase + 1), []).append(worker)
    shared, _ = simulate(make_task(SMOOTH), method_of(*METHOD, LOCAL), present_RK, restarts)
    for worker in range(4):
        assert_same_weights(run.weights(NAME, worker), shared, f"worker {worker}")
