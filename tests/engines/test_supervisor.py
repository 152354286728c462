"""Real processes under supervision: restarted, given up, ended in order, and never left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from laconic.engines import supervisor
from laconic.engines.supervisor import Supervisor, cause
from laconic.errors import LaconicError
from tests.engines.cluster import ROOT
from tests.engines.processes import alive, wait_until

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
TERMS = (
    "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(143)); print('up', flush=True); "
    "signal.pause()"
)

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
    "signal.pause()"
)


def python(code, *words):
    return [sys.executable, "-c", code, *map(str, words)]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.01)


class Told(list):
    def __call__(self, name, text):
        self.append((name, text))


def supervise(services, workers, restarts=0, told=None):
    lines = []
    group = Supervisor(
        services, workers, ENVIRONMENT, restarts, Told() if told is None else told, lines.append
    )
    return group, lines


def run_out(group, deadline=60.0):
    """Step until every worker is over."""
    end = time.monotonic() + deadline
    while not all(member.over for member in group.workers.values()):
        assert time.monotonic() < end
        group.step(0.05)


def until(group, lines, *texts):
    """Step until all of that was written."""
    while not set(texts) <= {line.text for line in lines}:
        group.step(0.05)


def test_what_children_write_comes_line_by_line_under_their_names():
    code = "import sys; print('hällo'); print('loud', file=sys.stderr); sys.stdout.write('torn')"
    group, lines = supervise({}, {"a": python(code), "b": python(code)})
    with group:
        run_out(group)
    expected = [
        (name, *rest)
        for name in "ab"
        for rest in (("hällo", False), ("loud", True), ("torn", False))
    ]
    assert sorted(lines) == sorted(expected)


def test_a_child_may_have_variables_of_its_own():
    show = python("import os; print(os.environ.get('OWN'), os.environ['PYTHONPATH'])")
    lines = []
    own = {"a": {"OWN": "only a's"}}
    with Supervisor({}, {"a": show, "b": show}, ENVIRONMENT, 0, Told(), lines.append, own) as group:
        run_out(group)
    assert sorted(line.text for line in lines) == [f"None {ROOT}", f"only a's {ROOT}"]


def test_the_dead_are_started_again_and_it_is_said(tmp_path, quick):
    """Two deaths, by a signal and by an error, then a good end."""
    code = """
import os, pathlib, signal, sys
lives = pathlib.Path(sys.argv[1])
lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
if len(lives.read_text()) == 1:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7 if len(lives.read_text()) == 2 else 0)
"""
    told = Told()
    group, _ = supervise({}, {"w": python(code, tmp_path / "lives")}, 2, told)
    with group:
        run_out(group)
    assert (tmp_path / "lives").read_text() == "xxx"
    assert group.members["w"].done
    assert told == [
        ("w", "was killed by SIGKILL; restarting it in 0.01 s (restart 1 of 2)"),
        ("w", "ended with status 7; restarting it in 0.02 s (restart 2 of 2)"),
    ]


def test_pauses_grow_and_end_somewhere(quick, monkeypatch):
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 0.03)
    told = Told()
    group, _ = supervise({}, {"w": python("exit(1)")}, 4, told)
    with pytest.raises(LaconicError), group:
        run_out(group)
    assert [text.split()[7] for _, text in told] == ["0.01", "0.02", "0.03", "0.03"]


def test_a_long_life_gives_restarts_back_and_a_shorter_one_ends_the_waits():
    member = supervisor.Member(["w"])
    lives = [0.1, 0.1, supervisor.STEADY, 0.1, supervisor.HEALTHY, 0.1]
    pauses = [member.count_death(lived) for lived in lives]
    first = supervisor.FIRST_PAUSE
    assert pauses == [first, 2 * first, first, 2 * first, first, 2 * first]
    assert (member.deaths, member.counted) == (6, 2)


def test_one_who_lives_long_enough_is_restarted_for_ever(quick, monkeypatch):
    """Five deaths where one restart is allowed; then the same with no forgiveness."""
    monkeypatch.setattr(supervisor, "HEALTHY", 0.0)
    told = Told()
    group, _ = supervise({}, {"w": python("exit(1)")}, 1, told)
    with group:
        while group.members["w"].deaths < 5:
            group.step(0.05)
    assert {text.split("(")[1] for _, text in told} == {"restart 1 of 1)"}


def test_who_dies_too_often_ends_the_group_with_one_error(quick, raises_clearly):
    """Its own reason is in it, all it said was passed on, and the others are ended."""
    bad = (
        "import sys; print('x', file=sys.stderr); print('error: no data. Get some.', "
        "file=sys.stderr); sys.exit(1)"
    )
    said = (
        "bad died 3 times; the last time it ended with status 1 and wrote: error: no data. Get "
        "some."
    )
    group, lines = supervise({}, {"good": python(TERMS), "bad": python(bad)}, 2)
    with raises_clearly(said), group:
        pid = group.members["good"].child.process.pid
        until(group, lines, "up")
        run_out(group)
    assert not alive(pid)
    assert [line.text for line in lines if line.name == "bad"] == [
        "x",
        "error: no data. Get some.",
    ] * 3


def test_one_who_is_refused_is_not_restarted(quick, raises_clearly):
    """Other code, settings or token would be refused again."""
    told = Told()
    refused = python("import sys; print('error: other code', file=sys.stderr); exit(3)")
    group, _ = supervise({}, {"w": refused}, 50, told)
    with raises_clearly("w died; the last time it ended with status 3", "other code"), group:
        run_out(group)
    assert told == []


def test_one_who_says_nothing_is_quoted_as_such(raises_clearly):
    group, _ = supervise({}, {"w": python("import os; os.kill(os.getpid(), 11)")})
    with (
        raises_clearly("w died; the last time it was killed by SIGSEGV and wrote: nothing."),
        group,
    ):
        run_out(group)


def test_a_service_is_needed_to_the_end(quick):
    """It comes back even if it left in peace."""
    told = Told()
    leaving = python("import time; print('served', flush=True); time.sleep(0.05)")
    group, lines = supervise({"s": leaving}, {"w": python(TERMS)}, 50, told)
    with group:
        until(group, lines, "up")
        while group.members["s"].deaths < 2:
            group.step(0.05)
    assert {name for name, _ in told} == {"s"}


def test_services_are_ended_after_the_workers():
    slow = """
import signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {15})
print(sys.argv[1], flush=True)
signal.sigwait({15})
time.sleep(0.3)
print("left", time.time(), flush=True)
"""
    group, lines = supervise({"s": python(slow, "s up")}, {"w": python(slow, "w up")})
    with group:
        until(group, lines, "s up", "w up")
    left = {
        line.name: float(line.text.split()[1]) for line in lines if line.text.startswith("left")
    }
    assert left["w"] + 0.3 <= left["s"]


def test_one_who_will_not_leave_is_killed():
    group, lines = supervise({}, {"w": python(STUBBORN)})
    with group:
        pid = group.members["w"].child.process.pid
        until(group, lines, "up")
        group.end(grace=0.2)
    assert not alive(pid)


@pytest.mark.parametrize("code", [TERMS, STUBBORN], ids=["leaves", "stays"])
def test_one_who_is_dismissed_is_not_missed(code):
    told = Told()
    group, lines = supervise({}, {"w": python(code)}, 3, told)
    with group:
        until(group, lines, "up")
        group.dismiss("w", 0.2)
        run_out(group)
        assert group.members["w"].child is None
    assert told == []
    assert not group.members["w"].done


STARTER = """
import os, sys
from laconic.engines.supervisor import Supervisor
child = '''
import signal, sys, time
from laconic.engines.supervisor import end_with_stdin
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
end_with_stdin(grace=0.5)
print("up", flush=True)
while True:
    time.sleep(60)
'''
commands = {name: [sys.executable, "-c", child, name] for name in ("hears", "deaf")}
lines = []
with Supervisor({}, commands, os.environ, 0, print, lines.append) as group:
    while len(lines) < 2:
        group.step(0.1)
    print(*(member.child.process.pid for member in group.members.values()), flush=True)
    while True:
        group.step(1.0)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGUSR1]
)  # not SIGHUP, which is ignored under nohup
def test_a_starter_that_dies_leaves_no_orphans(number):
    """Not even one that does not hear SIGTERM."""
    with subprocess.Popen(
        python(STARTER), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as starter:
        try:
            pids = [int(word) for word in starter.stdout.readline().split()]
            assert len(pids) == 2
            assert all(map(alive, pids))
            starter.send_signal(number)
            assert starter.wait(30) == -number
        finally:
            starter.kill()
    wait_until(lambda: not any(map(alive, pids)), "the children to end")


def test_causes_in_words():
    assert cause(0) == "ended with status 0"
    assert cause(-9) == "was killed by SIGKILL"
    assert cause(-250) == "was killed by signal 250"
