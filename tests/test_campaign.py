"""The judge of the fault campaign on made-up logs, the router's rules, and a short campaign."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import campaign, router, verdict, witness
from benchmarks.blows import DECK, LAUNCH, LIGHTHOUSE, cards, limit_of, targets_of
from benchmarks.router import Links, Namespaces, Router, Rule, between, one_way
from benchmarks.scenarios import filled, join_command
from benchmarks.witness import Blame, Commit, Teller, Watch
from laconic.store.records import read

ROOT = Path(__file__).parents[1]
ALL = (0, 1, 2, 3)


def commit(at, worker, round, digest="a", quorum=ALL, life=0):
    return Commit(at, worker, 100 * worker + life, round, digest, quorum)


# --- the judge ------------------------------------------------------------------------------------


def test_the_judge_follows_the_files_by_its_own_clock(tmp_path):
    now = [10.0]
    watch = Watch(tmp_path, lambda: now[0])
    assert watch.look() == []
    teller = Teller(tmp_path, 2)
    teller.commit({"round": 1, "digest": "d", "quorum": [0, 2], "committed_at": 99.0})
    watch.look()
    life = (2, os.getpid())
    assert watch.commits == [Commit(10.0, *life, 1, "d", (0, 2))]
    assert watch.births == {life: 10.0}
    now[0] = 12.5
    teller.commit({"round": 2, "digest": "e", "quorum": [0, 2]})
    assert [one.at for one in watch.look()] == [12.5]
    assert watch.newest() == watch.commits[1]


def test_a_line_counts_once_it_is_whole_and_a_torn_one_never(tmp_path):
    path, line = tmp_path / "seen-0.jsonl", {"pid": 7, "round": 1, "digest": "d", "quorum": [0]}
    watch = Watch(tmp_path, lambda: 1.0)
    text = json.dumps(line)
    path.write_text(text[:20])
    assert watch.look() == []
    path.write_text(text + "\n")
    assert [one.round for one in watch.look()] == [1]
    with path.open("a") as file:
        file.write(text[:20] + text + "\n" + text.replace("1", "2") + "\n")
    assert [one.round for one in watch.look()] == [2]
    assert watch.torn == 1


def test_gaps_are_between_sights_of_anyone():
    commits = [commit(1.0, 0, 1), commit(1.1, 1, 1), commit(2.0, 1, 2), commit(7.0, 0, 3)]
    times = [one.at for one in commits]
    longest = max(witness.gaps(times), key=lambda gap: gap[1] - gap[0])
    assert longest == (2.0, 7.0)
    assert witness.longest_gap(times, 0.0, 20.0) == 13.0  # the ends count
    assert witness.longest_gap(times, 1.5, 7.5) == 5.0
    assert witness.longest_gap([], 3.0, 5.0) == 2.0
    assert witness.first_seen(commits) == {1: 1.0, 2: 2.0, 3: 7.0}
    assert witness.rounds_between(commits, 1.0, 7.0) == 2
    assert witness.median_round([1.0, 2.0, 7.0]) == 3.0
    assert witness.median_round([1.0]) is None


def test_two_states_are_seen():
    same = [commit(float(r), w, r, f"d{r}") for r in (1, 2, 3) for w in ALL]
    assert witness.rounds_apart(same, {}) == []
    other = [commit(2.0, 9, 2, "x"), commit(3.0, 9, 3, "d3")]
    assert witness.rounds_apart([*same, *other], {}) == [2]


def test_the_last_word_of_a_process_counts_only_at_the_end():
    rows = [commit(1.0, 0, 1), commit(2.0, 0, 2), commit(1.0, 1, 1), commit(2.0, 1, 2, "b")]
    rows.append(commit(3.0, 0, 3))
    assert witness.rounds_apart(rows, {}) == []
    assert witness.rounds_apart(rows, {}, last=2) == [2]


def test_rounds_done_again_from_an_older_checkpoint_count_as_done_last():
    first = [commit(float(r), w, r, f"d{r}") for r in (1, 2, 3, 4) for w in ALL]
    again = [commit(10.0 + r, w, r, f"e{r}", life=1) for r in (3, 4, 5) for w in ALL]
    births = {(w, 100 * w + 1): 9.0 for w in ALL}
    assert witness.rounds_apart([*first, *again], births) == []
    late = {life: 2.0 for life in births}  # begun while the others still committed
    assert witness.rounds_apart([*first, *again], late) == [3]


def test_missing_and_double_rounds():
    assert witness.missing_and_double([1, 2, 4, 4, 5], 6) == ([3, 6], [4])
    assert witness.missing_and_double([3, 1, 2], 3) == ([], [])
    assert witness.missing_and_double([], 2) == ([1, 2], [])


def test_half_of_the_workers_are_a_minority():
    rows = [commit(1.0, 0, 1, quorum=(0, 1, 2)), commit(2.0, 0, 2, quorum=(0, 1))]
    assert witness.minority_rounds(rows, 4) == [2]
    assert witness.minority_rounds(rows, 3) == []


def test_a_gap_is_the_fault_of_the_blows_within_it():
    times = [0.0, 5.0, 6.0, 13.0, 14.0, 50.0, 51.0, 53.0]
    blows = [Blame(6.5, 8.0), Blame(15.0, 8.0), Blame(20.0, 8.0), Blame(50.5, 8.0)]
    found = witness.blamed(blows, times, together=30.0)
    # the second and third fell into one gap, which may take longer, but not so long
    assert found == [(7.0, 8.0), (36.0, 30.0), (36.0, 30.0), (2.0, 8.0)]


def test_a_gap_over_its_limit_weighs_more_than_a_longer_one_within_another():
    times = [0.0, 20.0, 29.0]
    blows = [Blame(1.0, 8.0), Blame(2.0, 8.0)]
    assert witness.blamed(blows, times, together=30.0) == [(20.0, 30.0), (9.0, 8.0)]


# --- blows ----------------------------------------------------------------------------------------


def test_blows_are_dealt_by_seed_alone():
    names = [name for name, _ in cards(3, 1, 25)]
    assert {name: names.count(name) for name in DECK} == DECK
    assert names == [name for name, _ in cards(3, 1, 25)] != [name for name, _ in cards(3, 2, 25)]
    assert [rng.random() for _, rng in cards(3, 1, 4)] == [
        rng.random() for _, rng in cards(3, 1, 4)
    ]


def test_there_is_no_pace_before_the_round_in_the_file(tmp_path):
    waits, teller, file = [], Teller(tmp_path, 0), tmp_path / "hurry"
    pace = campaign.hurried(lambda: waits.append(teller.round), file, teller)
    for round in range(1, 7):
        if round == 3:
            file.write_text("5")
        teller.commit({"round": round, "digest": "d", "quorum": [0]})
        pace()
    assert waits == [1, 2, 5, 6]


@pytest.mark.parametrize("kind", DECK)
def test_blows_hit_what_they_are_named_for(kind):
    hit = targets_of(kind, [0, 2, 3], 4, random.Random(0))
    workers = [name for name in hit if name.startswith("worker")]
    expected = {"one": 1, "all": 4, "everyone": 4}
    for word, count in expected.items():
        if word in kind.split():
            assert len(workers) == count
    if "several" in kind:
        assert 2 <= len(workers) <= 3
        assert set(workers) <= {"worker 0", "worker 2", "worker 3"}
    assert (LIGHTHOUSE in hit) == ("Lighthouse" in kind or "everyone" in kind)
    assert (LAUNCH in hit) == ("supervisor" in kind or "everyone" in kind)


def test_a_blow_may_cost_more_if_no_majority_is_left():
    assert limit_of("kill one worker", [1, 2, 3], 4) == verdict.ONE
    assert limit_of("kill one worker", [1, 2], 4) == verdict.GROUP
    assert limit_of("stop the Lighthouse", [0, 1, 2, 3], 4) == verdict.ONE
    assert limit_of("kill the supervisor", [0, 1, 2, 3], 4) == verdict.GROUP


# --- the router -----------------------------------------------------------------------------------


def test_links_cut_delay_and_slow_packets():
    cut, slow = Rule(cut=True), Rule(delay=0.5, rate=8000.0)
    links = Links({(0, 1): cut, (1, 0): slow})
    assert links.due((0, 1), 100, 1.0) is None
    assert links.due((0, 2), 100, 1.0) == 1.0
    assert links.due((1, 0), 100, 1.0) == pytest.approx(1.6)
    assert links.due((1, 0), 100, 1.0) == pytest.approx(1.7)  # waits for the one before
    assert links.due((1, 0), 100, 5.0) == pytest.approx(5.6)  # the link is free again
    arrived = [links.due((1, 0), 100, 9.0) for _ in range(9)]
    assert arrived.count(None) == 6  # a queue of a quarter of a second takes three
    assert links.counts() == {"passed": 7, "dropped": 7}


def test_links_lose_their_share():
    links = Links({(0, 1): Rule(loss=0.1)}, seed=1)
    lost = [links.due((0, 1), 1, 0.0) is None for _ in range(5000)]
    assert 0.08 < sum(lost) / 5000 < 0.12


def test_rules_are_by_pair_and_direction():
    rule = Rule(cut=True)
    assert set(one_way((0,), (1, 2), rule)) == {(0, 1), (0, 2)}
    assert set(between((0, 1), (2,), rule)) == {(0, 2), (1, 2), (2, 0), (2, 1)}
    assert len(between(range(4), range(4), rule)) == 12


def packet(target, text):
    return b"\x45" + bytes(15) + socket.inet_aton(target) + text


def test_the_router_moves_packets_to_their_address():
    ends = {f"10.0.0.{k}": socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for k in (1, 2)}
    for near, far in ends.values():
        near.setblocking(False)
        far.setblocking(False)
    now, links = [0.0], Links({(0, 1): Rule(delay=2.0)})
    ours = {address: pair[0].fileno() for address, pair in ends.items()}
    moved = Router(ours, links, lambda: now[0])
    first, second = ends["10.0.0.1"][1], ends["10.0.0.2"][1]
    first.send(packet("10.0.0.2", b"slow"))
    first.send(packet("10.0.0.9", b"nowhere"))
    first.send(b"\x60" + bytes(60))  # IPv6
    second.send(packet("10.0.0.1", b"quick"))
    moved.take(0)
    moved.take(1)
    assert moved.deliver() == 2.0
    assert first.recv(100)[20:] == b"quick"
    with pytest.raises(BlockingIOError):
        second.recv(100)
    now[0] = 2.0
    assert moved.deliver() is None
    assert second.recv(100)[20:] == b"slow"
    assert links.counts() == {"passed": 2, "dropped": 0}
    for pair in ends.values():
        for one in pair:
            one.close()


def test_without_namespaces_it_says_so(monkeypatch):
    monkeypatch.setattr(router.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"this is not root.*nothing was run"):
        router.require_namespaces()


def test_workers_join_as_launch_says():
    log = "…\njoin from elsewhere, with the same token, N from 1 to 3: laconic worker --join "
    log += "10.78.0.1:29510 --worker N --bind ADDRESS --engine elastic -- train --workers 4\nmore"
    words = filled(join_command(log), {"--worker": "2", "--bind": "10.78.0.3"})
    assert words[:2] == ["laconic", "worker"]
    assert words[4:8] == ["--worker", "2", "--bind", "10.78.0.3"]
    assert words[-2:] == ["--workers", "4"]
    assert join_command("not yet") == []


# --- the verdict ----------------------------------------------------------------------------------

BLOW = {"kind": "kill one worker", "limit": 8.0, "gap_s": 5.5}
TRAINING = {
    "training": 0,
    "ended": True,
    "seconds": 60.0,
    "launches": 1,
    "processes": 5,
    "rounds": 100,
    "rounds_missing": [],
    "rounds_double": [],
    "rounds_with_two_states": [],
    "minority_rounds": [],
    "final_states": ["a"],
    "seen_gap_s": 5.5,
    "told_gap_s": 5.4,
    "loss": 0.101,
    "calm_loss": 0.1,
    "load": 2.1,
    "blows": [BLOW],
}
SCENARIO = {
    "says": "10 % of packets lost",
    "seconds": 90.0,
    "commits": 61,
    "median_round_s": 0.2,
    "longest_gap_s": 9.0,
    "back_after_s": None,
    "rounds_with_two_states": [],
    "minority_rounds": [],
    "packets": {"passed": 90, "dropped": 10},
    "longest": None,
    "least": 60,
    "back": None,
    "load": 2.1,
}


def missed(goals):
    return {goal.name for goal in goals if not goal.passed}


def test_goals_of_blows():
    assert not missed(verdict.blow_goals([TRAINING]))
    for change, name in (
        ({"ended": False}, "all trainings end"),
        ({"rounds_with_two_states": [3]}, "no divergence"),
        ({"rounds_missing": [3]}, "no round missing from the records"),
        ({"rounds_double": [3]}, "no round twice in the records"),
        ({"minority_rounds": [3]}, "a minority never commits"),
        ({"final_states": ["a", "b"]}, "all workers end with one state"),
        ({"final_states": []}, "all workers end with one state"),
        ({"told_gap_s": 3.4}, "the records tell the longest gap"),
        ({"told_gap_s": None}, "the records tell the longest gap"),
        ({"loss": 0.106}, "loss within 5 % of the calm training's"),
        ({"loss": None}, "loss within 5 % of the calm training's"),
    ):
        assert missed(verdict.blow_goals([TRAINING, TRAINING | change])) == {name}
    (late,) = missed(verdict.blow_goals([TRAINING | {"blows": [BLOW, BLOW | {"gap_s": 8.1}]}]))
    assert late.startswith("gap at most 8 s")


def test_goals_of_networks():
    assert not missed(verdict.network_goals([SCENARIO]))
    slow, gap = SCENARIO | {"commits": 59}, SCENARIO | {"longest": 8.0}
    assert len(missed(verdict.network_goals([slow]))) == 1
    assert len(missed(verdict.network_goals([gap]))) == 1
    for took, count in ((None, 1), (30.5, 1), (29.5, 0)):
        back = SCENARIO | {"back": 30.0, "back_after_s": took}
        assert len(missed(verdict.network_goals([back]))) == count
    assert len(missed(verdict.network_goals([SCENARIO | {"minority_rounds": [1]}]))) == 1


def test_the_page_shows_all_tables():
    about = {"commits": ["0123456789"], "load": [1.5, 2.5], "host_cpus": 2}
    goals = [goal._asdict() for goal in verdict.blow_goals([TRAINING])]
    blows = about | {"trainings": [TRAINING], "goals": goals}
    blows["options"] = {"rounds": 100, "workers": 4}
    text = verdict.page(
        {"blows": blows, "network": about | {"scenarios_run": [SCENARIO], "goals": []}}
    )
    assert "| kill one worker | 8 | 1 | 5.5 | 5.5 | – |" in text
    assert "| 10 % of packets lost | 90 | 61 | 0.20 | 9.0 | – | 0 | 0 | 10.0 % | 2 |" in text
    assert "on 2 cores with a load of 2 to 2, commit 012345678" in text
    assert "| no divergence | 0 rounds with two states | met |" in text


def test_the_docs_show_the_record():
    if not any(path.exists() for path in campaign.RECORDS.values()):
        pytest.skip("no record of a campaign: run benchmarks/campaign.py with --record")
    assert (ROOT / "docs" / "results" / "campaign.md").read_text() == campaign.page_text()


def test_the_docs_tell_how_long_it_takes_to_recover():
    blows, network = (read(campaign.RECORDS[kind])[-1] for kind in ("blows", "network"))
    rows = (ROOT / "docs" / "distributed.md").read_text().splitlines()
    for what, told in verdict.recoveries(blows, network).items():
        (row,) = [row for row in rows if row.startswith(f"| {what} |")]
        assert row.endswith(f"| {told} |")


def test_a_folder_of_other_options_is_refused(tmp_path):
    assert campaign.kept(tmp_path, {"seed": 0}) == []
    campaign.keep(tmp_path, "training", {"training": 0})
    assert [piece["training"] for piece in campaign.kept(tmp_path, {"seed": 0})] == [0]
    with pytest.raises(SystemExit, match="another --out"):
        campaign.kept(tmp_path, {"seed": 1})


# --- the real thing, in small ---------------------------------------------------------------------


@pytest.mark.slow
def test_namespaces_reach_each_other_through_the_rules():
    try:
        router.require_namespaces()
    except SystemExit as error:
        pytest.skip(str(error))
    listen = """if True:
        import socket
        server = socket.create_server(("10.78.0.2", 5000))
        print("up", flush=True)
        peer, _ = server.accept()
        peer.sendall(peer.recv(1))
    """
    ask = """if True:
        import socket, time
        begin = time.time()
        peer = socket.create_connection(("10.78.0.2", 5000), 9)
        peer.sendall(b"x")
        peer.recv(1)
        print(time.time() - begin)
    """
    with Namespaces(2) as net:
        net.rule(between([0], [1], Rule(delay=0.1)))
        python = [sys.executable, "-c"]
        server = net.start(1, [*python, listen], stdout=subprocess.PIPE, text=True)
        assert server.stdout.readline() == "up\n"
        client = net.start(0, [*python, ask], stdout=subprocess.PIPE, text=True)
        out, _ = client.communicate(timeout=30)
        server.communicate(timeout=30)
        assert float(out) > 0.4  # two round trips
        assert net.rule({})["passed"] >= 6


@pytest.mark.slow
def test_a_short_campaign(tmp_path):
    words = ["blows", "--blows", "3", "--rounds", "60", "--pace", "0.1", "--out", "out"]
    command = [sys.executable, str(ROOT / "benchmarks" / "campaign.py"), *words]
    done = subprocess.run(
        [*command, "--record", "record.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    record = json.loads((tmp_path / "record.jsonl").read_text())
    (training,) = record["trainings"]
    said = done.stdout + done.stderr
    assert training["ended"], said
    assert len(training["blows"]) == 3
    assert training["rounds_seen"] == 60
    assert training["rounds_missing"] == training["rounds_double"] == []
    assert training["rounds_with_two_states"] == []
    assert len(training["final_states"]) == 1
    assert len(record["commit"]) == 40
