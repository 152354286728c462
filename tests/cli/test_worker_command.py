"""`laconic worker` before it joins: where it is, what it refuses, and what it says."""

import fcntl
import io
import json
import multiprocessing
import os
import socket

import jax
import pytest

from benchmarks import kill_demo
from laconic.cli import worker
from laconic.cli.hosts import find_token, write_token
from laconic.cli.worker import CompileTurn, Json, Lines, WorkerConfig, seat_of
from laconic.engines.address import ProcessRank
from laconic.engines.registry import ENGINES, Waits
from tests.cli.commands import assert_help_has, assert_one_error

PLACE = ProcessRank(2, 4, "127.0.0.1", 29501, "torchrun")


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """An environment that says nothing, and an empty folder to be in."""
    for name in [n for n in os.environ if n.startswith(("SLURM_", "MASTER_", "LACONIC_TOKEN"))] + [
        "RANK",
        "WORLD_SIZE",
    ]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "engine_entry", lambda name: worker_entry(name))


def worker_entry(name):
    from laconic.engines.registry import ENGINES

    return ENGINES[name]


# --- seats ----------------------------------------------------------------------------------------


def test_the_environment_gives_a_seat_and_flags_go_before_it():
    seat = seat_of(WorkerConfig(), PLACE, 4)
    assert (seat.worker, seat.workers, seat.address) == (2, 4, "127.0.0.1:29501")
    assert (seat.bind, seat.host) == ("127.0.0.1", "127.0.0.1")
    assert seat_of(WorkerConfig(port=5), PLACE, 4).address == "127.0.0.1:5"
    waits = Waits(timeout=3.0)
    seat = seat_of(
        WorkerConfig(join="localhost:9", worker=1, host="127.0.0.9", waits=waits), None, 2
    )
    assert (seat.worker, seat.address, seat.host, seat.waits) == (
        1,
        "localhost:9",
        "127.0.0.9",
        waits,
    )
    assert seat_of(WorkerConfig(join="127.0.0.1:9"), PLACE, 4).worker == 2


def test_a_round_needs_a_majority_unless_told_otherwise():
    assert [seat_of(WorkerConfig(), PLACE, K).least for K in (3, 4, 5)] == [2, 3, 3]
    assert seat_of(WorkerConfig(min_workers=1), PLACE, 4).least == 1
    assert seat_of(WorkerConfig(engine="jax-distributed"), PLACE, 4).least == 4


def test_one_who_listens_everywhere_is_reached_where_it_faces_the_others(monkeypatch):
    monkeypatch.setattr(worker, "reached_at", lambda bind, meeting: f"{bind} from {meeting}")
    seat = seat_of(WorkerConfig(join="127.0.0.1:9", worker=0, bind="0.0.0.0"), None, 2)
    assert seat.host == "0.0.0.0 from 127.0.0.1"


@pytest.mark.parametrize(
    ("config", "place", "parts"),
    [
        (WorkerConfig(), None, ["where the others are", "--join HOST:PORT", "srun", "torchrun"]),
        (WorkerConfig(join="127.0.0.1:9"), None, ["which worker", "--worker 3"]),
        (WorkerConfig(join="127.0.0.1:9", worker=4), None, ["from 0 to 3", "got 4"]),
        (WorkerConfig(join="127.0.0.1:9", worker=-1), None, ["from 0 to 3", "got -1"]),
        (WorkerConfig(join="127.0.0.1", worker=0), None, ["HOST:PORT"]),
        (
            WorkerConfig(join="192.0.2.1:9", worker=0),
            None,
            ["beyond this machine", "--bind", "0.0.0.0"],
        ),
        (WorkerConfig(), PLACE._replace(host="192.0.2.1"), ["192.0.2.1", "--bind"]),
        (WorkerConfig(grace=-1.0), PLACE, ["--grace", "got -1"]),
        (WorkerConfig(grace=1.0, join="127.0.0.1:9", worker=0), None, ["--grace", "--join"]),
        (WorkerConfig(engine="jax-distributed", grace=1.0), PLACE, ["waits for all", "--grace"]),
        (WorkerConfig(min_workers=0), PLACE, ["--min-workers", "4 workers", "got 0"]),
        (WorkerConfig(min_workers=5), PLACE, ["--min-workers", "4 workers", "got 5"]),
        (
            WorkerConfig(engine="jax-distributed", min_workers=1),
            PLACE,
            ["jax-distributed needs all 4 workers", "--min-workers 1"],
        ),
    ],
)
def test_seats_that_cannot_be(config, place, parts, raises_clearly):
    """Among them one beyond the loopback that nobody asked for."""
    with raises_clearly(*parts):
        seat_of(config, place, 4)


# --- the command ----------------------------------------------------------------------------------

JOIN = ["--join", "127.0.0.1:9", "--worker", "0"]


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ([*JOIN, "--", "train", "digit"], ["unknown recipe", "Did you mean 'digits'?"]),
        ([*JOIN], ["after --"]),
        ([*JOIN, "--", "compare"], ["after --"]),
        (["--", "train"], ["where the others are"]),
        ([*JOIN[:2], "--", "train"], ["which worker"]),
        ([*JOIN[:2], "--worker", "4", "--", "train"], ["from 0 to 3"]),
        ([*JOIN, "--timeout", "0", "--", "train"], ["timeout must be positive"]),
    ],
)
def test_errors_are_one_line_and_write_nothing(argv, parts, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("LACONIC_TOKEN", "secret")
    assert_one_error(capfd, ["worker", *argv], parts)
    assert list(tmp_path.iterdir()) == []


def test_no_token_no_worker(capfd, tmp_path):
    argv = ["worker", *JOIN, "--", "train"]
    assert_one_error(capfd, argv, ["needs the token", "LACONIC_TOKEN", "--token-file"])
    assert_one_error(
        capfd, [*argv[:1], "--token-file", "none", *argv[1:]], ["cannot read the token in none"]
    )
    (tmp_path / "empty").write_text("\n")
    assert_one_error(capfd, [*argv[:1], "--token-file", "empty", *argv[1:]], ["holds no token"])


def test_half_an_environment_is_an_error(capfd, monkeypatch):
    monkeypatch.setenv("LACONIC_TOKEN", "secret")
    monkeypatch.setenv("RANK", "0")
    assert_one_error(
        capfd, ["worker", "--", "train"], ["sets RANK but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT"]
    )


def test_the_environment_counts_the_workers(capfd, monkeypatch):
    monkeypatch.setenv("LACONIC_TOKEN", "secret")
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "9",
    }.items():
        monkeypatch.setenv(name, value)
    assert_one_error(
        capfd, ["worker", "--", "train", "--workers", "3"], ["there are 2 workers", "for 3"]
    )


def test_a_host_whose_port_is_taken_says_so(capfd, monkeypatch):
    monkeypatch.setenv("LACONIC_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port - 1),
        }
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        assert_one_error(
            capfd, ["worker", "--", "train"], [f"cannot listen at 127.0.0.1:{port}", "in use"]
        )


def test_a_host_fails_if_the_workers_ended_with_different_states(capfd, monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    for name, value in {"LACONIC_TOKEN": "secret", **place}.items():
        monkeypatch.setenv(name, value)
    for name in ("host_lighthouse", "work", "print_outcome"):
        monkeypatch.setattr(worker, name, lambda *given, **named: None)
    met = ENGINES["elastic"]._replace(meet=lambda seat, seal: seal)
    monkeypatch.setattr(worker, "engine_entry", lambda name: met)
    monkeypatch.setattr(worker, "missing_ends", lambda folder: [])
    monkeypatch.setattr(worker, "finish", lambda *given: [{"final_digests": ["a", "b"]}])
    assert_one_error(capfd, ["worker", "--", "train"], ["did not end with the same state"])


def test_help_teaches(capfd):
    words = [
        "srun laconic worker",
        "torchrun",
        "--join",
        "--token-file",
        "--silence",
        "--bind",
        "LACONIC_TOKEN",
    ]
    assert_help_has(capfd, "worker", words)


# --- the token ------------------------------------------------------------------------------------


def test_a_token_is_in_a_file_or_in_the_environment(tmp_path):
    write_token(tmp_path / "token", "abc")
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    assert find_token(tmp_path / "token", {"LACONIC_TOKEN": "other"}) == "abc"
    assert find_token(None, {"LACONIC_TOKEN": "other"}) == "other"
    assert find_token(None, {"LACONIC_TOKEN": ""}) is None


# --- what it says ---------------------------------------------------------------------------------


def a_row(now, **more):
    return {"round": now, "quorum": [0, 1], "loss": 0.25, "notes": []} | more


def test_json_is_one_strict_object_a_line(monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr(worker.sys, "stdout", told)
    observer = Json()
    observer.round(a_row(1, losses={0: 0.5}, loss=float("nan")))
    observer.end({"round": 1})
    observer.numbers("training", 1, {"test_loss": 0.5, "test_odd": float("inf")})
    first, second, third = map(json.loads, told.getvalue().splitlines())
    assert (first["loss"], first["losses"]) == (None, {"0": 0.5})
    assert second == {"kind": "end", "round": 1}
    assert third == {"kind": "numbers", "round": 1, "values": {"test_loss": 0.5, "test_odd": None}}


def test_people_are_told_now_and_then(capfd):
    now = [0.0]
    observer = Lines(3, clock=lambda: now[0])
    observer.begin("training", 9, 0)
    for r in range(1, 10):
        now[0] += 4.0
        observer.round(a_row(r, notes=["a note"] if r == 5 else []))
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "worker 3: compiling; begins after round 0 of 9"
    assert [line.split(",")[0] for line in said[1:]] == [
        "worker 3: round 1/9",
        "worker 3: round 4/9",
        "worker 3: a note",
        "worker 3: round 7/9",
        "worker 3: round 9/9",
    ]
    assert said[-1] == "worker 3: round 9/9, 2 workers, loss 0.2500"


def test_people_are_told_of_looks_at_held_out_data(capfd):
    observer = Lines(3, clock=lambda: 0.0)
    observer.begin("training", 200, 0)
    for r in range(1, 201):
        look = {"accuracy": 0.5, "loss": 0.25, "sum": float(r)}
        observer.round(a_row(r, heldout=look) if r % 2 == 0 else a_row(r))
    looks = [line for line in capfd.readouterr().err.splitlines() if "test loss" in line]
    assert looks[0] == "worker 3: round 2/200: test loss 0.250, accuracy 50.0 %, sum 2.00"
    assert looks[-1] == "worker 3: round 200/200: test loss 0.250, accuracy 50.0 %, sum 200"
    assert len(looks) <= 21


def test_a_pace_is_kept(monkeypatch):
    now, slept = [100.0], []
    monkeypatch.setattr(kill_demo.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        kill_demo.time,
        "sleep",
        lambda seconds: (slept.append(seconds), now.__setitem__(0, now[0] + seconds)),
    )
    pace = kill_demo.Pace(2.0)
    pace()
    now[0] += 0.5
    pace()
    now[0] += 3.0
    pace()
    assert slept == [1.5]


def _compile_in_turn(folder, at, end):
    turn = CompileTurn(folder, "one run")
    other = CompileTurn(folder, "other programs")
    for act in (turn.take, turn.give, turn.give, turn.take, other.take):
        act()
        at.put("done")
        end.get()


def test_one_compiles_at_a_time(tmp_path):
    """A lock between processes: free once everything is compiled, and when its holder dies. Who
    takes it then again waits for nobody, unless other programs are to be compiled."""
    names = (
        "compilation_cache_dir",
        "persistent_cache_min_compile_time_secs",
        "persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, f"jax_{name}") for name in names}
    fresh = multiprocessing.get_context("spawn")
    at, end = fresh.Queue(), fresh.Queue()
    other = fresh.Process(target=_compile_in_turn, args=(tmp_path, at, end))
    other.start()
    mine = CompileTurn(tmp_path, "third programs")

    def free():
        try:
            fcntl.flock(mine._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(mine._file, fcntl.LOCK_UN)
        return True

    try:
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
        seen = []
        for _ in range(5):
            at.get(timeout=120)
            seen.append(free())
            end.put(None) if len(seen) < 5 else other.kill()
        other.join()
        assert seen == [False, True, True, True, False]
        assert free()
    finally:
        other.kill()
        mine.close()
        for name, value in before.items():
            jax.config.update(f"jax_{name}", value)
