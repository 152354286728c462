"""The metrics of a launch: read by the parser of Prometheus, over HTTP and from a file."""

import contextlib
import io
import json
import math
import socket
import urllib.error
import urllib.request

import pytest
from rich.console import Console

from laconic.cli.exposition import CONTENT_TYPE, READERS, Metrics, exposition
from laconic.cli.launch import LaunchDisplay
from laconic.engines.supervisor import Line
from laconic.runs.folder import Observer
from tests.cli.commands import assert_one_error

SECONDS = {"compute": 0.25, "quorum": 0.125, "gather": 0.5, "outer": 0.0625}


def row(number, **changes):
    told = {"kind": "round", "round": number, "quorum": [0, 1], "loss": 1 / number, "notes": []}
    told |= {"sent": 1000, "received": 3000, "excluded": {}, "refused": {}, "seconds": SECONDS}
    return told | changes


def display(**more):
    shown = LaunchDisplay(["worker 0", "worker 1"], 4, "a run", Console(file=io.StringIO()), **more)
    take = lambda k, message: shown.take(Line(f"worker {k}", json.dumps(message), False))
    return shown, take


@pytest.fixture
def parsed():
    """Text → {(sample, labels): value} and the families' types, by Prometheus' own parser."""
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="needs prometheus_client"
    )

    def parse(text):
        families = list(parser.text_string_to_metric_families(text))
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
        return samples, {family.name: family.type for family in families}

    return parse


def test_what_prometheus_reads_is_what_the_workers_told(parsed):
    shown, take = display()
    for number in (1, 2):
        take(0, row(number))
        take(1, row(number, sent=10, excluded={"0": "norm"}))
    take(1, {"kind": "end", "round": 2})
    shown.died("worker 0", 3)
    samples, types = parsed(exposition(shown.workers, shown.rounds))
    zero, one = ("worker", "0"), ("worker", "1")
    assert samples["laconic_rounds_asked",] == 4
    assert samples["laconic_train_loss",] == 0.5
    assert samples["laconic_worker_round", zero] == 2
    assert samples["laconic_worker_sent_bytes_total", zero] == 2000
    assert samples["laconic_worker_sent_bytes_total", one] == 20
    assert samples["laconic_worker_received_bytes_total", one] == 6000
    assert samples["laconic_worker_left_out_total", one] == 2
    assert samples["laconic_worker_restarts_total", zero] == 3
    assert samples["laconic_worker_running", zero] == 0
    assert samples["laconic_worker_done", one] == 1
    assert samples["laconic_worker_part_seconds", ("part", "talk"), zero] == 0.625
    assert samples["laconic_worker_part_seconds", ("part", "outer"), one] == 0.0625
    assert types["laconic_worker_sent_bytes"] == "counter"
    assert types["laconic_worker_round"] == "gauge"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None, 1e-30])
def test_any_loss_can_be_read(parsed, loss):
    shown, _ = display()
    parsed(exposition(shown.workers, 4))  # before the first round
    shown.workers["worker 0"].loss = loss
    samples, _ = parsed(exposition(shown.workers, 4))
    assert samples.get(("laconic_train_loss",)) == pytest.approx(loss, nan_ok=True)


def get(address, method="GET"):
    request = urllib.request.Request(address, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_the_endpoint_and_the_file_show_the_same(tmp_path):
    file = tmp_path / "metrics.txt"
    with Metrics(0, file) as metrics:
        assert metrics.address.startswith("http://127.0.0.1:")
        shown, take = display(metrics=metrics)
        take(0, row(1))
        shown.tick()
        kind, text = get(metrics.address)
        assert kind == CONTENT_TYPE
        assert text == file.read_text() == exposition(shown.workers, 4)
        for address, method in (
            (metrics.address + "/x", "GET"),
            (metrics.address.replace("/metrics", "/"), "GET"),
            (metrics.address, "POST"),
            (metrics.address, "DELETE"),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(address, method)
            assert refused.value.code in (404, 501)
            refused.value.close()
    with pytest.raises(urllib.error.URLError):
        get(metrics.address)
    assert file.read_text() == text


def test_silent_readers_take_a_bounded_number_of_threads():
    """Those who say nothing keep their places; one more is sent away at once."""
    with Metrics(0, None) as metrics, contextlib.ExitStack() as stack:
        where = "127.0.0.1", int(metrics.address.split(":")[2].split("/")[0])
        for _ in range(READERS):
            stack.enter_context(socket.create_connection(where, timeout=5))
        one_more = stack.enter_context(socket.create_connection(where, timeout=5))
        with contextlib.suppress(ConnectionError):
            assert one_more.recv(1) == b""


def test_a_reader_that_trickles_is_cut_off(monkeypatch):
    """Each byte comes in time, and the line would never end."""
    monkeypatch.setattr("laconic.cli.exposition.SECONDS", 0.2)
    with Metrics(0, None) as metrics:
        where = "127.0.0.1", int(metrics.address.split(":")[2].split("/")[0])
        with socket.create_connection(where, timeout=0.05) as reader:
            assert any(ended(reader) for _ in range(400))
        assert get(metrics.address)[0] == CONTENT_TYPE


def ended(reader):
    """Say one byte more → whether the other end has hung up."""
    try:
        reader.sendall(b"G")
        return reader.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_full_disk_stops_the_file_and_not_the_run(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    with Metrics(None, folder / "metrics.txt") as metrics:
        shown, _ = display(metrics=metrics)
        folder.rmdir()
        folder.write_text("a file now")
        shown.publish()
        assert "cannot write" in shown.console.file.getvalue()
        shown.publish()
        assert shown.console.file.getvalue().count("cannot write") == 1


def test_wrong_flags_are_refused_before_anything_begins(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for flags, part in {
        ("--metrics-port", "70000"): "from 0 (any) to 65535, got 70000",
        ("--metrics-file", "none/x"): "no file in a folder that exists",
        ("--metrics-file", "."): "no file in a folder that exists",
    }.items():
        assert_one_error(capfd, ("launch", *flags, "--", "train", "digits"), [part])
    assert_one_error(
        capfd, ("launch", "--", "train", "digits", "--track", "csv"), ["give it to laconic launch"]
    )
    assert not list(tmp_path.iterdir())


def test_a_watcher_of_a_launch_is_told_of_a_round_once():
    told = []

    class Watcher(Observer):
        def begin(self, label, total, done, rounds_each=1):
            told.append((label, total, done))

        def round(self, row):
            told.append((row["round"], row["loss"]))

    _, take = display(watcher=Watcher())
    for k, number in ((1, 3), (0, 3), (0, 4), (1, 4)):
        take(k, row(number))
    assert told == [("training", 4, 2), (3, 1 / 3), (4, 0.25)]
